// halfbyte inspect DIR [--json] [--scales]
#include "checkpoint/inspect.h"

#include "cli/command.h"
#include "cli/commands.h"

namespace halfbyte {

void AddInspect(CLI::App& app) {
  struct Flags {
    std::string directory;
    bool json = false;
    InspectOptions options;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App& command = *app.add_subcommand(
      "inspect",
      "Shows what a model directory holds and what is wrong with it, from headers alone.");
  command.add_option("DIR", flags->directory, "Model directory")->required();
  command.add_flag("--json", flags->json, "Print everything as JSON");
  command.add_flag("--scales", flags->options.block_scales,
                   "Read all block scales for their range (slow)");
  OnRun(command, [flags]() -> Result<ExitCode> {
    HB_ASSIGN_OR_RETURN(const Inspection inspection, Inspect(flags->directory, flags->options));
    if (flags->json) {
      PrintJson(InspectionJson(inspection));
    } else {
      fmt::print("{}", InspectionText(inspection));
    }
    return ExitCode::kOk;
  });
}

}  // namespace halfbyte
