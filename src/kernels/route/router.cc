#include "kernels/route/router.h"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/simd16_exp.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

using namespace HB_SIMD_NAMESPACE;  // NOLINT: the baseline variants of simd16.h

constexpr float kWorst = -std::numeric_limits<float>::infinity();

bool IsBad(float logit) { return !(logit <= FLT_MAX); }  // NaN or +infinity

float Exp(float x) {
  float lanes[16];
  Store16(lanes, Exp(Set16(x)));
  return lanes[0];
}

// log(1 + e) for e in [0, 1]: 2 artanh(e / (2 + e)), whose series converges fast.
F32x16 Log1p(F32x16 e) {
  constexpr float kCoefficients[] = {2.0f / 13, 2.0f / 11, 2.0f / 9, 2.0f / 7,
                                     2.0f / 5,  2.0f / 3,  2.0f};
  const F32x16 s = Div(e, Add(Set16(2.0f), e));
  const F32x16 squared = Mul(s, s);
  F32x16 p = Set16(2.0f / 15);
  for (const float c : kCoefficients) p = Fma(p, squared, Set16(c));
  return Mul(s, p);
}

F32x16 Score(RouterScore function, F32x16 logit) {
  const F32x16 negative = Mul(Set16(-1.0f), logit);
  switch (function) {
    case RouterScore::kSqrtSoftplus: {
      const F32x16 tail = Log1p(Exp(Min(logit, negative)));  // what softplus is above the logit
      const F32x16 softplus = Add(Max(logit, Zero16()), tail);
      return {_mm256_sqrt_ps(softplus.lo), _mm256_sqrt_ps(softplus.hi)};
    }
    case RouterScore::kSigmoid:
      return Div(Set16(1.0f), Add(Set16(1.0f), Exp(negative)));
    case RouterScore::kSoftmax:
    case RouterScore::kIdentity:
      return logit;
  }
  return logit;
}

// Scores of one row; NaN for bad logits. There is room for whole vectors of scores.
void ScoreRow(const RouterParams& params, const float* logits, float* scores) {
  const int64_t n = params.experts;
  std::copy_n(logits, n, scores);
  for (int64_t e = 0; e < n; e += 16) Store16(scores + e, Score(params.score, Load16(scores + e)));
  for (int64_t e = 0; e < n; ++e) {
    if (IsBad(logits[e])) scores[e] = NAN;
  }
  if (params.score != RouterScore::kSoftmax) return;
  float largest = kWorst;
  for (int64_t e = 0; e < n; ++e) {
    if (scores[e] > largest) largest = scores[e];
  }
  float sum = 0;
  for (int64_t e = 0; e < n; ++e) {
    if (std::isnan(scores[e])) continue;
    scores[e] = largest == kWorst ? 1.0f : Exp(scores[e] - largest);
    sum += scores[e];
  }
  for (int64_t e = 0; e < n; ++e) scores[e] /= sum;
}

// The key of who is out of the selection.
constexpr float kTaken = NAN;

// The top_k largest keys in falling order, ties to the lower id. At least top_k are not taken;
// those chosen are afterwards.
void SelectLargest(std::span<float> keys, int64_t top_k, int32_t* ids) {
  const auto n = static_cast<int64_t>(keys.size());
  for (int64_t j = 0; j < top_k; ++j) {
    F32x16 lanes = Set16(kWorst);
    int64_t e = 0;
    for (; e + 16 <= n; e += 16) lanes = Max(Load16(&keys[static_cast<size_t>(e)]), lanes);
    float largest = LargestLane(lanes);
    for (; e < n; ++e) largest = std::max(largest, keys[static_cast<size_t>(e)]);
    const auto best = std::ranges::find(keys, largest);
    ids[j] = static_cast<int32_t>(best - keys.begin());
    *best = kTaken;
  }
}

// The sum of the two largest keys of a group; of one key, that key.
float GroupKey(const float* keys, int64_t count) {
  float best = kWorst;
  float second = kWorst;
  for (int64_t e = 0; e < count; ++e) {
    second = std::max(second, std::min(best, keys[e]));
    best = std::max(best, keys[e]);
  }
  return count == 1 ? best : best + second;
}

// Takes the experts of all but the chosen groups out of the selection.
void MaskGroups(const RouterParams& params, float* keys) {
  const int64_t size = params.experts / params.groups;
  std::vector<float> group_keys;
  for (int64_t g = 0; g < params.groups; ++g) group_keys.push_back(GroupKey(keys + g * size, size));
  std::vector<int32_t> chosen(static_cast<size_t>(params.chosen_groups));
  SelectLargest(group_keys, params.chosen_groups, chosen.data());
  for (int64_t g = 0; g < params.groups; ++g) {
    if (!std::isnan(group_keys[static_cast<size_t>(g)])) std::fill_n(keys + g * size, size, kTaken);
  }
}

// Softmax over the usable chosen scores; the weights of others stay as they are.
void SoftmaxOverChosen(const float* scores, const int32_t* ids, int64_t top_k, float* weights) {
  float largest = kWorst;
  for (int64_t j = 0; j < top_k; ++j) {
    if (scores[ids[j]] > largest) largest = scores[ids[j]];
  }
  float sum = 0;
  for (int64_t j = 0; j < top_k; ++j) {
    if (std::isnan(scores[ids[j]])) continue;
    weights[j] = largest == kWorst ? 1.0f : Exp(scores[ids[j]] - largest);
    sum += weights[j];
  }
  if (sum == 0) return;
  for (int64_t j = 0; j < top_k; ++j) weights[j] /= sum;
}

void WeighRow(const RouterParams& params, const float* scores, const int32_t* ids, float* weights) {
  float sum = 0;
  for (int64_t j = 0; j < params.top_k; ++j) {
    const float score = scores[ids[j]];
    weights[j] = std::isnan(score) ? 0.0f : score;
    sum += weights[j];
  }
  float divisor = 1;
  if (params.renormalization == Renormalization::kSelectedSoftmax) {
    SoftmaxOverChosen(scores, ids, params.top_k, weights);
  } else if (params.renormalization == Renormalization::kSum) {
    sum += params.epsilon;
    // Identity scores may be negative; only a vanishing sum needs a guard.
    divisor = std::abs(sum) < FLT_MIN ? FLT_MIN : sum;
  }
  const float factor = params.scale_on == ScaleOn::kWeights ? params.routed_scaling_factor : 1.0f;
  for (int64_t j = 0; j < params.top_k; ++j) weights[j] = weights[j] / divisor * factor;
}

void CheckShapes(const RouterParams& params, MatrixView<const float> logits,
                 const MutableRouting& routing) {
  HB_CHECK(params.top_k >= 1 && params.top_k <= params.experts, "top_k {} of {} experts",
           params.top_k, params.experts);
  HB_CHECK(params.groups >= 1 && params.experts % params.groups == 0 && params.chosen_groups >= 1 &&
               params.chosen_groups <= params.groups &&
               params.top_k <= params.chosen_groups * (params.experts / params.groups),
           "{} of {} groups for top_k {} of {} experts", params.chosen_groups, params.groups,
           params.top_k, params.experts);
  HB_CHECK(logits.columns == params.experts, "{} logits for {} experts", logits.columns,
           params.experts);
  HB_CHECK(routing.tokens() == logits.rows && routing.topk_weights.rows == logits.rows &&
               routing.top_k() == params.top_k && routing.topk_weights.columns == params.top_k,
           "ids [{}, {}], weights [{}, {}] for {} tokens, top_k {}", routing.tokens(),
           routing.top_k(), routing.topk_weights.rows, routing.topk_weights.columns, logits.rows,
           params.top_k);
}

// Calls choose(token, scores, keys, ids) for every row; keys is scratch.
template <class Choose>
RouterCounters RouteRows(const Context& context, const RouterParams& params,
                         MatrixView<const float> logits, MutableRouting routing,
                         const Choose& choose) {
  CheckShapes(params, logits, routing);
  std::atomic<int64_t> bad_rows = 0;
  constexpr int64_t kMinScores = 64;  // of about 5 ns each: they outweigh the start of a piece
  const int64_t grain = std::max<int64_t>(1, kMinScores / params.experts);
  context.pool().ParallelFor(logits.rows, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(params.experts + RoundUp(params.experts, 16)));
    float* scores = scratch.data();
    float* keys = scores + RoundUp(params.experts, 16);
    for (int64_t t = begin; t < end; ++t) {
      ScoreRow(params, logits.row(t), scores);
      const bool bad = std::any_of(logits.row(t), logits.row(t) + params.experts, IsBad);
      if (bad) bad_rows.fetch_add(1, std::memory_order_relaxed);
      choose(t, scores, keys, routing.topk_ids.row(t));
      WeighRow(params, scores, routing.topk_ids.row(t), routing.topk_weights.row(t));
    }
  });
  return {logits.rows, bad_rows.load()};
}

}  // namespace

RouterCounters Route(const Context& context, const RouterParams& params,
                     MatrixView<const float> logits, std::span<const float> bias,
                     MutableRouting routing) {
  HB_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == params.experts,
           "bias of {} for {} experts", bias.size(), params.experts);
  return RouteRows(context, params, logits, routing,
                   [&](int64_t, const float* scores, float* keys, int32_t* ids) {
                     for (int64_t e = 0; e < params.experts; ++e) {
                       const float key =
                           bias.empty() ? scores[e] : scores[e] + bias[static_cast<size_t>(e)];
                       keys[e] = std::isnan(key) ? kWorst : key;
                     }
                     if (params.chosen_groups < params.groups) MaskGroups(params, keys);
                     SelectLargest({keys, static_cast<size_t>(params.experts)}, params.top_k, ids);
                   });
}

RouterCounters RouteByTable(const Context& context, const RouterParams& params,
                            MatrixView<const float> logits, MatrixView<const int32_t> table,
                            std::span<const int32_t> token_ids, MutableRouting routing) {
  HB_CHECK(table.columns == params.top_k, "table of {} choices, top_k {}", table.columns,
           params.top_k);
  HB_CHECK(static_cast<int64_t>(token_ids.size()) == logits.rows, "{} token ids for {} rows",
           token_ids.size(), logits.rows);
  return RouteRows(context, params, logits, routing,
                   [&](int64_t t, const float*, float*, int32_t* ids) {
                     const int64_t id = token_ids[static_cast<size_t>(t)];
                     HB_CHECK(id >= 0 && id < table.rows, "token id {} of {}", id, table.rows);
                     std::copy_n(table.row(id), params.top_k, ids);
                   });
}

}  // namespace halfbyte
