#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "engine/philox.h"

namespace halfbyte {
namespace {

constexpr size_t kBlock = 1024;     // ids per partial sum
constexpr double kVanishes = -746;  // exp of less is 0 in double

struct Candidate {
  double q;
  uint32_t id;
};

bool Better(const Candidate& a, const Candidate& b) { return a.q != b.q ? a.q > b.q : a.id < b.id; }

// The lowest id of the largest logit; errors as Sample.
Result<size_t> ArgMax(std::span<const float> logits) {
  if (logits.empty()) return MakeError("nonfinite_logits: there are no logits");
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      return MakeError(
          "nonfinite_logits: the logit of token {} is {}; halfbyte verify finds bad weights", i,
          logits[i]);
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (std::isinf(logits[best])) return MakeError("nonfinite_logits: no token has a finite logit");
  return best;
}

double Sum(std::span<const double> q) {
  double total = 0;
  for (size_t begin = 0; begin < q.size(); begin += kBlock) {
    double block = 0;
    for (size_t i = begin; i < std::min(begin + kBlock, q.size()); ++i) block += q[i];
    total += block;
  }
  return total;
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
void KeepTop(const SamplingParams& params, std::vector<double>* q) {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < q->size(); ++i) {
    if ((*q)[i] > 0) candidates.push_back({(*q)[i], static_cast<uint32_t>(i)});
  }
  const auto rewrite = [&](size_t keep) {
    candidates.resize(keep);
    std::fill(q->begin(), q->end(), 0.0);
    for (const Candidate& kept : candidates) (*q)[kept.id] = kept.q;
  };
  const auto k = static_cast<uint64_t>(params.top_k);
  if (params.top_k > 0 && k < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(k),
                     candidates.end(), Better);
    rewrite(k);
  }
  if (params.top_p < 1) rewrite(PrefixReaching(params.top_p * Sum(*q), &candidates));
}

// Step 9.
size_t Draw(std::span<const double> q, double u) {
  const double target = u * Sum(q);
  double before = 0;  // sum of the blocks done
  size_t last = q.size();
  for (size_t begin = 0; begin < q.size(); begin += kBlock) {
    double block = 0;
    for (size_t i = begin; i < std::min(begin + kBlock, q.size()); ++i) {
      if (q[i] == 0) continue;
      block += q[i];
      last = i;
      if (before + block > target) return i;
    }
    before += block;
  }
  HB_CHECK(last < q.size(), "no token is left of {}", q.size());
  return last;  // u * sum was rounded up to the sum
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
  HB_ASSIGN_OR_RETURN(const size_t best, ArgMax(logits));
  if (params.temperature == 0) return static_cast<int>(best);
  std::vector<double> q(logits.size());
  const double max = logits[best];
  for (size_t i = 0; i < q.size(); ++i) {
    const double exponent = (logits[i] - max) / params.temperature;
    q[i] = exponent < kVanishes ? 0 : std::exp(exponent);
    if (q[i] < params.min_p) q[i] = 0;
  }
  if (params.top_k > 0 || params.top_p < 1) KeepTop(params, &q);
  const double u = UniformDraw(params.seed, output_index, choice, DrawPurpose::kSampling);
  return static_cast<int>(Draw(q, u));
}

}  // namespace halfbyte
