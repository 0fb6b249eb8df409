#include "cli/commands.h"

namespace halfbyte {

void AddCommands(CLI::App& app) {
  AddConvert(app);
}

}  // namespace halfbyte
