// What a bench needs before it starts: memory, and ranks that agree.
#include <algorithm>
#include <functional>
#include <string>

#include "base/file.h"
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

int64_t MoeBenchBytes(const MoeBenchOptions& options, int ranks) {
  const MoeLimits limits = MoeBenchLimits(options, ranks);
  const MoeShape& shape = options.shape;
  const int64_t rows = limits.tokens * (2 * shape.hidden + shape.experts + 2 * shape.top_k);
  const int64_t exchange = ranks == 1 ? 0 : 2 * limits.slots() * shape.hidden;
  // All experts, stored or packed; one in both forms while it is packed; what all are copies of;
  // and one projection before it is quantized.
  const int64_t weights = (limits.experts + 2) * shape.expert_bytes() +
                          shape.hidden * shape.intermediate * int64_t{sizeof(float)};
  return weights + MoeWorkspace::Bytes(limits) + (rows + exchange) * int64_t{sizeof(float)};
}

Result<BenchRanks> CountBenchRanks(const MoeBenchOptions& options, Communicator& ranks) {
  struct Rank {
    size_t kernel;  // processes under one kernel share its memory
    size_t work;
  };
  const std::hash<std::string> hash;
  const Rank mine{hash(ReadTextFile("/proc/sys/kernel/random/boot_id").value_or("")),
                  hash(DescribeWork(options))};
  HB_ASSIGN_OR_RETURN(const auto all, ranks.Collect(std::span<const Rank>(&mine, 1)));
  BenchRanks numbers{.all = ranks.size(), .here = 0};
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].work != all[0].work) {
      return MakeError(
          "rank {} of {} measures something else than rank 0: start all ranks with "
          "the same flags",
          r, ranks.size());
    }
    numbers.here += all[r].kernel == mine.kernel ? 1 : 0;
  }
  return numbers;
}

Status CheckMoeBench(const MoeBenchOptions& options, BenchRanks ranks, int64_t available_bytes) {
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
  const int64_t needed = ranks.here * MoeBenchBytes(options, ranks.all);
  if (needed > available_bytes) {
    const auto size = [](int64_t bytes) { return HumanQuantity(static_cast<double>(bytes), "B"); };
    return MakeError(
        "{} experts of {} and {} tokens need {}, and {} are free; give a --shape H,I,E,K with "
        "fewer experts (one of {},{} takes {}) or fewer --tokens",
        shape.experts, size(shape.expert_bytes()), MoeBenchLimits(options, ranks.all).tokens,
        size(needed), size(available_bytes), shape.hidden, shape.intermediate,
        size(shape.expert_bytes()));
  }
  return {};
}

}  // namespace halfbyte
