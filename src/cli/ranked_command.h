// A command that may run as several ranks, started by mpirun (docs/ranks.md).
#pragma once

#include <cstdio>

#include "base/log.h"
#include "cli/command.h"
#include "comm/communicator.h"
#include "comm/mpi/mpi_ranks.h"

namespace halfbyte {

// As OnRun, but `body` gets the ranks and returns Result<ExitCode> on each of them. It prints on
// ranks.first() only. If it fails on some rank, it fails on all, and one sentence is printed.
template <class Body>
void OnRunRanked(CLI::App& command, Body body) {
  OnRun(command, [&command, body]() -> Result<ExitCode> {
    HB_ASSIGN_OR_RETURN(const auto ranks, ConnectRanks());
    if (!ranks->first()) spdlog::set_level(spdlog::level::off);
    Result<ExitCode> result = body(*ranks);
    std::fflush(stdout);  // while all ranks are connected, for the same reason as below
    const bool report = ranks->Leave(result.has_value() && *result == ExitCode::kOk);
    if (result) return result;
    if (!ranks->first()) {
      result = MakeError("rank {} of {}: {}", ranks->rank(), ranks->size(), result.error().message);
    }
    // Now, while all ranks are connected: mpirun kills the others when one has ended badly.
    if (report) PrintFailure(command, result.error());
    return ExitCode::kFailed;
  });
}

}  // namespace halfbyte
