// halfbyte convert SRC DST --format nvfp4|nvfp4-ct|bf16: see docs/convert.md.
#include "checkpoint/convert/convert.h"

#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/commands.h"

namespace halfbyte {
namespace {

// One of the names that the flag accepts.
TargetFormat FormatOf(const std::string& name) {
  if (name == "nvfp4") return TargetFormat::kModelOptNvfp4;
  return name == "nvfp4-ct" ? TargetFormat::kCtNvfp4 : TargetFormat::kBf16;
}

}  // namespace

void AddConvert(CLI::App& app) {
  struct Flags {
    std::string source;
    std::string target;
    std::string format;
    std::string scope = "experts";
    ConvertOptions options;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  flags->options.threads = AvailableProcessors();

  CLI::App* command = app.add_subcommand("convert", "Convert a checkpoint to another format");
  command->add_option("SRC", flags->source, "Directory of the checkpoint to read")->required();
  command->add_option("DST", flags->target, "Directory to write; created if absent")->required();
  command->add_option("--format", flags->format, "Format of the result")
      ->required()
      ->check(CLI::IsMember({"nvfp4", "nvfp4-ct", "bf16"}));
  command->add_option("--scope", flags->scope, "Which matrices become NVFP4")
      ->capture_default_str()
      ->check(CLI::IsMember({"experts", "experts+shared"}));
  command->add_flag("--four-over-six", flags->options.four_over_six,
                    "Per block, map the largest value to 4 instead of 6 where that is closer");
  command->add_option("--threads", flags->options.threads, "Matrices converted at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_flag("--overwrite", flags->options.overwrite,
                    "Replace what an earlier conversion left in DST");
  command->add_flag("--json", flags->json, "Print the report of every matrix as JSON");

  OnRun(*command, [flags]() -> Result<ExitCode> {
    flags->options.format = FormatOf(flags->format);
    flags->options.scope =
        flags->scope == "experts" ? ConvertScope::kExperts : ConvertScope::kExpertsAndShared;
    HB_ASSIGN_OR_RETURN(const ConversionReport report,
                        ConvertCheckpoint(flags->source, flags->target, flags->options));
    if (flags->json) {
      PrintJson(ToJson(report));
    } else {
      fmt::print("{}", ToText(report));
    }
    return ExitCode::kOk;
  });
}

}  // namespace halfbyte
