// How a command joins the program: one AddX function per file, called from main.cc. It declares its
// flags and a callback; the callback calls a library function and prints. No logic lives here.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/json.h"
#include "base/result.h"

namespace halfbyte {

// Exit codes: 0 done, 1 bad input or failed check, 2 wrong usage.
enum class ExitCode : int { kOk = 0, kFailed = 1, kUsage = 2 };

// "bench moe": the words after the program's name that lead to the command.
inline std::string CommandWords(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  if (parent == nullptr || parent->get_parent() == nullptr) return command.get_name();
  return CommandWords(*parent) + " " + command.get_name();
}

// "halfbyte COMMAND: message" and the end of the line.
inline std::string FailureLine(const CLI::App& command, const Error& error) {
  return fmt::format("halfbyte {}: {}\n", CommandWords(command), error.message);
}

// The same on stderr.
inline void PrintFailure(const CLI::App& command, const Error& error) {
  fmt::print(stderr, "{}", FailureLine(command, error));
}

// On stdout, with replacement characters for what is not UTF-8 (names of files need not be).
inline void PrintJson(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

// Runs `body` (returning Result<ExitCode>) when the command is chosen. An error is printed to
// stderr as one line "halfbyte COMMAND: message" and ends the program with exit code 1.
template <class Body>
void OnRun(CLI::App& command, Body body) {
  command.callback([&command, body] {
    const Result<ExitCode> result = body();
    if (!result) {
      PrintFailure(command, result.error());
      throw CLI::RuntimeError(static_cast<int>(ExitCode::kFailed));
    }
    if (*result != ExitCode::kOk) throw CLI::RuntimeError(static_cast<int>(*result));
  });
}

}  // namespace halfbyte
