// halfbyte convert SRC DST --format nvfp4|nvfp4-ct|bf16: see docs/convert.md.
#include "checkpoint/convert/convert.h"

#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/commands.h"

namespace halfbyte {

void AddConvert(CLI::App& app) {
  struct Flags {
    std::string source;
    std::string target;
    ConvertOptions options;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  flags->options.threads = AvailableProcessors();

  CLI::App* command = app.add_subcommand("convert", "Convert a checkpoint to another format");
  command->add_option("SRC", flags->source, "Directory of the checkpoint to read")->required();
  command->add_option("DST", flags->target, "Directory to write; created if absent")->required();
  command->add_option("--format", flags->options.format, "nvfp4, nvfp4-ct or bf16")
      ->required()
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, TargetFormat>{{"nvfp4", TargetFormat::kModelOptNvfp4},
                                              {"nvfp4-ct", TargetFormat::kCtNvfp4},
                                              {"bf16", TargetFormat::kBf16}}));
  command
      ->add_option("--scope", flags->options.scope,
                   "Which matrices become NVFP4: experts (default) or experts+shared")
      ->transform(CLI::CheckedTransformer(std::map<std::string, ConvertScope>{
          {"experts", ConvertScope::kExperts},
          {"experts+shared", ConvertScope::kExpertsAndShared}}));
  command->add_flag("--four-over-six", flags->options.four_over_six,
                    "Per block, map the largest value to 4 instead of 6 where that is closer");
  command->add_option("--threads", flags->options.threads, "Matrices converted at a time")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--overwrite", flags->options.overwrite,
                    "Replace what an earlier conversion left in DST");
  command->add_flag("--json", flags->json, "Print the report of every matrix as JSON");

  OnRun(*command, [flags]() -> Result<ExitCode> {
    std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is then an error with a sentence
    HB_ASSIGN_OR_RETURN(const ConversionReport report,
                        ConvertCheckpoint(flags->source, flags->target, flags->options));
    const std::string text =
        flags->json ? ToJson(report).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                    : ToText(report);
    std::fputs(text.c_str(), stdout);
    return ExitCode::kOk;
  });
}

}  // namespace halfbyte
