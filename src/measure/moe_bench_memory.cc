// What a bench needs before it starts: memory, and ranks that agree.
#include <algorithm>
#include <functional>
#include <string>

#include "base/progress.h"
#include "measure/moe_bench.h"

namespace halfbyte {
namespace {

int64_t MostExperts(const MoeBenchOptions& options, int ranks) {
  return (options.shape.experts + ranks - 1) / ranks;
}

std::string DescribeWork(const MoeBenchOptions& options) {
  const MoeShape& shape = options.shape;
  std::string text =
      fmt::format("{},{},{},{} {} {}", shape.hidden, shape.intermediate, shape.experts, shape.top_k,
                  options.routing.name(), options.seconds_per_row);
  for (const int64_t tokens : options.tokens) text += fmt::format(" {}", tokens);
  for (const Arithmetic a : options.arithmetic) text += fmt::format(" {}", ArithmeticName(a));
  return text;
}

}  // namespace

MoeLimits MoeBenchLimits(const MoeBenchOptions& options, int ranks) {
  return {.tokens = *std::max_element(options.tokens.begin(), options.tokens.end()),
          .top_k = options.shape.top_k,
          .experts = MostExperts(options, ranks),
          .hidden = options.shape.hidden,
          .intermediate = options.shape.intermediate};
}

MemoryPlan PlanMoeBench(const MoeBenchOptions& options, int ranks) {
  const MoeLimits limits = MoeBenchLimits(options, ranks);
  const MoeShape& shape = options.shape;
  const int64_t rows = limits.tokens * (2 * shape.hidden + shape.experts + 2 * shape.top_k);
  const int64_t exchange = ranks == 1 ? 0 : 2 * limits.slots() * shape.hidden;
  MemoryPlan plan;
  plan.Add(fmt::format("{} experts", limits.experts), limits.experts * shape.expert_bytes());
  // One in both forms while it is packed; what all are copies of; one projection before it is
  // quantized.
  plan.Add("making them",
           2 * shape.expert_bytes() + shape.hidden * shape.intermediate * int64_t{sizeof(float)});
  plan.Add(fmt::format("workspace and rows of {} tokens", limits.tokens),
           MoeWorkspace::Bytes(limits) + (rows + exchange) * int64_t{sizeof(float)});
  return plan;
}

Result<BenchRanks> CountBenchRanks(const MoeBenchOptions& options, Communicator& ranks) {
  const size_t mine = std::hash<std::string>()(DescribeWork(options));
  HB_ASSIGN_OR_RETURN(const auto all, ranks.Collect(std::span<const size_t>(&mine, 1)));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] != all[0]) {
      return MakeError(
          "rank {} of {} measures something else than rank 0: start all ranks with "
          "the same flags",
          r, ranks.size());
    }
  }
  HB_ASSIGN_OR_RETURN(const int here, RanksOnThisMachine(ranks));
  return BenchRanks{.all = ranks.size(), .here = here};
}

Status CheckMoeBench(const MoeBenchOptions& options, BenchRanks ranks,
                     const AvailableMemory& available) {
  if (options.tokens.empty()) return MakeError("--tokens names no number of tokens");
  if (options.arithmetic.empty()) return MakeError("--arithmetic names no arithmetic");
  for (const int64_t tokens : options.tokens) {
    if (tokens < 1 || tokens > kMaxBenchTokens) {
      return MakeError("--tokens {} is outside 1..{}", tokens, kMaxBenchTokens);
    }
  }
  const MoeShape& shape = options.shape;
  if (shape.experts < ranks.all) {
    return MakeError("{} experts for {} ranks: each needs one at least", shape.experts, ranks.all);
  }
  const std::string expert = HumanBytes(shape.expert_bytes());
  return PlanMoeBench(options, ranks.all)
      .Check(available.ForEachOf(ranks.here), "the bench",
             fmt::format("give a --shape H,I,E,K with fewer experts (one of {},{} takes {}) or "
                         "fewer --tokens",
                         shape.hidden, shape.intermediate, expert));
}

}  // namespace halfbyte
