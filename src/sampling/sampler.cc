#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "numerics/exp.h"
#include "sampling/philox.h"

namespace halfbyte {
namespace {

constexpr size_t kBlock = 1024;  // ids per partial sum
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Candidate {
  double q;
  uint32_t id;
};

bool Better(const Candidate& a, const Candidate& b) { return a.q != b.q ? a.q > b.q : a.id < b.id; }

// The largest of some logits, NaN aside, and whether one is NaN or +infinity. In lanes and two
// loops, so that both become vector instructions.
struct Extremes {
  float largest = 0;
  bool bad = false;
};
Extremes ExtremesOf(std::span<const float> logits) {
  constexpr size_t kLanes = 32;
  float largest[kLanes];
  float bad[kLanes] = {};
  std::ranges::fill(largest, -kInfinity);
  const auto take = [&](size_t from, size_t count) {
    for (size_t lane = 0; lane < count; ++lane) {
      const float z = logits[from + lane];
      largest[lane] = z > largest[lane] ? z : largest[lane];
    }
    for (size_t lane = 0; lane < count; ++lane) {
      bad[lane] = logits[from + lane] < kInfinity ? bad[lane] : 1.0f;
    }
  };
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) take(i, kLanes);
  take(i, logits.size() - i);
  return {*std::ranges::max_element(largest), *std::ranges::max_element(bad) != 0};
}

// The first of the largest logits; errors as Sample.
Result<size_t> FirstLargest(std::span<const float> logits) {
  float largest = -kInfinity;
  size_t block = 0;  // where it comes first
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto part = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    const Extremes extremes = ExtremesOf(part);
    if (extremes.bad) {
      const auto at = std::ranges::find_if(part, [](float z) { return !(z < kInfinity); });
      return MakeError(
          "nonfinite_logits: the logit of token {} is {}; halfbyte verify finds bad weights",
          at - part.begin() + static_cast<ptrdiff_t>(begin), *at);
    }
    if (extremes.largest > largest) {
      largest = extremes.largest;
      block = begin;
    }
  }
  if (logits.empty()) return MakeError("nonfinite_logits: there are no logits");
  if (largest == -kInfinity) return MakeError("nonfinite_logits: no token has a finite logit");
  const auto rest = logits.subspan(block);
  return block + static_cast<size_t>(std::ranges::find(rest, largest) - rest.begin());
}

// q_i of Sample, without min_p, block by block while it is in the cache.
void Exponentials(std::span<const float> logits, double max, double temperature,
                  std::span<double> q) {
  for (size_t begin = 0; begin < q.size(); begin += kBlock) {
    const std::span<double> block = q.subspan(begin, std::min(kBlock, q.size() - begin));
    for (size_t i = 0; i < block.size(); ++i) block[i] = logits[begin + i] - max;
    if (temperature != 1) {
      for (double& x : block) x /= temperature;
    }
    ExpAll(block);
  }
}

// The sum of each kBlock ids, ascending. Four blocks side by side: in one alone every addition
// would wait for the one before.
std::vector<double> BlockSums(std::span<const double> q) {
  std::vector<double> sums((q.size() + kBlock - 1) / kBlock);
  size_t b = 0;
  for (; (b + 4) * kBlock <= q.size(); b += 4) {
    double block[4] = {};
    for (size_t i = 0; i < kBlock; ++i) {
      for (size_t j = 0; j < 4; ++j) block[j] += q[(b + j) * kBlock + i];
    }
    std::ranges::copy(block, sums.begin() + static_cast<ptrdiff_t>(b));
  }
  for (; b < sums.size(); ++b) {
    for (const double x : q.subspan(b * kBlock, std::min(kBlock, q.size() - b * kBlock))) {
      sums[b] += x;
    }
  }
  return sums;
}

double Sum(std::span<const double> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

// How many of the best candidates have a sum that reaches `enough`; all if none do. Sorts only as
// far as it must: real distributions are settled by their first few hundred tokens of 129,000.
size_t PrefixReaching(double enough, std::vector<Candidate>* candidates) {
  double sum = 0;
  size_t sorted = 0;
  for (size_t step = 64; sorted < candidates->size(); step *= 4) {
    const auto begin = candidates->begin() + static_cast<ptrdiff_t>(sorted);
    const size_t count = std::min(step, candidates->size() - sorted);
    const auto end = begin + static_cast<ptrdiff_t>(count);
    if (end != candidates->end()) std::nth_element(begin, end, candidates->end(), Better);
    std::sort(begin, end, Better);
    for (size_t i = sorted; i < sorted + count; ++i) {
      sum += (*candidates)[i].q;
      if (sum >= enough) return i + 1;
    }
    sorted += count;
  }
  return candidates->size();
}

// Steps 7 and 8: sets q to 0 where top_k and top_p drop a token.
void KeepTop(const SamplingParams& params, std::span<double> q) {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < q.size(); ++i) {
    if (q[i] > 0) candidates.push_back({q[i], static_cast<uint32_t>(i)});
  }
  const auto rewrite = [&](size_t keep) {
    candidates.resize(keep);
    std::ranges::fill(q, 0.0);
    for (const Candidate& kept : candidates) q[kept.id] = kept.q;
  };
  const auto k = static_cast<uint64_t>(params.top_k);
  if (params.top_k > 0 && k < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(k),
                     candidates.end(), Better);
    rewrite(k);
  }
  if (params.top_p < 1) rewrite(PrefixReaching(params.top_p * Sum(BlockSums(q)), &candidates));
}

// Step 9.
size_t Draw(std::span<const double> q, double u) {
  const std::vector<double> blocks = BlockSums(q);
  const double target = u * Sum(blocks);
  double before = 0;  // sum of the blocks done
  size_t b = 0;
  while (b < blocks.size() && !(before + blocks[b] > target)) before += blocks[b++];
  double sum = 0;  // of the block that reaches the target
  for (size_t i = b * kBlock; i < q.size(); ++i) {
    sum += q[i];
    if (before + sum > target) return i;
  }
  // u * sum was rounded up to the sum.
  const auto last = std::find_if(q.rbegin(), q.rend(), [](double x) { return x > 0; });
  HB_CHECK(last != q.rend(), "no token is left of {}", q.size());
  return static_cast<size_t>(q.rend() - last - 1);
}

Status ValidateBiases(std::span<const LogitBias> biases) {
  constexpr size_t kMostBiases = 1024;
  if (biases.size() > kMostBiases) {
    return MakeError("logit_bias is a list of {}; allowed are {}", biases.size(), kMostBiases);
  }
  std::unordered_set<int32_t> seen;
  for (const LogitBias& bias : biases) {
    if (!(bias.bias >= -100 && bias.bias <= 100)) {
      return MakeError("logit_bias is {} for token {}; allowed is -100 to 100", bias.bias,
                       bias.token);
    }
    if (!seen.insert(bias.token).second) {
      return MakeError("logit_bias is given twice for token {}", bias.token);
    }
  }
  return {};
}

}  // namespace

Status Validate(const SamplingParams& params) {
  const auto within = [](double value, double low, double high) {
    return value >= low && value <= high;
  };
  const struct {
    const char* field;
    double value;
    bool ok;
    const char* range;
  } checks[] = {
      {"temperature", params.temperature, within(params.temperature, 0, 2), "0 to 2"},
      {"top_p", params.top_p, params.top_p > 0 && params.top_p <= 1, "above 0, up to 1"},
      {"min_p", params.min_p, within(params.min_p, 0, 1), "0 to 1"},
      {"repetition_penalty", params.repetition_penalty,
       params.repetition_penalty > 0 && params.repetition_penalty <= 10, "above 0, up to 10"},
      {"frequency_penalty", params.frequency_penalty, within(params.frequency_penalty, -2, 2),
       "-2 to 2"},
      {"presence_penalty", params.presence_penalty, within(params.presence_penalty, -2, 2),
       "-2 to 2"},
  };
  for (const auto& check : checks) {
    if (!check.ok) {
      return MakeError("{} is {}; allowed is {}", check.field, check.value, check.range);
    }
  }
  if (params.top_k < -1) {
    return MakeError("top_k is {}; allowed is -1 or 0 (off), or 1 and more", params.top_k);
  }
  return ValidateBiases(params.logit_bias);
}

Result<int> Sample(std::span<const float> logits, const SamplingParams& params,
                   uint32_t output_index, uint32_t choice) {
  HB_RETURN_IF_ERROR(Validate(params));
  HB_ASSIGN_OR_RETURN(const size_t best, FirstLargest(logits));
  if (params.temperature == 0) return static_cast<int>(best);
  static thread_local std::vector<double> kept;  // so that drawing does not allocate
  kept.resize(logits.size());
  const std::span<double> q(kept);
  Exponentials(logits, logits[best], params.temperature, q);
  if (params.min_p > 0) {
    for (double& x : q) x = x < params.min_p ? 0 : x;
  }
  if (params.top_k > 0 || params.top_p < 1) KeepTop(params, q);
  const double u = UniformDraw(params.seed, output_index, choice, DrawPurpose::kSampling);
  return static_cast<int>(Draw(q, u));
}

}  // namespace halfbyte
