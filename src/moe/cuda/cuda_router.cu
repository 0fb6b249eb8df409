#include <cfloat>
#include <cmath>

#include "moe/cuda/cuda_router.h"

namespace halfbyte {
namespace {

constexpr int kWarps = 4;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kWorst = -INFINITY;

__device__ bool IsBad(float logit) { return !(logit <= FLT_MAX); }  // NaN or +infinity

__device__ float Score(RouterScore function, float logit) {
  switch (function) {
    case RouterScore::kSqrtSoftplus:
      return sqrtf(fmaxf(logit, 0.0f) + log1pf(expf(-fabsf(logit))));
    case RouterScore::kSigmoid:
      return 1.0f / (1.0f + expf(-logit));
    default:
      return logit;
  }
}

__device__ float WarpMax(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
__device__ float WarpSum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// scores[e], NaN for bad logits. Returns whether there was one.
__device__ bool ScoreRow(const RouterParams& params, const float* logits, float* scores, int lane) {
  const auto experts = static_cast<int>(params.experts);
  bool bad = false;
  float largest = kWorst;
  for (int e = lane; e < experts; e += 32) {
    const float logit = logits[e];
    bad = bad || IsBad(logit);
    scores[e] = IsBad(logit) ? NAN : Score(params.score, logit);
    if (scores[e] > largest) largest = scores[e];
  }
  bad = __any_sync(kAllLanes, bad);
  if (params.score != RouterScore::kSoftmax) return bad;
  largest = WarpMax(largest);
  float sum = 0;
  for (int e = lane; e < experts; e += 32) {
    if (isnan(scores[e])) continue;
    scores[e] = largest == kWorst ? 1.0f : expf(scores[e] - largest);
    sum += scores[e];
  }
  sum = WarpSum(sum);
  for (int e = lane; e < experts; e += 32) scores[e] /= sum;
  return bad;
}

// The index of the largest of `count` keys, ties to the lower one; NaN keys are taken already.
__device__ int ArgMax(const float* keys, int count, int lane) {
  float best = kWorst;
  int index = count;
  for (int i = lane; i < count; i += 32) {
    if (isnan(keys[i])) continue;
    if (index == count || keys[i] > best) {
      best = keys[i];
      index = i;
    }
  }
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, best, step);
    const int other_index = __shfl_xor_sync(kAllLanes, index, step);
    const bool better = other_index < count &&
                        (index == count || other > best || (other == best && other_index < index));
    if (better) {
      best = other;
      index = other_index;
    }
  }
  return index;
}

// Takes the experts of all but the chosen groups out of the selection. group_keys: scratch.
__device__ void MaskGroups(const RouterParams& params, float* keys, float* group_keys, int lane) {
  const auto groups = static_cast<int>(params.groups);
  const auto size = static_cast<int>(params.experts / params.groups);
  for (int g = lane; g < groups; g += 32) {
    float best = kWorst, second = kWorst;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = fmaxf(second, fminf(best, keys[e]));
      best = fmaxf(best, keys[e]);
    }
    group_keys[g] = size == 1 ? best : best + second;
  }
  __syncwarp();
  for (int64_t i = 0; i < params.chosen_groups; ++i) {
    const int chosen = ArgMax(group_keys, groups, lane);
    __syncwarp();
    if (lane == 0) group_keys[chosen] = NAN;
    __syncwarp();
  }
  for (int e = lane; e < static_cast<int>(params.experts); e += 32) {
    if (!isnan(group_keys[e / size])) keys[e] = NAN;
  }
  __syncwarp();
}

__device__ void SelectByScore(const RouterParams& params, const float* bias, const float* scores,
                              float* keys, float* group_keys, int32_t* ids, int lane) {
  const auto experts = static_cast<int>(params.experts);
  for (int e = lane; e < experts; e += 32) {
    const float key = bias == nullptr ? scores[e] : scores[e] + bias[e];
    keys[e] = isnan(key) ? kWorst : key;
  }
  __syncwarp();
  if (params.chosen_groups < params.groups) MaskGroups(params, keys, group_keys, lane);
  for (int64_t j = 0; j < params.top_k; ++j) {
    const int chosen = ArgMax(keys, experts, lane);
    __syncwarp();
    if (lane == 0) {
      ids[j] = chosen;
      keys[chosen] = NAN;
    }
    __syncwarp();
  }
}

// Softmax over the usable chosen scores; the weights of others stay as they are.
__device__ void SoftmaxOverChosen(const float* scores, const int32_t* ids, int64_t top_k,
                                  float* weights) {
  float largest = kWorst;
  for (int64_t j = 0; j < top_k; ++j) {
    if (scores[ids[j]] > largest) largest = scores[ids[j]];
  }
  float sum = 0;
  for (int64_t j = 0; j < top_k; ++j) {
    if (isnan(scores[ids[j]])) continue;
    weights[j] = largest == kWorst ? 1.0f : expf(scores[ids[j]] - largest);
    sum += weights[j];
  }
  if (sum == 0) return;
  for (int64_t j = 0; j < top_k; ++j) weights[j] /= sum;
}

// One lane does this: few numbers, in the order of the choices.
__device__ void WeighRow(const RouterParams& params, const float* scores, const int32_t* ids,
                         float* weights) {
  float sum = 0;
  for (int64_t j = 0; j < params.top_k; ++j) {
    const float score = scores[ids[j]];
    weights[j] = isnan(score) ? 0.0f : score;
    sum += weights[j];
  }
  float divisor = 1;
  if (params.renormalization == Renormalization::kSelectedSoftmax) {
    SoftmaxOverChosen(scores, ids, params.top_k, weights);
  } else if (params.renormalization == Renormalization::kSum) {
    sum += params.epsilon;
    divisor = fabsf(sum) < FLT_MIN ? FLT_MIN : sum;
  }
  const float factor = params.scale_on == ScaleOn::kWeights ? params.routed_scaling_factor : 1.0f;
  for (int64_t j = 0; j < params.top_k; ++j) weights[j] = weights[j] / divisor * factor;
}

// A warp for a token; shared memory for each: scores, keys, group keys.
__global__ void __launch_bounds__(32 * kWarps)
    RouteTokens(const RouterParams params, const RouterCallArguments arguments) {
  extern __shared__ float memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t token = int64_t{blockIdx.x} * kWarps + warp;
  if (token >= arguments.tokens) return;
  float* scores = memory + warp * (2 * params.experts + params.groups);
  float* keys = scores + params.experts;
  int32_t* ids = arguments.topk_ids + token * params.top_k;
  float* weights = arguments.topk_weights + token * params.top_k;
  const bool bad = ScoreRow(params, arguments.logits + token * params.experts, scores, lane);
  __syncwarp();
  bool known = true;
  if (arguments.table == nullptr) {
    SelectByScore(params, arguments.bias, scores, keys, keys + params.experts, ids, lane);
  } else {
    const int64_t id = arguments.token_ids[token];
    known = id >= 0 && id < arguments.table_rows;
    for (int64_t j = lane; j < params.top_k; j += 32) {
      ids[j] = known ? arguments.table[id * params.top_k + j] : -1;
      if (!known) weights[j] = 0;
    }
    __syncwarp();
  }
  if (lane != 0) return;
  if (known) WeighRow(params, scores, ids, weights);
  if (bad && arguments.bad_rows != nullptr) atomicAdd(arguments.bad_rows, 1ull);
}

bool IsUsable(const RouterParams& params) {
  return params.experts <= kMaxRouterExperts && params.top_k >= 1 &&
         params.top_k <= params.experts && params.groups >= 1 &&
         params.experts % params.groups == 0 && params.chosen_groups >= 1 &&
         params.chosen_groups <= params.groups &&
         params.top_k <= params.chosen_groups * (params.experts / params.groups);
}

}  // namespace

cudaError_t LaunchRouter(const RouterParams& params, const RouterCallArguments& arguments,
                         cudaStream_t stream) {
  if (!IsUsable(params)) return cudaErrorInvalidValue;
  if (arguments.tokens == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>((arguments.tokens + kWarps - 1) / kWarps);
  const auto bytes =
      static_cast<size_t>(kWarps * (2 * params.experts + params.groups)) * sizeof(float);
  RouteTokens<<<grid, 32 * kWarps, bytes, stream>>>(params, arguments);
  return cudaGetLastError();
}

}  // namespace halfbyte
