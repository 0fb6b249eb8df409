// A block for a token: the threshold digit by digit from histograms, then one pass in the order of
// ids. Keys stay in shared memory; those of very long contexts that find no room there are read
// again from global memory (L2 cache).
#include "device/cuda/launch.cuh"
#include "kernels/indexer/top_k_cuda.h"

namespace halfbyte {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostWarps = kMostThreads / 32;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kMostKept = 52 * 1024;  // keys in shared memory
constexpr unsigned kAllLanes = 0xffffffffu;

struct Shared {
  uint32_t bins[2][kBins];  // one is counted in while the other is cleared
  uint32_t of_warp[kMostWarps];
  uint32_t equal_of_warp[kMostWarps];
  uint32_t digit;
  uint32_t wanted;
};

// The keys of a token, the first `kept` of them in shared memory.
struct Keys {
  const uint32_t* near;
  const uint32_t* far;
  uint32_t kept;
  uint32_t count;

  __device__ uint32_t operator[](uint32_t i) const { return i < kept ? near[i] : __ldcg(far + i); }
};

// Counts the upper digits of all keys, and keeps the keys.
__device__ void LoadKeys(const Keys& keys, uint32_t* near, uint32_t* bins) {
  const auto* fours = reinterpret_cast<const uint4*>(keys.far);
#pragma unroll 4
  for (uint32_t i = 4 * threadIdx.x; i < keys.count; i += 4 * blockDim.x) {
    const uint4 four = __ldcg(fours + i / 4);
    const uint32_t key[4] = {four.x, four.y, four.z, four.w};
    if (i < keys.kept) *reinterpret_cast<uint4*>(near + i) = four;
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      if (i + k < keys.count) atomicAdd(bins + (key[k] >> (32 - kDigitBits)), 1u);
    }
  }
}

// The same of a lower digit, among keys whose bits above it are those of `prefix`.
__device__ void CountDigits(const Keys& keys, uint32_t prefix, int above, int shift,
                            uint32_t* bins) {
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < keys.count; i += blockDim.x) {
    const uint32_t key = keys[i];
    if (key >> above == prefix) atomicAdd(bins + (key >> shift) % kBins, 1u);
  }
}

__device__ uint32_t InclusiveSum(uint32_t x, int lane) {
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(kAllLanes, x, step);
    if (lane >= step) x += before;
  }
  return x;
}

// The largest digit for which `wanted` keys have it or a larger one, into shared.digit; into
// shared.wanted how many are wanted of those that have it. A thread looks at neighbouring bins.
__device__ void FindDigit(Shared& shared, const uint32_t* bins, uint32_t wanted) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t each = kBins / blockDim.x;
  const uint32_t first = kBins - (threadIdx.x + 1) * each;  // larger digits in lower threads
  uint32_t own = 0;
  for (uint32_t i = 0; i < each; ++i) own += bins[first + i];
  const uint32_t within = InclusiveSum(own, static_cast<int>(lane));
  if (lane == 31) shared.of_warp[warp] = within;
  __syncthreads();
  uint32_t larger =
      __reduce_add_sync(kAllLanes, lane < warp ? shared.of_warp[lane] : 0) + within - own;
  if (larger < wanted && larger + own >= wanted) {
    uint32_t digit = first + each - 1;
    while (larger + bins[digit] < wanted) larger += bins[digit--];
    shared.digit = digit;
    shared.wanted = wanted - larger;
  }
  __syncthreads();
}

// The ids of keys above the threshold and of the first `equal_wanted` keys equal to it, ascending.
// A warp goes through neighbouring keys, first to count them.
__device__ void WriteIds(Shared& shared, const Keys& keys, uint32_t threshold,
                         uint32_t equal_wanted, int32_t* ids) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const uint32_t each = (keys.count + blockDim.x - 1) / blockDim.x * 32;
  const uint32_t begin = warp * each;
  const uint32_t end = begin + each < keys.count ? begin + each : keys.count;
  uint32_t above = 0, equal = 0;
#pragma unroll 4
  for (uint32_t i = begin + lane; i < end; i += 32) {
    const uint32_t key = keys[i];
    above += key > threshold ? 1 : 0;
    equal += key == threshold ? 1 : 0;
  }
  above = __reduce_add_sync(kAllLanes, above);
  equal = __reduce_add_sync(kAllLanes, equal);
  if (lane == 0) shared.of_warp[warp] = above;
  if (lane == 0) shared.equal_of_warp[warp] = equal;
  __syncthreads();
  const bool before = lane < warp && lane < warps;
  above = __reduce_add_sync(kAllLanes, before ? shared.of_warp[lane] : 0);
  equal = __reduce_add_sync(kAllLanes, before ? shared.equal_of_warp[lane] : 0);
  const uint32_t lower_lanes = (1u << lane) - 1;
#pragma unroll 2
  for (uint32_t i = begin; i < end; i += 32) {
    const uint32_t key = i + lane < end ? keys[i + lane] : 0;
    const bool is_above = i + lane < end && key > threshold;
    const bool is_equal = i + lane < end && key == threshold;
    const uint32_t all_above = __ballot_sync(kAllLanes, is_above);
    const uint32_t all_equal = __ballot_sync(kAllLanes, is_equal);
    const uint32_t own_equal = equal + __popc(all_equal & lower_lanes);
    if (is_above || (is_equal && own_equal < equal_wanted)) {
      const uint32_t taken = own_equal < equal_wanted ? own_equal : equal_wanted;
      ids[above + __popc(all_above & lower_lanes) + taken] = static_cast<int32_t>(i + lane);
    }
    above += __popc(all_above);
    equal += __popc(all_equal);
  }
}

__global__ void __launch_bounds__(kMostThreads)
    ChooseBest(const TopKArguments arguments, uint32_t kept) {
  __shared__ Shared shared;
  extern __shared__ uint4 memory[];
  auto* near = reinterpret_cast<uint32_t*>(memory);
  const int64_t token = blockIdx.x;
  const auto rate = static_cast<int32_t>(arguments.rate);
  const auto visible = static_cast<uint32_t>((arguments.positions[token] + 1) / rate);
  const auto top_k = static_cast<uint32_t>(arguments.top_k);
  int32_t* ids = arguments.selected + token * arguments.top_k;
  for (uint32_t i = threadIdx.x; i < kBins; i += blockDim.x) shared.bins[0][i] = 0;
  __syncthreads();
  LetNextStart();
  WaitForPrevious();
  if (threadIdx.x == 0) {
    arguments.counts[token] = static_cast<int32_t>(visible < top_k ? visible : top_k);
  }
  if (visible <= top_k) {
    for (uint32_t i = threadIdx.x; i < top_k; i += blockDim.x) {
      ids[i] = i < visible ? static_cast<int32_t>(i) : -1;
    }
    return;
  }
  const Keys keys{near, arguments.scores + token * arguments.stride,
                  kept < visible ? kept : visible, visible};
  LoadKeys(keys, near, shared.bins[0]);
  for (uint32_t i = threadIdx.x; i < kBins; i += blockDim.x) shared.bins[1][i] = 0;
  __syncthreads();
  FindDigit(shared, shared.bins[0], top_k);
  uint32_t threshold = shared.digit, wanted = shared.wanted;
  for (uint32_t i = threadIdx.x; i < kBins; i += blockDim.x) shared.bins[0][i] = 0;
  CountDigits(keys, threshold, 32 - kDigitBits, 32 - 2 * kDigitBits, shared.bins[1]);
  __syncthreads();
  FindDigit(shared, shared.bins[1], wanted);
  threshold = threshold << kDigitBits | shared.digit;
  wanted = shared.wanted;
  // The last digit begins with the bit that the one before ends with.
  constexpr int kLeft = 32 - 2 * kDigitBits;
  CountDigits(keys, threshold, kLeft, 0, shared.bins[0]);
  __syncthreads();
  FindDigit(shared, shared.bins[0], wanted);
  WriteIds(shared, keys, threshold << kLeft | shared.digit, shared.wanted, ids);
}

}  // namespace

cudaError_t LaunchTopK(const TopKArguments& arguments, cudaStream_t stream) {
  if (arguments.top_k < 1 || arguments.rate < 1 || arguments.stride % 4 != 0) {
    return cudaErrorInvalidValue;
  }
  if (arguments.tokens == 0) return cudaSuccess;
  const unsigned threads = arguments.stride <= 2048 ? 256 : arguments.stride <= 4096 ? 512 : 1024;
  const int64_t kept = arguments.stride < kMostKept ? arguments.stride : kMostKept;
  const LaunchShape shape{static_cast<unsigned>(arguments.tokens), threads,
                          static_cast<size_t>(kept) * sizeof(uint32_t)};
  const cudaError_t allowed =
      cudaFuncSetAttribute(ChooseBest, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shape.shared_bytes));
  if (allowed != cudaSuccess) return allowed;
  return LaunchDependent(ChooseBest, shape, stream, arguments, static_cast<uint32_t>(kept));
}

}  // namespace halfbyte
