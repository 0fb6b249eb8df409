// halfbyte bench moe: see docs/bench.md. (bench model: bench_model.cc; bench serve:
// bench_serve.cc.)
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/ranked_command.h"
#include "measure/moe_bench.h"
#ifdef HALFBYTE_CUDA
#include "measure/cuda/cuda_moe_bench.h"
#endif

namespace halfbyte {
namespace {

struct BenchMoeFlags {
  std::string shape;
  std::vector<int64_t> tokens;
  std::vector<std::string> arithmetic = {"w4a16"};
  std::string device = "cpu";
  std::string routing;
  int threads = AvailableProcessors();
  bool json = false;
  bool explain = false;
};

#ifdef HALFBYTE_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
// So that the command reads alike; CheckDevice has refused before.
Result<MoeBenchReport> BenchMoeOnGpu(const Context&, const MoeBenchOptions&) {
  return MakeError("built without CUDA");
}
std::string ExplainMoeOnGpu(const MoeShape&, std::span<const int64_t>) { return ""; }
#endif

std::string CheckShape(const std::string& text) {
  const auto shape = ParseMoeShape(text);
  return shape ? "" : shape.error().message;
}

std::string CheckArithmetic(const std::string& name) {
  if (ArithmeticFromName(name)) return "";
  return fmt::format("{} is not known; choose from ref, w4a16, w4a4 and w4a8", name);
}

std::string CheckRouting(const std::string& text) {
  const auto routing = ParseBenchRouting(text);
  return routing ? "" : routing.error().message;
}

std::string CheckDevice(const std::string& name) {
  if (name == "cpu" || (name == "cuda" && kHasCuda)) return "";
  if (name == "cuda") return "cuda is not part of this build (cmake --preset cuda, docs/cuda.md)";
  return fmt::format("{} is not known; choose from cpu and cuda", name);
}

Result<ExitCode> RunBenchMoe(const BenchMoeFlags& flags, Communicator& ranks) {
  HB_ASSIGN_OR_RETURN(const MoeShape shape, ParseMoeShape(flags.shape));
  MoeBenchOptions options{.shape = shape, .tokens = flags.tokens};
  for (const std::string& name : flags.arithmetic) {
    options.arithmetic.push_back(*ArithmeticFromName(name));
  }
  const bool cuda = flags.device == "cuda";
  const std::string routing = cuda ? "uniform" : "rotating";
  HB_ASSIGN_OR_RETURN(options.routing,
                      ParseBenchRouting(flags.routing.empty() ? routing : flags.routing));
  if (flags.explain) {
    if (!cuda) return MakeError("--explain tells about the kernels of --device cuda");
    fmt::print("{}", ExplainMoeOnGpu(shape, flags.tokens));
    return ExitCode::kOk;
  }
  if (cuda && ranks.size() > 1) return MakeError("--device cuda runs in one process only");
  ThreadPool pool(flags.threads);
  HB_ASSIGN_OR_RETURN(const MoeBenchReport report, cuda ? BenchMoeOnGpu(Context(pool), options)
                                                        : BenchMoe(Context(pool), options, ranks));
  if (!ranks.first()) return ExitCode::kOk;
  if (flags.json) {
    PrintJson(MoeBenchJson(report));
  } else {
    fmt::print("{}", MoeBenchText(report));
  }
  return ExitCode::kOk;
}

void AddBenchMoe(CLI::App& bench) {
  auto flags = std::make_shared<BenchMoeFlags>();
  CLI::App* command =
      bench.add_subcommand("moe", "One MoE layer: its speed beside the machine's limits");
  command
      ->add_option("--shape", flags->shape,
                   "v4-flash, v4-pro, or H,I,E,K: hidden, intermediate, experts, top_k")
      ->required()
      ->check(CheckShape);
  command->add_option("--tokens", flags->tokens, "Tokens of a step: a number or a list 1,8,64")
      ->required()
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, kMaxBenchTokens));
  command->add_option("--device", flags->device, "cpu or cuda")
      ->capture_default_str()
      ->check(CheckDevice);
  command
      ->add_option("--routing", flags->routing,
                   "rotating (default on the cpu), uniform (on cuda) or dirichlet:A, such as 0.5")
      ->check(CheckRouting);
  command->add_option("--arithmetic", flags->arithmetic, "One or several of ref, w4a16, w4a4, w4a8")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CheckArithmetic);
  command->add_option("--threads", flags->threads, "Processors to use")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", flags->json, "Print everything as JSON");
  command->add_flag("--explain", flags->explain,
                    "Measure nothing: say which GPU kernels run for each number of tokens");
  OnRunRanked(*command, [flags](Communicator& ranks) { return RunBenchMoe(*flags, ranks); });
}

}  // namespace

void AddBench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed on this machine");
  bench->require_subcommand(1);
  AddBenchMoe(*bench);
  AddBenchModel(*bench);
  AddBenchServe(*bench);
}

}  // namespace halfbyte
