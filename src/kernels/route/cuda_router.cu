#include <cfloat>
#include <cmath>

#include "device/cuda/launch.cuh"
#include "kernels/route/cuda_router.h"

namespace halfbyte {
namespace {

constexpr unsigned kWarps = 4;
constexpr size_t kSharedBytes = 48 * 1024;  // of a block, without asking for more
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

// Keys as unsigned numbers in the same order, equal for both zeros; 0 is taken, below all others.
constexpr uint32_t kTaken = 0;
__device__ uint32_t Ordered(float key) {
  const uint32_t bits = __float_as_uint(key + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// The best of a lane's keys, those at lane, lane + 32, ...: ties to the lower index.
struct Best {
  uint32_t key = kTaken;
  int index = 0;
};
__device__ Best BestOfLane(const uint32_t* keys, int count, int lane) {
  Best best;
#pragma unroll 4
  for (int i = lane; i < count; i += 32) {
    const uint32_t key = keys[i];
    if (key > best.key) best = {key, i};
  }
  return best;
}

// The index of the largest key of all lanes, ties to the lower one, which then counts as taken;
// `best` is that of the lane, before and after. There is a key that is not taken.
__device__ int TakeLargest(uint32_t* keys, int count, int lane, Best& best) {
  const uint32_t largest = __reduce_max_sync(kAllLanes, best.key);
  const auto mine = best.key == largest ? static_cast<unsigned>(best.index) : 0xffffffffu;
  const auto index = static_cast<int>(__reduce_min_sync(kAllLanes, mine));
  if (index % 32 == lane) {
    keys[index] = kTaken;
    best = BestOfLane(keys, count, lane);
  }
  return index;
}

// Takes the experts of all but the chosen groups out of the selection; scores + bias are the keys.
__device__ void MaskGroups(const RouterParams& params, uint32_t* keys, uint32_t* group_keys,
                           int lane) {
  const auto key_of = [&](int e) {
    const uint32_t key = keys[e];
    return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
  };
  const auto groups = static_cast<int>(params.groups);
  const auto size = static_cast<int>(params.experts / params.groups);
  for (int g = lane; g < groups; g += 32) {
    float best = kWorst, second = kWorst;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = fmaxf(second, fminf(best, key_of(e)));
      best = fmaxf(best, key_of(e));
    }
    group_keys[g] = Ordered(size == 1 ? best : best + second);
  }
  __syncwarp();
  Best best = BestOfLane(group_keys, groups, lane);
  for (int64_t i = 0; i < params.chosen_groups; ++i) TakeLargest(group_keys, groups, lane, best);
  __syncwarp();
  for (int e = lane; e < static_cast<int>(params.experts); e += 32) {
    if (group_keys[e / size] != kTaken) keys[e] = kTaken;
  }
  __syncwarp();
}

// Shared memory of a warp.
struct Shared {
  float* scores;         // [experts]
  uint32_t* keys;        // [experts]
  uint32_t* group_keys;  // [groups]
  int32_t* ids;          // [top_k]
};

__device__ void SelectByScore(const RouterParams& params, const float* bias, const Shared& shared,
                              int lane) {
  const auto experts = static_cast<int>(params.experts);
  for (int e = lane; e < experts; e += 32) {
    const float key = bias == nullptr ? shared.scores[e] : shared.scores[e] + bias[e];
    shared.keys[e] = Ordered(isnan(key) ? kWorst : key);
  }
  __syncwarp();
  if (params.chosen_groups < params.groups) {
    MaskGroups(params, shared.keys, shared.group_keys, lane);
  }
  Best best = BestOfLane(shared.keys, experts, lane);
  for (int64_t j = 0; j < params.top_k; ++j) {
    const int chosen = TakeLargest(shared.keys, experts, lane, best);
    if (lane == 0) shared.ids[j] = chosen;
  }
}

// By one lane: few numbers, in the order of the choices. Scores of bad logits weigh nothing.
__device__ void WeighRow(const RouterParams& params, const Shared& shared, float* weights) {
  const auto score = [&](int64_t j) { return shared.scores[shared.ids[j]]; };
  const bool softmax = params.renormalization == Renormalization::kSelectedSoftmax;
  float largest = kWorst;
  for (int64_t j = 0; softmax && j < params.top_k; ++j) {
    if (score(j) > largest) largest = score(j);
  }
  const auto value = [&](int64_t j) {
    if (isnan(score(j))) return 0.0f;
    if (!softmax) return score(j);
    return largest == kWorst ? 1.0f : expf(score(j) - largest);
  };
  float divisor = 1;
  if (params.renormalization != Renormalization::kNone) {
    float sum = 0;
    for (int64_t j = 0; j < params.top_k; ++j) sum += value(j);
    if (!softmax) {
      sum += params.epsilon;
      // Identity scores may be negative; only a vanishing sum needs a guard.
      sum = fabsf(sum) < FLT_MIN ? FLT_MIN : sum;
    }
    divisor = sum == 0 ? 1 : sum;
  }
  const float factor = params.scale_on == ScaleOn::kWeights ? params.routed_scaling_factor : 1.0f;
  for (int64_t j = 0; j < params.top_k; ++j) weights[j] = value(j) / divisor * factor;
}

int64_t SharedWords(const RouterParams& params) {
  return 2 * params.experts + params.groups + params.top_k;
}

// A warp for a token.
__global__ void __launch_bounds__(32 * kWarps)
    RouteTokens(const RouterParams params, const RouterCallArguments arguments, int64_t words) {
  extern __shared__ float memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t token = int64_t{blockIdx.x} * (blockDim.x / 32) + warp;
  if (token >= arguments.tokens) return;
  if (threadIdx.x == 0 && arguments.counters != nullptr) {
    const int64_t left = arguments.tokens - token;
    atomicAdd(&arguments.counters->rows,
              static_cast<unsigned long long>(left < blockDim.x / 32 ? left : blockDim.x / 32));
  }
  float* weights = arguments.topk_weights + token * params.top_k;
  if (arguments.positions != nullptr && arguments.positions[token] < 0) {
    for (int64_t j = lane; j < params.top_k; j += 32) {
      arguments.topk_ids[token * params.top_k + j] = -1;
      weights[j] = 0;
    }
    return;
  }
  float* own = memory + warp * words;
  auto* keys = reinterpret_cast<uint32_t*>(own + params.experts);
  const Shared shared{own, keys, keys + params.experts,
                      reinterpret_cast<int32_t*>(keys + params.experts + params.groups)};
  const bool bad = ScoreRow(params, arguments.logits + token * params.experts, own, lane);
  __syncwarp();
  bool known = true;
  if (arguments.table == nullptr) {
    SelectByScore(params, arguments.bias, shared, lane);
  } else {
    const int64_t id = arguments.token_ids[token];
    known = id >= 0 && id < arguments.table_rows;
    for (int64_t j = lane; j < params.top_k; j += 32) {
      shared.ids[j] = known ? arguments.table[id * params.top_k + j] : -1;
    }
  }
  __syncwarp();
  for (int64_t j = lane; j < params.top_k; j += 32) {
    arguments.topk_ids[token * params.top_k + j] = shared.ids[j];
    if (!known) weights[j] = 0;
  }
  if (lane != 0) return;
  if (known) WeighRow(params, shared, weights);
  if (bad && arguments.counters != nullptr) atomicAdd(&arguments.counters->bad_rows, 1ull);
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
  const int64_t words = SharedWords(params);
  const auto bytes = static_cast<size_t>(words) * sizeof(float);
  const unsigned warps = kWarps * bytes <= kSharedBytes ? kWarps : 1;
  const auto grid = static_cast<unsigned>((arguments.tokens + warps - 1) / warps);
  return LaunchKernel(RouteTokens, {grid, 32 * warps, warps * bytes}, stream, params, arguments,
                      words);
}

}  // namespace halfbyte
