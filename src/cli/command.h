// How a command joins the program: one AddX function per file, called from main.cc. It declares its
// flags and a callback; the callback calls a library function and prints. No logic lives here.
#pragma once

#include <CLI/CLI.hpp>

#include "base/result.h"

namespace halfbyte {

// Exit codes: 0 done, 1 bad input or failed check, 2 wrong usage.
enum class ExitCode : int { kOk = 0, kFailed = 1, kUsage = 2 };

// Runs `body` (returning Result<ExitCode>) when the command is chosen. An error is printed to
// stderr as one line "halfbyte COMMAND: message" and ends the program with exit code 1.
template <class Body>
void OnRun(CLI::App& command, Body body) {
  command.callback([&command, body] {
    const Result<ExitCode> result = body();
    if (!result) {
      fmt::print(stderr, "halfbyte {}: {}\n", command.get_name(), result.error().message);
      throw CLI::RuntimeError(static_cast<int>(ExitCode::kFailed));
    }
    if (*result != ExitCode::kOk) throw CLI::RuntimeError(static_cast<int>(*result));
  });
}

}  // namespace halfbyte
