// The kernel behind both products (sm90_gemm.h). One block per multiprocessor: a warp that copies
// weights, a warp that copies token images, and W warpgroups that each multiply one strip of 64
// weight rows with the tokens of a tile. Weights become bf16 in registers (sm90_decode.cuh), one
// group of 64 columns ahead of the tensor core.
#pragma once

#include <algorithm>
#include <sm90_wgmma.cuh>  // generated: sm90_wgmma.cmake

#include "kernels/sm90/sm90_ptx.cuh"
#include "kernels/sm90/sm90_ring.cuh"
#include "kernels/sm90_moe/sm90_decode.cuh"
#include "kernels/sm90_moe/sm90_epilogue.cuh"
#include "kernels/sm90_moe/sm90_gemm.h"

namespace halfbyte::sm90 {

// Widths N of the products that a kernel knows, ascending; a tile takes the first that holds it.
template <int... kWidths>
struct Widths {
  static constexpr int kLargest = std::max({kWidths...});
};

// How blocks share the strips of all tiles.
enum class Raster {
  // A run of strips for each block, equal within one strip, of one tile if there are few: for few
  // tokens, where every strip costs its bytes.
  kRuns,
  // Block b takes groups of W strips b, b + grid, ...: many tokens, where blocks that work on the
  // same tile at the same time find its image in the L2 cache.
  kInterleaved,
};

template <int W_, int kTokenGroups_, Raster kRaster_, class Widths_>
struct GemmConfig {
  static constexpr int W = W_;
  static constexpr int kTokenGroups = kTokenGroups_;  // groups of 64 columns in a token stage
  static constexpr Raster kRaster = kRaster_;
  using N = Widths_;
  static constexpr int kWovenFrom = W == 3 ? 128 : 256;  // narrowest N of MultiplyBlockWoven
  // Whether there are registers to load alphas before the products.
  static constexpr bool kLoadsAhead = N::kLargest <= 32;

  static constexpr int kThreads = 128 * (W + 1);
  static constexpr uint32_t kWeightSlots = 2 * W;  // of one block each
  static constexpr uint32_t kTokenStages = 4;
  static constexpr uint32_t kTokenStageBytes = kTokenGroups * N::kLargest * 128;
  static constexpr uint32_t kTokens = 0;  // first, at a multiple of 1,024
  static constexpr uint32_t kWeights = kTokenStages * kTokenStageBytes;
  static constexpr uint32_t kBarriers = kWeights + kWeightSlots * kBlockBytes;
  static constexpr uint32_t kExchange = kBarriers + 16 * (kWeightSlots + kTokenStages);
  static constexpr uint32_t kExchangeBytes = GateUpEpilogue::ExchangeBytes(N::kLargest);
  static constexpr uint32_t kSharedBytes = kExchange + W * kExchangeBytes;
  static_assert(kSharedBytes <= 232448);
  // Of the 65,536 registers; what the producers give, the others take.
  static constexpr int kProducerRegisters = 32;
  static constexpr int kMathRegisters = W == 2 ? 240 : W == 3 ? 160 : 112;
};

// Which tiles of the list a kernel takes; Raster::kRuns takes all.
enum class TilesOf : int32_t { kAll, kWide, kNarrow };

// Weights of one product and its tokens, as the kernel sees them.
struct GemmOperands {
  const uint8_t* weights;  // of local expert 0
  int64_t expert_stride;
  int strips;
  int k_blocks;
  const uint8_t* image;
  const TokenTile* tiles;
  const int32_t* tile_count;
  TilesOf tiles_of;
};

// Up to W strips of one tile.
struct StripGroup {
  TokenTile tile;
  int strip;
  int count;
};

// How many tiles a kernel has: from `begin` on.
struct TileRange {
  int begin;
  int end;
};
__device__ __forceinline__ TileRange LoadTileRange(const GemmOperands& operands) {
  const int all = operands.tile_count[0];
  if (operands.tiles_of == TilesOf::kAll) return {0, all};
  const int wide = operands.tile_count[1];
  return operands.tiles_of == TilesOf::kWide ? TileRange{0, wide} : TileRange{wide, all};
}

// The groups of this block, in order. Only two numbers: registers are short while products run, so
// a group is derived anew where it is needed.
template <class Config>
class StripGroups {
 public:
  __device__ __forceinline__ StripGroups(const GemmOperands& operands, const TileRange& range) {
    if constexpr (Config::kRaster == Raster::kRuns) {
      const unsigned tiles = static_cast<unsigned>(range.end), blocks = gridDim.x,
                     block = blockIdx.x;
      const unsigned strips = static_cast<unsigned>(operands.strips);
      if (tiles != 0 && tiles <= blocks &&
          (strips + blocks / tiles - 1) / (blocks / tiles) <= tiles * strips / blocks + 1) {
        // Every tile has its blocks: where a run crosses from tile to tile, a group is cut short.
        const unsigned tile = block * tiles / blocks;
        const unsigned first = (tile * blocks + tiles - 1) / tiles;
        const unsigned end = ((tile + 1) * blocks + tiles - 1) / tiles;
        next_ = static_cast<int>(tile * strips + (block - first) * strips / (end - first));
        end_ = static_cast<int>(tile * strips + (block - first + 1) * strips / (end - first));
      } else {
        const unsigned share = tiles * strips / blocks, longer = tiles * strips % blocks;
        next_ = static_cast<int>(block * share + min(block, longer));
        end_ = next_ + static_cast<int>(share + (block < longer ? 1 : 0));
      }
    } else {
      next_ = range.begin * PerTile(operands) + static_cast<int>(blockIdx.x);
      end_ = range.end * PerTile(operands);
    }
  }
  __device__ __forceinline__ bool Done() const { return next_ >= end_; }
  __device__ __forceinline__ StripGroup Get(const GemmOperands& operands) const {
    return GetAt(operands, next_);
  }
  // The same, unknown to the compiler, which would keep the group in registers instead.
  __device__ __forceinline__ StripGroup GetAnew(const GemmOperands& operands) const {
    int next = next_;
    asm volatile("" : "+r"(next));
    return GetAt(operands, next);
  }
  __device__ __forceinline__ void Advance(int count) {
    next_ += Config::kRaster == Raster::kRuns ? count : static_cast<int>(gridDim.x);
  }

 private:
  __device__ __forceinline__ StripGroup GetAt(const GemmOperands& operands, int next) const {
    StripGroup group;
    int tile;
    if constexpr (Config::kRaster == Raster::kRuns) {
      tile = next / operands.strips;
      group.strip = next - tile * operands.strips;
      // What is left of the tile, in as few groups as W allows, of equal size.
      const int left = min(end_ - next, operands.strips - group.strip);
      group.count = (left - 1) / ((left + Config::W - 1) / Config::W) + 1;
    } else {
      tile = next / PerTile(operands);
      group.strip = (next - tile * PerTile(operands)) * Config::W;
      group.count = min(Config::W, operands.strips - group.strip);
    }
    group.tile = operands.tiles[tile];
    return group;
  }
  static __device__ __forceinline__ int PerTile(const GemmOperands& operands) {
    return (operands.strips + Config::W - 1) / Config::W;
  }

  int next_;
  int end_;
};

// Weights: block after block, each for one warpgroup. Tokens: stages that all warpgroups read.
template <class Config>
struct Rings {
  using Weights = Ring<Config::kBarriers, Config::kWeightSlots>;
  using Tokens = Ring<Config::kBarriers + 16 * Config::kWeightSlots, Config::kTokenStages>;

  static __device__ __forceinline__ uint32_t WeightSlot(uint32_t index) {
    return SharedAddress(shared_memory) + Config::kWeights +
           index % Config::kWeightSlots * static_cast<uint32_t>(kBlockBytes);
  }
  static __device__ __forceinline__ uint32_t TokenStage(uint32_t index) {
    return SharedAddress(shared_memory) + Config::kTokens +
           index % Config::kTokenStages * Config::kTokenStageBytes;
  }
};

template <class Config>
__device__ __forceinline__ void CopyWeights(const GemmOperands& operands) {
  using Rings = Rings<Config>;
  const uint64_t policy = EvictFirst();
  const int64_t strip_bytes = operands.k_blocks * kBlockBytes;
  uint32_t index = 0;
  StripGroups<Config> groups(operands, LoadTileRange(operands));
  while (!groups.Done()) {
    const StripGroup group = groups.Get(operands);
    groups.Advance(group.count);
    const uint8_t* from =
        operands.weights + group.tile.expert * operands.expert_stride + group.strip * strip_bytes;
#pragma unroll 1
    for (int kb = 0; kb < operands.k_blocks; ++kb, from += kBlockBytes) {
#pragma unroll 1
      for (int i = 0; i < group.count; ++i, ++index) {
        Rings::Weights::WaitEmpty(index);
        BarrierArriveExpecting(Rings::Weights::Full(index), kBlockBytes);
        BulkLoadHinted(Rings::WeightSlot(index), from + i * strip_bytes, kBlockBytes,
                       Rings::Weights::Full(index), policy);
      }
    }
  }
}

template <class Config>
__device__ __forceinline__ void CopyTokens(const GemmOperands& operands) {
  using Rings = Rings<Config>;
  uint32_t index = 0;
  StripGroups<Config> groups(operands, LoadTileRange(operands));
  while (!groups.Done()) {
    const StripGroup group = groups.Get(operands);
    groups.Advance(group.count);
    const uint8_t* from =
        operands.image + int64_t{group.tile.row_begin} * operands.k_blocks * (kBlockK * 2);
    const uint32_t bytes = group.tile.rows * (Config::kTokenGroups * 128);
    const int stages = operands.k_blocks * (kBlockGroups / Config::kTokenGroups);
#pragma unroll 1
    for (int i = 0; i < stages; ++i, from += bytes, ++index) {
      Rings::Tokens::WaitEmpty(index);
      BarrierArriveExpecting(Rings::Tokens::Full(index), bytes);
      BulkLoad(Rings::TokenStage(index), from, bytes, Rings::Tokens::Full(index));
    }
  }
}

// What a math warpgroup knows of the rings and of its part. It waits for the phase of a slot by its
// parity, so the phase before must have been completed: the block that lay there was its own, or
// one that its owner has waited for, as the tokens keep warpgroups within a block of 512 columns.
struct MathState {
  uint32_t weights = 0;   // passed through the ring before the next block of this warpgroup
  uint32_t k_blocks = 0;  // of the tokens passed through the ring
  uint32_t count = 0;     // strips of the group: blocks from one of this warpgroup to the next
  uint32_t arrivals = 0;  // of this thread when it gives a token stage back; 0: not elected
};

// The stages of tokens. A block of 512 columns takes the ring once or twice around, so the place of
// each of its groups is known to the compiler.
template <class Config>
struct TokenRing {
  static constexpr int kStages = Config::kTokenStages;
  static constexpr int kRounds = kBlockGroups / Config::kTokenGroups / kStages;
  static_assert(kRounds * kStages * Config::kTokenGroups == kBlockGroups);
  using Barriers = typename Rings<Config>::Tokens;

  static constexpr __device__ uint32_t Stage(int group) {
    return group / Config::kTokenGroups % kStages;
  }
  static __device__ __forceinline__ void WaitFull(const MathState& state, int group) {
    BarrierWait(Barriers::Full(Stage(group)),
                (state.k_blocks * kRounds + group / Config::kTokenGroups / kStages) % 2);
  }
  // The stage before that of `group`.
  static __device__ __forceinline__ void ReleasePrevious(const MathState& state, int group) {
    const uint32_t stage = (Stage(group) + kStages - 1) % kStages;
    if (state.arrivals != 0) BarrierArrive(Barriers::Empty(stage), state.arrivals);
  }
  // Told to the tensor core; group_bytes of one group of 64 columns.
  static __device__ __forceinline__ uint64_t Descriptor(int group, uint32_t group_bytes) {
    return WgmmaDescriptor(Rings<Config>::TokenStage(Stage(group))) +
           group % Config::kTokenGroups * (group_bytes / 16);
  }
};

// Before the products of a group, and after them: products before the last group have ended.
template <class Config>
__device__ __forceinline__ void BeginGroup(const MathState& state, int group) {
  if (group % Config::kTokenGroups == 0) TokenRing<Config>::WaitFull(state, group);
}
template <class Config>
__device__ __forceinline__ void EndGroup(const MathState& state, int group, bool first) {
  if (group % Config::kTokenGroups == 0 && !first) {
    TokenRing<Config>::ReleasePrevious(state, group);
  }
}
template <class Config>
__device__ __forceinline__ void ReleaseWeights(const MathState& state) {
  __syncwarp();
  if (state.arrivals != 0) BarrierArrive(Rings<Config>::Weights::Empty(state.weights), 1);
}

constexpr uint32_t kGroupCodeBytes = kBlockThreads * 16;

// One block of 512 columns: a group is decoded while the products of the one before it run.
template <class Config, int N>
__device__ __forceinline__ void MultiplyBlock(uint32_t block, uint32_t group_bytes, bool first,
                                              MathState& state, float (&accumulators)[N / 2],
                                              uint32_t (&fragments)[2][16]) {
  const uint4 scales = LoadShared16(block + kCodeBytes);
  uint4 words = LoadShared16(block);
#pragma unroll
  for (int group = 0; group < kBlockGroups; ++group) {
    uint32_t(&fragment)[16] = fragments[group % 2];
    DecodeGroup(words, GroupScales(scales, group), fragment);
    if (group + 1 < kBlockGroups) {
      words = LoadShared16(block + (group + 1) * kGroupCodeBytes);
    } else {
      ReleaseWeights<Config>(state);
    }
    BeginGroup<Config>(state, group);
    const uint64_t tokens = TokenRing<Config>::Descriptor(group, group_bytes);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Wgmma<N>::Run(accumulators, fragment + 4 * step, tokens + 2 * step);
    }
    WgmmaCommit();
    WgmmaWait<1>();
    EndGroup<Config>(state, group, first && group == 0);
  }
}

// The same for wide tiles, where a product takes longer than its decode: every step of 16 columns
// is waited for alone, and decoding runs four steps ahead.
template <class Config, int N>
__device__ __forceinline__ void MultiplyBlockWoven(uint32_t block, uint32_t group_bytes, bool first,
                                                   MathState& state, float (&accumulators)[N / 2],
                                                   uint32_t (&fragments)[2][16]) {
  const uint4 scales = LoadShared16(block + kCodeBytes);
  uint4 words = LoadShared16(block);
  uint4 next = LoadShared16(block + kGroupCodeBytes);
  DecodeGroup(words, GroupScales(scales, 0), fragments[0]);
  words = next;
#pragma unroll
  for (int group = 0; group < kBlockGroups; ++group) {
    BeginGroup<Config>(state, group);
    const uint64_t tokens = TokenRing<Config>::Descriptor(group, group_bytes);
    const bool ahead = group + 1 < kBlockGroups;
    uint2 pair{};
    if (ahead) pair = GroupScales(scales, group + 1);
    if (group + 2 < kBlockGroups) next = LoadShared16(block + (group + 2) * kGroupCodeBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WgmmaFence();
      Wgmma<N>::Run(accumulators, fragments[group % 2] + 4 * step, tokens + 2 * step);
      WgmmaCommit();
      WgmmaWait<4>();
      const uint32_t word = step == 0   ? words.x
                            : step == 1 ? words.y
                            : step == 2 ? words.z
                                        : words.w;
      if (ahead) DecodeWord(word, pair, fragments[(group + 1) % 2] + 4 * step);
    }
    words = next;
    if (group + 2 == kBlockGroups) ReleaseWeights<Config>(state);
    EndGroup<Config>(state, group, first && group == 0);
  }
}

// accumulators[64, N] = strip * tokens over all of K. Rows of the tile beyond group_bytes / 128 are
// whatever lies behind the image; they stay in their columns.
template <class Config, int N>
__device__ __forceinline__ void MultiplyStrip(int k_blocks, uint32_t group_bytes, MathState& state,
                                              float (&accumulators)[N / 2]) {
  // Not by the first product's flag: registers that look read before they are written would stay
  // occupied around the loop over strips, for every width.
#pragma unroll
  for (int i = 0; i < N / 2; ++i) accumulators[i] = 0;
  uint32_t fragments[2][16];
#pragma unroll 1
  for (int kb = 0; kb < k_blocks; ++kb) {
    Rings<Config>::Weights::WaitFull(state.weights);
    const uint32_t block = Rings<Config>::WeightSlot(state.weights) + threadIdx.x % 128 * 16;
    if constexpr (N >= Config::kWovenFrom) {
      MultiplyBlockWoven<Config, N>(block, group_bytes, kb == 0, state, accumulators, fragments);
    } else {
      MultiplyBlock<Config, N>(block, group_bytes, kb == 0, state, accumulators, fragments);
    }
    state.weights += state.count;
    ++state.k_blocks;
  }
  WgmmaWait<0>();
  TokenRing<Config>::ReleasePrevious(state, 0);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}

// The strip of a warpgroup, by the first width that holds the tile.
template <class Config, class Epilogue, int N, int... kWider>
__device__ __forceinline__ void RunStrip(const GemmOperands& operands,
                                         const typename Epilogue::Arguments& out,
                                         const StripGroups<Config>& groups, int rows, int expert,
                                         int warpgroup, MathState& state, Widths<N, kWider...>) {
  if constexpr (sizeof...(kWider) > 0) {
    if (rows > N) {
      RunStrip<Config, Epilogue>(operands, out, groups, rows, expert, warpgroup, state,
                                 Widths<kWider...>{});
      return;
    }
  }
  float accumulators[N / 2];
  typename Epilogue::Alpha alpha;
  if constexpr (Config::kLoadsAhead) alpha = Epilogue::Load(out, expert);
  MultiplyStrip<Config, N>(operands.k_blocks, rows * 128u, state, accumulators);
  const StripGroup group = groups.GetAnew(operands);
  if constexpr (!Config::kLoadsAhead) alpha = Epilogue::Load(out, group.tile.expert);
  const uint32_t exchange =
      SharedAddress(shared_memory) + Config::kExchange + warpgroup * Config::kExchangeBytes;
  Epilogue::template Store<N>(out, alpha, group.tile, group.strip + warpgroup, exchange,
                              accumulators);
}

template <class Config, class Epilogue>
__global__ void __launch_bounds__(Config::kThreads, 1)
    GemmKernel(const __grid_constant__ GemmOperands operands,
               const __grid_constant__ typename Epilogue::Arguments out) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    Rings<Config>::Weights::Init(4);
    Rings<Config>::Tokens::Init(4 * Config::W);
    BarrierInitFence();
  }
  __syncthreads();
  LetSuccessorStart();

  if (warp < 4) {
    GiveRegisters<Config::kProducerRegisters>();
    if (warp == 0 && lane == 0) {
      CopyWeights<Config>(operands);
    } else if (warp == 1 && lane == 0) {
      WaitForPredecessor();
      GlobalProxyFence();
      CopyTokens<Config>(operands);
    }
  } else {
    TakeRegisters<Config::kMathRegisters>();
    WaitForPredecessor();
    const uint32_t warpgroup = Uniform(warp / 4 - 1);
    MathState state;
    state.weights = warpgroup;
    const TileRange range = LoadTileRange(operands);
    StripGroups<Config> groups(operands, {Uniform(range.begin), Uniform(range.end)});
    while (!groups.Done()) {
      const StripGroup group = groups.Get(operands);
      state.count = group.count;
      // The first warpgroup gives token stages back for those that have no strip.
      state.arrivals = lane != 0 ? 0 : warpgroup == 0 ? 1 + Config::W - state.count : 1;
      if (warpgroup < state.count) {
        RunStrip<Config, Epilogue>(operands, out, groups, Uniform(group.tile.rows),
                                   group.tile.expert, static_cast<int>(warpgroup), state,
                                   typename Config::N{});
      } else {
        state.weights += state.count * operands.k_blocks;
        state.k_blocks += operands.k_blocks;
      }
      // Nobody runs ahead of a ring: a parity tells one phase from the next, not from later ones.
      if (state.count < Config::W) MathBarrier<128 * Config::W>();
      groups.Advance(static_cast<int>(state.count));
    }
  }
}

}  // namespace halfbyte::sm90
