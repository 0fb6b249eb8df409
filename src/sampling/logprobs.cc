#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "numerics/exp.h"

namespace halfbyte {

LogprobEntry LogprobsOf(std::span<const float> logits, int32_t token, int32_t top) {
  HB_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size(), "token {} of {}", token,
           logits.size());
  const double max = *std::ranges::max_element(logits);
  std::vector<double> exps(logits.size());
  std::ranges::transform(logits, exps.begin(), [max](float z) { return z - max; });
  ExpAll(exps);
  const double sum = std::accumulate(exps.begin(), exps.end(), 0.0);
  const double norm = max + std::log(sum);
  const auto logprob = [&](int32_t id) -> TokenLogprob {
    return {id, logits[static_cast<size_t>(id)] - norm};
  };
  LogprobEntry entry{.chosen = logprob(token)};
  const auto count = std::min(static_cast<size_t>(std::max(top, 0)), logits.size());
  if (count == 0) return entry;
  // The best so far, best first; nearly every id fails the first comparison.
  std::vector<int32_t> best;
  const auto better = [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];  // ties: a came first
  };
  for (int32_t id = 0; id < std::ssize(logits); ++id) {
    if (best.size() == count && !better(id, best.back())) continue;
    best.insert(std::ranges::upper_bound(best, id, better), id);
    if (best.size() > count) best.pop_back();
  }
  for (const int32_t id : best) entry.top.push_back(logprob(id));
  return entry;
}

}  // namespace halfbyte
