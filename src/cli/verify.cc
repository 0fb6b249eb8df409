// halfbyte verify DIR [--reference DIR] [--for TOOLS] [--json] [--threads N]
#include "checkpoint/verify.h"

#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/commands.h"

namespace halfbyte {

void AddVerify(CLI::App& app) {
  struct Flags {
    std::string directory;
    std::string reference;
    std::string tools;
    bool json = false;
    int threads = AvailableProcessors();
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App& command = *app.add_subcommand(
      "verify", "Reads a whole checkpoint and reports everything a loader could trip on.");
  command.add_option("DIR", flags->directory, "Model directory")->required();
  command.add_option("--reference", flags->reference,
                     "Model directory to compare with, in any format");
  command
      .add_option("--for", flags->tools,
                  "Say which of these tools can load it: all, or a list such as vllm,sglang")
      ->check([](const std::string& list) {
        const auto tools = ParseTools(list);
        return tools ? std::string() : tools.error().message;
      });
  command.add_flag("--json", flags->json, "Print everything as JSON");
  command.add_option("--threads", flags->threads, "Matrices read at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  OnRun(command, [flags]() -> Result<ExitCode> {
    VerifyOptions options;
    options.threads = flags->threads;
    if (!flags->reference.empty()) options.reference = flags->reference;
    if (!flags->tools.empty()) options.tools = *ParseTools(flags->tools);
    HB_ASSIGN_OR_RETURN(const Verification verification, Verify(flags->directory, options));
    if (flags->json) {
      PrintJson(VerificationJson(verification));
    } else {
      fmt::print("{}", VerificationText(verification));
    }
    return verification.ok() && verification.loads_everywhere() ? ExitCode::kOk : ExitCode::kFailed;
  });
}

}  // namespace halfbyte
