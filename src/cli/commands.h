// All commands of the program.
#pragma once

#include <CLI/CLI.hpp>

namespace halfbyte {

void AddCommands(CLI::App& app);

}  // namespace halfbyte
