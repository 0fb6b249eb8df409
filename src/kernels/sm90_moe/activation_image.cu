#include "device/cuda/launch.cuh"
#include "kernels/quantize_nvfp4/quantize_nvfp4_device.cuh"
#include "kernels/sm90_moe/activation_image.h"
#include "kernels/sm90_moe/few_slots.cuh"

namespace halfbyte::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPieces = 8;  // of 16 bytes in the 128 bytes of a row and group
constexpr int64_t kFullGrid = 132 * 8;

// Of an atom: where its 1,024 bytes of the first group are, and how far apart those of two groups.
struct AtomPlace {
  int64_t offset;
  int64_t group_stride;
};
__device__ AtomPlace PlaceOf(const TokenPlan& plan, int64_t atom, int64_t k) {
  const TokenTile tile = plan.tiles[plan.tile_of_atom[atom]];
  const int64_t first = atom - tile.row_begin / kAtomRows;
  return {ImageBytes(tile.row_begin, k) + first * kAtomBytes, tile.rows / kAtomRows * kAtomBytes};
}
__device__ AtomPlace PlaceInTileOfOne(int64_t atom, int64_t k) {
  return {ImageBytes(atom * kAtomRows, k), kAtomBytes};
}
__device__ int64_t PieceOffset(int row, int piece) { return row * 128 + (piece ^ row) * 16; }

constexpr int kGatherThreads = 128;
constexpr int kSlotsAtOnce = 32;

// The plan of few slots for the kernels that read it from memory.
__device__ void WritePlan(const GatherArguments& arguments, const FewSlotsPlan& own) {
  const int i = static_cast<int>(threadIdx.x);
  const TokenPlan& plan = arguments.plan;
  for (int row = i; row < own.tile_count * kTileStep; row += kGatherThreads) {
    int32_t slot = -1;
    for (int s = 0; s < arguments.few.slots; ++s) slot = own.row_of_slot[s] == row ? s : slot;
    plan.slot_of_row[row] = slot;
  }
  if (i < own.tile_count) {
    plan.tiles[i] = own.tiles[i];
    plan.tile_of_atom[i] = i;
  }
  if (i < arguments.few.slots) plan.row_of_slot[i] = own.row_of_slot[i];
  if (i == 0) {
    plan.tile_count[0] = own.tile_count;
    plan.tile_count[1] = 0;
    *plan.row_count = own.tile_count * kTileStep;
  }
}

// The largest finite value of a row, in all threads.
__device__ float RowAmax(const uint32_t* words, int64_t count) {
  __shared__ uint32_t warp_amax[kGatherThreads / 32];
  Magnitudes own;
  for (int64_t i = threadIdx.x; i < count; i += kGatherThreads) {
    own = Join(own, MagnitudesOfPair(words[i]));
  }
  const uint32_t warp = __reduce_max_sync(0xffffffffu, own.largest_bits());
  if (threadIdx.x % 32 == 0) warp_amax[threadIdx.x / 32] = warp;
  __syncthreads();
  uint32_t all = 0;
  for (const uint32_t amax : warp_amax) all = max(all, amax);
  return __uint_as_float(all << 16);
}

// Four blocks over eight lanes: word t of each belongs to block t. `columns`: of the group, that
// there are.
__device__ void RequantizeGroup(uint32_t (&words)[4], int lane, int64_t columns,
                                const BlockScaler& scaler, Nvfp4BlockStats* stats) {
  Magnitudes own;  // of block lane % 4
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    Magnitudes block = MagnitudesOfPair(words[t]);
#pragma unroll
    for (int mask = 1; mask < kPieces; mask *= 2) block = JoinLanes(block, mask);
    if (lane % 4 == t) own = block;
  }
  if (lane < 4 && 16 * lane < columns) scaler.Count(own, stats);
  const BlockScaling scaling(own, scaler);
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    BlockScaling of_block;
    of_block.scale = __shfl_sync(0xffffffffu, scaling.scale, t, kPieces);
    of_block.multiplier = __shfl_sync(0xffffffffu, scaling.multiplier, t, kPieces);
    words[t] = of_block.RequantizePair(words[t]);
  }
}

// blockIdx.x: token, which is read once and written to the images of all its slots; blockIdx.y:
// every gridDim.y-th part of the groups. A thread writes 16-byte pieces: piece c holds, for
// t = 0..3, columns 16 t + 2 c and the next one (KPosition).
template <bool kFew, bool kQuantize>
__global__ void __launch_bounds__(kGatherThreads) Gather(const GatherArguments arguments) {
  constexpr int kGroupsAtOnce = kGatherThreads / kPieces;
  __shared__ uint8_t*
      row_images[kSlotsAtOnce];              // of the first group, before the swizzle; null: none
  __shared__ int64_t strides[kSlotsAtOnce];  // from group to group
  __shared__ int swizzles[kSlotsAtOnce];     // row within its atom
  __shared__ FewSlotsPlan few_plan;
  const int64_t token = blockIdx.x;
  const int piece = threadIdx.x % kPieces;
  const auto* x = reinterpret_cast<const uint32_t*>(arguments.x + token * arguments.k);
  const int64_t groups = PaddedK(arguments.k) / kGroupK;
  if constexpr (kFew) {
    PlanFewSlots(arguments.few, few_plan);
    if (blockIdx.x == 0 && blockIdx.y == 0) {
      WritePlan(arguments, few_plan);
      __threadfence();
      __syncthreads();
    }
  } else {
    WaitForPrevious();
  }
  LetNextStart();  // it reads the plan at once
  GlobalScale global(arguments.quantizer.static_scale);
  const bool own_scale = kQuantize && arguments.quantizer.static_scale == 0;
  if (own_scale) global = GlobalScale::FromAmax(RowAmax(x, arguments.k / 2));
  const BlockScaler scaler(global);
  ThreadStats stats;
  for (int64_t first = 0; first < arguments.top_k; first += kSlotsAtOnce) {
    const auto count = static_cast<int>(min(arguments.top_k - first, int64_t{kSlotsAtOnce}));
    __syncthreads();  // of the last slots everything has been read
    if (static_cast<int>(threadIdx.x) < count) {
      const int64_t slot = token * arguments.top_k + first + threadIdx.x;
      const int32_t at = kFew ? few_plan.row_of_slot[slot] : arguments.plan.row_of_slot[slot];
      row_images[threadIdx.x] = nullptr;
      if (at >= 0) {
        const AtomPlace place = kFew ? PlaceInTileOfOne(at / kAtomRows, arguments.k)
                                     : PlaceOf(arguments.plan, at / kAtomRows, arguments.k);
        const auto row = static_cast<int>(at % kAtomRows);
        row_images[threadIdx.x] = arguments.image + place.offset + row * 128;
        strides[threadIdx.x] = place.group_stride;
        swizzles[threadIdx.x] = row;
        if (blockIdx.y == 0 && own_scale) arguments.row_scales[at] = global.value();
        if (blockIdx.y == 0 && arguments.slot_weights != nullptr) {
          arguments.row_weights[at] = arguments.slot_weights[slot];
        }
      }
    }
    __syncthreads();
    for (int64_t group = blockIdx.y * kGroupsAtOnce + threadIdx.x / kPieces; group < groups;
         group += gridDim.y * kGroupsAtOnce) {
      uint32_t word[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int64_t column = group * kGroupK + 16 * t + 2 * piece;
        word[t] = column < arguments.k ? x[column / 2] : 0;
      }
      if constexpr (kQuantize) {
        RequantizeGroup(word, piece, first == 0 ? arguments.k - group * kGroupK : 0, scaler,
                        &stats.sum);
      }
      for (int i = 0; i < count; ++i) {
        if (row_images[i] == nullptr) continue;
        *reinterpret_cast<uint4*>(row_images[i] + group * strides[i] + (piece ^ swizzles[i]) * 16) =
            make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }
  if (kQuantize && arguments.quantizer.stats != nullptr) stats.AddTo(arguments.quantizer.stats);
}

// Block t of a row and group: word t of each of its pieces.
constexpr int kBlockWords = kPieces;
__device__ void LoadBlock(const uint8_t* group, int row, int t, uint32_t (&words)[kBlockWords]) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    words[piece] = *reinterpret_cast<const uint32_t*>(group + PieceOffset(row, piece) + 4 * t);
  }
}
__device__ void StoreBlock(const uint32_t (&words)[kBlockWords], int row, int t, uint8_t* group) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    *reinterpret_cast<uint32_t*>(group + PieceOffset(row, piece) + 4 * t) = words[piece];
  }
}

// The largest finite value of each row of the atom, in the threads of that row.
__device__ float AtomRowAmax(const uint8_t* image, const AtomPlace& place, int64_t k, int row,
                             int t, bool real) {
  __shared__ uint32_t warp_amax[kWarps][kAtomRows];
  Magnitudes own;
  for (int64_t group = threadIdx.x / 32; group * kGroupK + 16 * t < k && real; group += kWarps) {
    uint32_t words[kBlockWords];
    LoadBlock(image + place.offset + group * place.group_stride, row, t, words);
#pragma unroll
    for (const uint32_t word : words) own = Join(own, MagnitudesOfPair(word));
  }
  own = JoinLanes(JoinLanes(own, 1), 2);
  __syncthreads();  // of the last atom everything has been read
  if (t == 0) warp_amax[threadIdx.x / 32][row] = own.largest_bits();
  __syncthreads();
  uint32_t all = 0;
  for (int w = 0; w < kWarps; ++w) all = max(all, warp_amax[w][row]);
  return __uint_as_float(all << 16);
}

// A block for an atom, or with a static scale several, each for every gridDim.y-th group; a lane
// for a row and one of the four NVFP4 blocks of a group.
__global__ void __launch_bounds__(kThreads) Requantize(const RequantizeArguments arguments) {
  const int t = threadIdx.x % 4, row = threadIdx.x % 32 / 4;
  WaitForPrevious();
  LetNextStart();
  const int64_t atoms = *arguments.plan.row_count / kAtomRows;
  ThreadStats stats;
  for (int64_t atom = blockIdx.x; atom < atoms; atom += gridDim.x) {
    const int64_t at = atom * kAtomRows + row;
    const bool real = arguments.plan.slot_of_row[at] >= 0;
    const AtomPlace place = PlaceOf(arguments.plan, atom, arguments.k);
    GlobalScale global(arguments.static_scale);
    if (arguments.static_scale == 0) {
      global =
          GlobalScale::FromAmax(AtomRowAmax(arguments.image, place, arguments.k, row, t, real));
      if (threadIdx.x < 32 && t == 0 && real) arguments.row_scales[at] = global.value();
    }
    const BlockScaler scaler(global);
    for (int64_t group = blockIdx.y * kWarps + threadIdx.x / 32;
         group * kGroupK + 16 * t < arguments.k && real; group += gridDim.y * kWarps) {
      uint8_t* bytes = arguments.image + place.offset + group * place.group_stride;
      uint32_t words[kBlockWords];
      LoadBlock(bytes, row, t, words);
      RequantizeBlock(words, scaler, &stats.sum);
      StoreBlock(words, row, t, bytes);
    }
  }
  if (arguments.stats != nullptr) stats.AddTo(arguments.stats);
}

}  // namespace

cudaError_t LaunchGather(const GatherArguments& arguments, cudaStream_t stream) {
  if (arguments.tokens == 0) return cudaSuccess;
  // Few tokens: several blocks each, so that the device has enough to do.
  const int64_t steps = PaddedK(arguments.k) / kGroupK / (kGatherThreads / kPieces);
  const int64_t room = CeilDiv(2 * kFullGrid, arguments.tokens);
  const int64_t parts = room < steps ? room : steps < 1 ? 1 : steps;
  const dim3 grid(static_cast<unsigned>(arguments.tokens), static_cast<unsigned>(parts));
  const bool quantize = arguments.quantizer.quantize;
  if (arguments.few.slots > 0) {
    // The predecessor is not one of the layer's kernels and must have ended.
    const auto kernel = quantize ? Gather<true, true> : Gather<true, false>;
    return LaunchKernel(kernel, {grid, kGatherThreads}, stream, arguments);
  }
  const auto kernel = quantize ? Gather<false, true> : Gather<false, false>;
  return LaunchDependent(kernel, {grid, kGatherThreads}, stream, arguments);
}

cudaError_t LaunchRequantize(const RequantizeArguments& arguments, cudaStream_t stream) {
  const int64_t atoms = arguments.max_rows / kAtomRows;
  if (atoms == 0) return cudaSuccess;
  const int64_t blocks = atoms < kFullGrid ? atoms : kFullGrid;
  const int64_t steps = CeilDiv(CeilDiv(arguments.k, kGroupK), kWarps);
  const int64_t room = arguments.static_scale > 0 ? kFullGrid / blocks : 1;
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(room < steps ? room : steps));
  return LaunchDependent(Requantize, {grid, kThreads}, stream, arguments);
}

}  // namespace halfbyte::sm90
