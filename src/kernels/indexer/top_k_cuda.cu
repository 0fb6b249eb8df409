// A block for a token, or a cluster of blocks with a part of its keys each: the threshold digit by
// digit from histograms, then one pass in the order of ids. Keys stay in shared memory; what finds
// no room there is read again from global memory (L2 cache).
#include "device/cuda/launch.cuh"
#include "kernels/indexer/top_k_cuda.h"
#include "kernels/sm90/sm90_ptx.cuh"

namespace halfbyte {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostWarps = kMostThreads / 32;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kMostKept = 48 * 1024;  // keys in shared memory
constexpr int64_t kFewKeys = 8 * 1024;
constexpr int64_t kFewTokens = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

struct Shared {
  uint32_t bins[3][kBins];  // of each digit, of this block's keys
  uint32_t of_warp[kMostWarps];
  uint32_t equal_of_warp[kMostWarps];
  uint32_t digit;
  uint32_t wanted;
  uint32_t above;  // this block's keys above the threshold and equal to it
  uint32_t equal;
};

// Of all blocks of a cluster: what they wrote to shared memory before, all see.
template <int kBlocks>
__device__ void Synchronize() {
  if constexpr (kBlocks == 1) {
    __syncthreads();
  } else {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
  }
}
// A number of another block's shared memory, by its address in this one.
__device__ uint32_t LoadOf(int block, const uint32_t* number) {
  uint32_t value;
  asm volatile(
      "{\n.reg .b32 address;\n"
      "mapa.shared::cluster.u32 address, %1, %2;\n"
      "ld.shared::cluster.u32 %0, [address];\n}\n"
      : "=r"(value)
      : "r"(sm90::SharedAddress(number)), "r"(block)
      : "memory");
  return value;
}

// This block's keys of a token, the first `kept` of them in shared memory.
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

// The histogram of all blocks.
template <int kBlocks>
__device__ const uint32_t* AllBins(const uint32_t* bins, int block) {
  Synchronize<kBlocks>();
  if constexpr (kBlocks == 1) {
    return bins;
  } else {
    __shared__ uint32_t sums[kBins];
    for (uint32_t i = threadIdx.x; i < kBins; i += blockDim.x) {
      uint32_t sum = 0;
#pragma unroll
      for (int k = 0; k < kBlocks; ++k) sum += LoadOf((block + k) % kBlocks, bins + i);
      sums[i] = sum;
    }
    __syncthreads();
    return sums;
  }
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

// The ids of keys above the threshold and of the first `equal_wanted` keys equal to it, ascending;
// this block's keys are those from id `first` on. A warp goes through neighbouring keys, first to
// count them.
template <int kBlocks>
__device__ void WriteIds(Shared& shared, const Keys& keys, uint32_t threshold,
                         uint32_t equal_wanted, int block, uint32_t first, int32_t* ids) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t each = (keys.count + blockDim.x - 1) / blockDim.x * 32;
  const uint32_t begin = min(warp * each, keys.count), end = min(begin + each, keys.count);
  uint32_t above = 0, equal = 0;
#pragma unroll 4
  for (uint32_t i = begin + lane; i < end; i += 32) {
    const uint32_t key = keys[i];
    above += key > threshold ? 1 : 0;
    equal += key == threshold ? 1 : 0;
  }
  const uint32_t own_above = __reduce_add_sync(kAllLanes, above);
  const uint32_t own_equal = __reduce_add_sync(kAllLanes, equal);
  if (lane == 0) shared.of_warp[warp] = own_above;
  if (lane == 0) shared.equal_of_warp[warp] = own_equal;
  __syncthreads();
  above = __reduce_add_sync(kAllLanes, lane < warp ? shared.of_warp[lane] : 0);
  equal = __reduce_add_sync(kAllLanes, lane < warp ? shared.equal_of_warp[lane] : 0);
  if constexpr (kBlocks > 1) {
    if (threadIdx.x == blockDim.x - 1) {
      shared.above = above + own_above;
      shared.equal = equal + own_equal;
    }
    Synchronize<kBlocks>();
    for (int other = 0; other < block; ++other) {
      above += LoadOf(other, &shared.above);
      equal += LoadOf(other, &shared.equal);
    }
  }
  const uint32_t lower_lanes = (1u << lane) - 1;
#pragma unroll 2
  for (uint32_t i = begin; i < end; i += 32) {
    const uint32_t key = i + lane < end ? keys[i + lane] : 0;
    const bool is_above = i + lane < end && key > threshold;
    const bool is_equal = i + lane < end && key == threshold;
    const uint32_t all_above = __ballot_sync(kAllLanes, is_above);
    const uint32_t all_equal = __ballot_sync(kAllLanes, is_equal);
    const uint32_t equal_before = equal + __popc(all_equal & lower_lanes);
    if (is_above || (is_equal && equal_before < equal_wanted)) {
      ids[above + __popc(all_above & lower_lanes) + min(equal_before, equal_wanted)] =
          static_cast<int32_t>(first + i + lane);
    }
    above += __popc(all_above);
    equal += __popc(all_equal);
  }
}

template <int kBlocks>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kMostThreads)
    ChooseBest(const TopKArguments arguments, uint32_t room) {
  __shared__ Shared shared;
  extern __shared__ uint4 memory[];
  auto* near = reinterpret_cast<uint32_t*>(memory);
  const int64_t token = blockIdx.x / kBlocks;
  const int block = static_cast<int>(blockIdx.x) % kBlocks;
  const auto rate = static_cast<int32_t>(arguments.rate);
  const auto visible = static_cast<uint32_t>((arguments.positions[token] + 1) / rate);
  const auto top_k = static_cast<uint32_t>(arguments.top_k);
  int32_t* ids = arguments.selected + token * arguments.top_k;
  for (uint32_t i = threadIdx.x; i < 3 * kBins; i += blockDim.x) {
    shared.bins[i / kBins][i % kBins] = 0;
  }
  __syncthreads();
  LetNextStart();
  WaitForPrevious();
  if (threadIdx.x == 0 && block == 0) {
    arguments.counts[token] = static_cast<int32_t>(min(visible, top_k));
  }
  if (visible <= top_k) {
    for (uint32_t i = threadIdx.x; block == 0 && i < top_k; i += blockDim.x) {
      ids[i] = i < visible ? static_cast<int32_t>(i) : -1;
    }
    return;
  }
  const uint32_t part = (visible + 4 * kBlocks - 1) / (4 * kBlocks) * 4;
  const uint32_t first = min(static_cast<uint32_t>(block) * part, visible);
  const uint32_t count = min(part, visible - first);
  const Keys keys{near, arguments.scores + token * arguments.stride + first, min(room, count),
                  count};
  LoadKeys(keys, near, shared.bins[0]);
  FindDigit(shared, AllBins<kBlocks>(shared.bins[0], block), top_k);
  uint32_t threshold = shared.digit, wanted = shared.wanted;
  CountDigits(keys, threshold, 32 - kDigitBits, 32 - 2 * kDigitBits, shared.bins[1]);
  FindDigit(shared, AllBins<kBlocks>(shared.bins[1], block), wanted);
  threshold = threshold << kDigitBits | shared.digit;
  wanted = shared.wanted;
  // The last digit begins with the bit that the one before ends with.
  constexpr int kLeft = 32 - 2 * kDigitBits;
  CountDigits(keys, threshold, kLeft, 0, shared.bins[2]);
  FindDigit(shared, AllBins<kBlocks>(shared.bins[2], block), wanted);
  WriteIds<kBlocks>(shared, keys, threshold << kLeft | shared.digit, shared.wanted, block, first,
                    ids);
  // While others read it, shared memory must stay.
  if constexpr (kBlocks > 1) Synchronize<kBlocks>();
}

template <int kBlocks>
cudaError_t Launch(const TopKArguments& arguments, cudaStream_t stream) {
  const int64_t part = (arguments.stride + 4 * kBlocks - 1) / (4 * kBlocks) * 4;
  const int64_t room = part < kMostKept ? part : kMostKept;
  const unsigned threads = part <= 2048 ? 256 : part <= 4096 ? 512 : kMostThreads;
  const LaunchShape shape{static_cast<unsigned>(arguments.tokens * kBlocks), threads,
                          static_cast<size_t>(room) * sizeof(uint32_t)};
  const cudaError_t allowed =
      cudaFuncSetAttribute(ChooseBest<kBlocks>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shape.shared_bytes));
  if (allowed != cudaSuccess) return allowed;
  return LaunchDependent(ChooseBest<kBlocks>, shape, stream, arguments,
                         static_cast<uint32_t>(room));
}

}  // namespace

cudaError_t LaunchTopK(const TopKArguments& arguments, cudaStream_t stream) {
  if (arguments.top_k < 1 || arguments.rate < 1 || arguments.stride % 4 != 0) {
    return cudaErrorInvalidValue;
  }
  if (arguments.tokens == 0) return cudaSuccess;
  // Clusters only where few tokens leave the machine empty.
  if (arguments.tokens <= kFewTokens && arguments.stride > kFewKeys) {
    return arguments.stride > kMostKept ? Launch<8>(arguments, stream)
                                        : Launch<4>(arguments, stream);
  }
  return Launch<1>(arguments, stream);
}

}  // namespace halfbyte
