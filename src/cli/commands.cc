#include "cli/commands.h"

namespace halfbyte {

void AddCommands([[maybe_unused]] CLI::App& app) {}

}  // namespace halfbyte
