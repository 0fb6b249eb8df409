#include "device/cuda/launch.cuh"
#include "kernels/dispatch_plan/token_plan.h"

namespace halfbyte {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kSlotsPerWarp = kPlanChunkSlots / kWarps;
constexpr int kSteps = kSlotsPerWarp / 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ int32_t LocalExpertOf(const TokenPlanArguments& arguments, int64_t slot) {
  if (slot >= arguments.slots) return -1;
  const int32_t id = arguments.topk_ids[slot];
  return id < 0 || id >= arguments.global_experts ? -1 : arguments.local_of_global[id];
}

// counts[chunk][expert] = slots of the chunk on the expert. Only for more than one chunk.
__global__ void __launch_bounds__(kThreads)
    CountSlots(const TokenPlanArguments arguments, int32_t* counts) {
  extern __shared__ int32_t histogram[];
  LetNextStart();
  for (int e = threadIdx.x; e < arguments.local_experts; e += kThreads) histogram[e] = 0;
  __syncthreads();
  const int64_t first = blockIdx.x * kPlanChunkSlots;
  for (int64_t i = threadIdx.x; i < kPlanChunkSlots; i += kThreads) {
    const int32_t e = LocalExpertOf(arguments, first + i);
    if (e >= 0) atomicAdd(&histogram[e], 1);  // integers: any order gives the same sum
  }
  __syncthreads();
  for (int e = threadIdx.x; e < arguments.local_experts; e += kThreads) {
    counts[int64_t{blockIdx.x} * arguments.local_experts + e] = histogram[e];
  }
}

// Shared memory of PlanTokens, by local expert.
struct Shared {
  int32_t* positions;   // [kWarps][experts]: counts of a warp, then where its next slot goes
  int32_t* rows;        // real ones of the whole call
  int32_t* first_atom;  // exclusive scans over the experts
  int32_t* first_wide;
  int32_t* first_narrow;
};

// What an expert takes, or all of them.
struct Sizes {
  int32_t atoms;
  int32_t wide;  // tiles
  int32_t narrow;
};
// Packed for scans: 24, 20 and 20 bits.
__device__ uint64_t Pack(const Sizes& s) {
  return static_cast<uint64_t>(s.atoms) << 40 | static_cast<uint64_t>(s.wide) << 20 |
         static_cast<uint64_t>(s.narrow);
}
__device__ Sizes Unpack(uint64_t packed) {
  return {static_cast<int32_t>(packed >> 40), static_cast<int32_t>(packed >> 20 & 0xfffff),
          static_cast<int32_t>(packed & 0xfffff)};
}
__device__ Sizes SizesOfExpert(const TokenPlanArguments& arguments, int32_t rows) {
  const int32_t tiles = TilesOfExpert(rows, arguments.max_tile_rows);
  const int32_t wide = WideTilesOfExpert(rows, tiles, arguments.wide_tile_rows);
  return {AtomsOfExpert(rows), wide, tiles - wide};
}

// The first so many warps of this block have slots.
__device__ int WarpsWithSlots(const TokenPlanArguments& arguments) {
  const int64_t slots = arguments.slots - blockIdx.x * kPlanChunkSlots;
  const int64_t warps = (slots + kSlotsPerWarp - 1) / kSlotsPerWarp;
  return static_cast<int>(warps < kWarps ? warps : kWarps);
}

// Turns the warps' counts into their first positions within the expert, and fills rows.
__device__ void ScanWarps(const TokenPlanArguments& arguments, const int32_t* counts,
                          const Shared& shared) {
  const int experts = arguments.local_experts, warps = WarpsWithSlots(arguments);
  for (int e = threadIdx.x; e < experts; e += kThreads) {
    int32_t before = 0, total = 0;
    if (gridDim.x > 1) {
#pragma unroll 8
      for (int chunk = 0; chunk < static_cast<int>(gridDim.x); ++chunk) {
        const int32_t count = counts[int64_t{chunk} * experts + e];
        if (chunk < static_cast<int>(blockIdx.x)) before += count;
        total += count;
      }
    }
    int32_t count[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      count[w] = w < warps ? shared.positions[w * experts + e] : 0;
    }
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warps) shared.positions[w * experts + e] = before;
      before += count[w];
    }
    shared.rows[e] = gridDim.x > 1 ? total : before;
  }
}

// The exclusive scans; returns the totals.
__device__ Sizes ScanExperts(const TokenPlanArguments& arguments, const Shared& shared) {
  __shared__ uint64_t warp_sums[kWarps];
  const int experts = arguments.local_experts;
  const int each = (experts + kThreads - 1) / kThreads;
  const int begin = static_cast<int>(threadIdx.x) * each;
  const auto size = [&](int e) { return Pack(SizesOfExpert(arguments, shared.rows[e])); };
  uint64_t own = 0;
  for (int e = begin; e < begin + each && e < experts; ++e) own += size(e);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t inclusive = own;
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t left = __shfl_up_sync(kAllLanes, inclusive, step);
    if (lane >= step) inclusive += left;
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  uint64_t before = inclusive - own, total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  for (int e = begin; e < begin + each && e < experts; ++e) {
    const Sizes at = Unpack(before);
    shared.first_atom[e] = at.atoms;
    shared.first_wide[e] = at.wide;
    shared.first_narrow[e] = at.narrow;
    before += size(e);
  }
  return Unpack(total);
}

// The tiles of one expert and what points to them: every `step`-th part of it from `first` on.
__device__ void WriteTilesOfExpert(const TokenPlanArguments& arguments, const TokenPlan& plan,
                                   const Shared& shared, int32_t all_wide, int32_t e, int first,
                                   int step) {
  const int32_t rows = shared.rows[e];
  const int32_t first_row = shared.first_atom[e] * kTileStep;
  const Sizes own = SizesOfExpert(arguments, rows);
  const int32_t tiles = own.wide + own.narrow;
  for (int32_t i = first; i < tiles; i += step) {
    const TokenTile tile = TileOfExpert(e, first_row, rows, i, tiles);
    const int32_t index =
        i < own.wide ? shared.first_wide[e] + i : all_wide + shared.first_narrow[e] + i - own.wide;
    plan.tiles[index] = tile;
    const int32_t first_atom = tile.row_begin / kTileStep;
    for (int32_t atom = 0; atom < tile.rows / kTileStep; ++atom) {
      plan.tile_of_atom[first_atom + atom] = index;
    }
  }
  for (int32_t row = rows + first; row < own.atoms * kTileStep; row += step) {
    plan.slot_of_row[first_row + row] = -1;
  }
}

// Of every gridDim.x-th expert: a thread for one with few tiles, a warp for one with many.
__device__ void WriteTiles(const TokenPlanArguments& arguments, const TokenPlan& plan,
                           const Shared& shared, int32_t all_wide) {
  const int lane = threadIdx.x % 32;
  const int32_t few = 4 * arguments.max_tile_rows;
  const int32_t stride = kThreads * static_cast<int32_t>(gridDim.x);
  for (auto first = static_cast<int32_t>(blockIdx.x + gridDim.x * (threadIdx.x - lane));
       first < arguments.local_experts; first += stride) {
    const auto e = first + static_cast<int32_t>(gridDim.x) * lane;
    const int32_t rows = e < arguments.local_experts ? shared.rows[e] : 0;
    if (rows > 0 && rows <= few) {
      WriteTilesOfExpert(arguments, plan, shared, all_wide, e, 0, 1);
    }
    for (unsigned large = __ballot_sync(kAllLanes, rows > few); large != 0; large &= large - 1) {
      const int32_t which = first + static_cast<int32_t>(gridDim.x) * (__ffs(large) - 1);
      WriteTilesOfExpert(arguments, plan, shared, all_wide, which, lane, 32);
    }
  }
}

// One block for each chunk; every block scans the experts for itself.
__global__ void __launch_bounds__(kThreads)
    PlanTokens(const TokenPlanArguments arguments, const TokenPlan plan) {
  extern __shared__ int32_t memory[];
  const int experts = arguments.local_experts;
  const Shared shared{memory, memory + kWarps * experts, memory + (kWarps + 1) * experts,
                      memory + (kWarps + 2) * experts, memory + (kWarps + 3) * experts};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = blockIdx.x * kPlanChunkSlots + warp * kSlotsPerWarp + lane;
  int32_t expert[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) expert[i] = LocalExpertOf(arguments, first + 32 * i);
  const int warps = WarpsWithSlots(arguments);
  for (int i = threadIdx.x; i < warps * experts; i += kThreads) shared.positions[i] = 0;
  __syncthreads();
  int32_t* positions = shared.positions + warp * experts;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (expert[i] >= 0) atomicAdd(&positions[expert[i]], 1);
  }
  __syncthreads();
  WaitForPrevious();  // for the counts, and before anything is written
  LetNextStart();
  ScanWarps(arguments, plan.counts, shared);
  __syncthreads();
  const Sizes totals = ScanExperts(arguments, shared);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int32_t e = expert[i];
    const unsigned same = __match_any_sync(kAllLanes, e);
    const int before = __popc(same & ((1u << lane) - 1));
    const int32_t position = e >= 0 ? positions[e] + before : 0;
    __syncwarp();
    if (e >= 0 && before == 0) positions[e] += __popc(same);
    __syncwarp();
    const int64_t slot = first + 32 * i;
    if (slot >= arguments.slots) continue;
    const int32_t row = e >= 0 ? shared.first_atom[e] * kTileStep + position : -1;
    plan.row_of_slot[slot] = row;
    if (e >= 0) plan.slot_of_row[row] = static_cast<int32_t>(slot);
  }
  WriteTiles(arguments, plan, shared, totals.wide);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    plan.tile_count[0] = totals.wide + totals.narrow;
    plan.tile_count[1] = totals.wide;
    *plan.row_count = totals.atoms * kTileStep;
  }
}

int PlanSharedBytes(int64_t experts) {
  return static_cast<int>((kWarps + 4) * experts * int64_t{sizeof(int32_t)});
}

}  // namespace

cudaError_t PrepareTokenPlan() {
  return cudaFuncSetAttribute(PlanTokens, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              PlanSharedBytes(kMaxPlanExperts));
}

cudaError_t LaunchTokenPlan(const TokenPlanArguments& arguments, const TokenPlan& plan,
                            cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(PlanChunks(arguments.slots));
  if (chunks > 1) {
    const auto bytes = static_cast<size_t>(arguments.local_experts) * sizeof(int32_t);
    const cudaError_t error =
        LaunchKernel(CountSlots, {chunks, kThreads, bytes}, stream, arguments, plan.counts);
    if (error != cudaSuccess) return error;
  }
  const auto bytes = static_cast<size_t>(PlanSharedBytes(arguments.local_experts));
  if (chunks > 1) {
    return LaunchDependent(PlanTokens, {chunks, kThreads, bytes}, stream, arguments, plan);
  }
  return LaunchKernel(PlanTokens, {chunks, kThreads, bytes}, stream, arguments, plan);
}

}  // namespace halfbyte
