// halfbyte bench model: see docs/bench-model.md.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "measure/model_bench.h"
#include "measure/model_shape.h"

namespace halfbyte {
namespace {

struct BenchModelFlags {
  int64_t layers = 0;   // 0: all
  int64_t experts = 0;  // 0: all
  std::string arithmetic = "w4a16";
  std::string device = "cpu";
  int threads = AvailableProcessors();
  bool json = false;
  ModelBenchOptions options;
};

Result<ExitCode> RunBenchModel(const BenchModelFlags& flags) {
  ModelBenchOptions options = flags.options;
  HB_ASSIGN_OR_RETURN(ModelConfig config, ReadModelShape(options.shape));
  if (flags.layers > 0) {
    HB_ASSIGN_OR_RETURN(config, TakeLayers(std::move(config), flags.layers));
  }
  if (flags.experts > 0) {
    HB_ASSIGN_OR_RETURN(config, TakeExperts(std::move(config), flags.experts));
  }
  options.config = std::move(config);
  options.arithmetic = *ArithmeticFromName(flags.arithmetic);
  ThreadPool pool(flags.threads);
  HB_ASSIGN_OR_RETURN(const ModelBenchReport report, BenchModel(Context(pool), options));
  if (flags.json) {
    PrintJson(ModelBenchJson(report));
  } else {
    fmt::print("{}", ModelBenchText(report));
  }
  return ExitCode::kOk;
}

}  // namespace

void AddBenchModel(CLI::App& bench) {
  auto flags = std::make_shared<BenchModelFlags>();
  flags->options.batches = {1, 8};
  flags->options.contexts = {1024};
  flags->options.prompts = {512};
  CLI::App* command = bench.add_subcommand(
      "model", "A model of real shape: generation and prompts beside the machine's limits");
  const auto lengths = [&](const char* name, std::vector<int64_t>& values, const char* text) {
    command->add_option(name, values, text)
        ->delimiter(',')
        ->capture_default_str()
        ->transform(CLI::AsNumberWithUnit(std::map<std::string, int64_t>{{"k", 1024}},
                                          CLI::AsNumberWithUnit::CASE_INSENSITIVE))
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  };
  command->add_option("--shape", flags->options.shape, "v4-flash, v4-pro, or a config.json")
      ->required();
  command
      ->add_option("--layers", flags->layers,
                   "So many layers, in the model's proportions of kinds (default: all)")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  command->add_option("--experts", flags->experts, "Fewer experts than the model has")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  command->add_option("--device", flags->device, "cpu")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu"}));
  command
      ->add_option("--batch", flags->options.batches, "Sequences that generate at once: 1 or 1,8")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  lengths("--context", flags->options.contexts, "Tokens that these have already: 1k or 1k,32k");
  lengths("--prefill", flags->options.prompts, "Tokens of prompts: 512 or 512,8k");
  command->add_option("--chunk", flags->options.chunk, "Tokens of a prompt that run together")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  command->add_option("--arithmetic", flags->arithmetic, "Of the experts: w4a16, w4a4 or w4a8")
      ->capture_default_str()
      ->check(CLI::IsMember({"w4a16", "w4a4", "w4a8"}));
  command->add_option("--threads", flags->threads, "Processors to use")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", flags->json, "Print everything as JSON");
  OnRun(*command, [flags] { return RunBenchModel(*flags); });
}

}  // namespace halfbyte
