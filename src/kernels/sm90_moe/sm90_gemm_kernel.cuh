// The kernel behind both products (sm90_gemm.h). One block per multiprocessor: a warp that copies
// weights, a warp that copies token images, and W warpgroups that each multiply one strip of 64
// weight rows with the tokens of a tile. Weights become bf16 in registers (sm90_decode.cuh), one
// group of 64 columns ahead of the tensor core.
#pragma once

#include <algorithm>

#include "kernels/sm90_moe/sm90_decode.cuh"
#include "kernels/sm90_moe/sm90_epilogue.cuh"
#include "kernels/sm90_moe/sm90_gemm.h"
#include "kernels/sm90_moe/sm90_ptx.cuh"
#include "sm90_wgmma.cuh"

namespace halfbyte::sm90 {

// Widths N of the products that a kernel knows, ascending; a tile takes the first that holds it.
template <int... kWidths>
struct Widths {
  static constexpr int kLargest = std::max({kWidths...});
};

// How blocks share the strips of all tiles.
enum class Raster {
  // A run of strips for each block, equal within one strip: few tokens, where every strip costs
  // its bytes.
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
  static constexpr int kWeightStages = 2;
  static constexpr int kTokenStages = 4;
  static constexpr int kThreads = 128 * (W + 1);
  static constexpr uint32_t kWeightStageBytes = W * kBlockBytes;
  static constexpr uint32_t kTokenStageBytes = kTokenGroups * N::kLargest * 128;
  static constexpr uint32_t kTokens = 0;  // first, at a multiple of 1,024
  static constexpr uint32_t kWeights = kTokenStages * kTokenStageBytes;
  static constexpr uint32_t kBarriers = kWeights + kWeightStages * kWeightStageBytes;
  static constexpr uint32_t kSharedBytes = kBarriers + 16 * (kWeightStages + kTokenStages);
  static_assert(kSharedBytes <= 232448);
  // Of the 65,536 registers; what the producers give, the others take.
  static constexpr int kProducerRegisters = 32;
  static constexpr int kMathRegisters = W == 2 ? 240 : W == 3 ? 160 : 112;
};

// Weights of one product and its tokens, as the kernel sees them.
struct GemmOperands {
  const uint8_t* weights;  // of local expert 0
  int64_t expert_stride;
  int strips;
  int k_blocks;
  const uint8_t* image;
  const TokenTile* tiles;
  const int32_t* tile_count;
};

// Up to W strips of one tile.
struct StripGroup {
  TokenTile tile;
  int strip;
  int count;
};

// The groups of this block, in order. Only two numbers: registers are short while products run, so
// a group is derived anew where it is needed.
template <class Config>
class StripGroups {
 public:
  __device__ __forceinline__ explicit StripGroups(const GemmOperands& operands) {
    const int count = *operands.tile_count;
    if constexpr (Config::kRaster == Raster::kRuns) {
      const unsigned all = static_cast<unsigned>(count * operands.strips), block = blockIdx.x;
      const unsigned share = all / gridDim.x, longer = all % gridDim.x;
      next_ = static_cast<int>(block * share + min(block, longer));
      end_ = next_ + static_cast<int>(share + (block < longer ? 1 : 0));
    } else {
      next_ = static_cast<int>(blockIdx.x);
      end_ = count * PerTile(operands);
    }
  }
  __device__ __forceinline__ bool Done() const { return next_ >= end_; }
  __device__ __forceinline__ StripGroup Get(const GemmOperands& operands) const {
    StripGroup group;
    int next = next_;
    asm volatile("" : "+r"(next));  // derived anew, not kept
    int tile;
    if constexpr (Config::kRaster == Raster::kRuns) {
      tile = next / operands.strips;
      group.strip = next - tile * operands.strips;
      group.count = min(Config::W, min(end_ - next, operands.strips - group.strip));
    } else {
      tile = next / PerTile(operands);
      group.strip = (next - tile * PerTile(operands)) * Config::W;
      group.count = min(Config::W, operands.strips - group.strip);
    }
    group.tile = operands.tiles[tile];
    return group;
  }
  __device__ __forceinline__ void Advance(const StripGroup& group) {
    next_ += Config::kRaster == Raster::kRuns ? group.count : static_cast<int>(gridDim.x);
  }

 private:
  static __device__ __forceinline__ int PerTile(const GemmOperands& operands) {
    return (operands.strips + Config::W - 1) / Config::W;
  }

  int next_;
  int end_;
};

// The shared memory of a block; its offset in the window of shared memory is 1,024, the first that
// is free, so that stages and barriers are constants.
extern __shared__ __align__(1024) uint8_t shared_memory[];

// A ring of stages in shared memory with a full and an empty barrier each. kStages is a power of 2.
template <uint32_t kBarriers, uint32_t kStages>
struct Ring {
  uint32_t passed = 0;

  static __device__ __forceinline__ uint32_t Full(uint32_t stage) {
    return SharedAddress(shared_memory) + kBarriers + 8 * stage;
  }
  static __device__ __forceinline__ uint32_t Empty(uint32_t stage) {
    return Full(stage) + 8 * kStages;
  }
  static __device__ __forceinline__ void Init(uint32_t consumers) {
    for (uint32_t i = 0; i < kStages; ++i) {
      BarrierInit(Full(i), 1);
      BarrierInit(Empty(i), consumers);
    }
  }
  static __device__ __forceinline__ void Release(uint32_t which) { BarrierArrive(Empty(which)); }

  __device__ __forceinline__ uint32_t stage() const { return passed % kStages; }
  __device__ __forceinline__ uint32_t parity() const { return passed / kStages % 2; }
  __device__ __forceinline__ void WaitFull() const { BarrierWait(Full(stage()), parity()); }
  __device__ __forceinline__ void WaitEmpty() const { BarrierWait(Empty(stage()), parity() ^ 1); }
  __device__ __forceinline__ void Advance() { ++passed; }
  __device__ __forceinline__ void ReleasePrevious() const { Release((passed - 1) % kStages); }
};

template <class Config>
struct Rings {
  Ring<Config::kBarriers, Config::kWeightStages> weights;
  Ring<Config::kBarriers + 16 * Config::kWeightStages, Config::kTokenStages> tokens;
};

template <class Config>
__device__ __forceinline__ void CopyWeights(const GemmOperands& operands, Rings<Config>& rings) {
  const uint64_t policy = EvictFirst();
  const int64_t strip_bytes = operands.k_blocks * kBlockBytes;
  StripGroups<Config> groups(operands);
  while (!groups.Done()) {
    const StripGroup group = groups.Get(operands);
    groups.Advance(group);
    const uint8_t* from =
        operands.weights + group.tile.expert * operands.expert_stride + group.strip * strip_bytes;
    for (int kb = 0; kb < operands.k_blocks; ++kb, from += kBlockBytes) {
      rings.weights.WaitEmpty();
      const uint32_t barrier = rings.weights.Full(rings.weights.stage());
      BarrierArriveExpecting(barrier, group.count * static_cast<uint32_t>(kBlockBytes));
      uint32_t to = SharedAddress(shared_memory) + Config::kWeights +
                    rings.weights.stage() * Config::kWeightStageBytes;
      for (int i = 0; i < group.count; ++i, to += kBlockBytes) {
        BulkLoadHinted(to, from + i * strip_bytes, kBlockBytes, barrier, policy);
      }
      rings.weights.Advance();
    }
  }
}

template <class Config>
__device__ __forceinline__ void CopyTokens(const GemmOperands& operands, Rings<Config>& rings) {
  StripGroups<Config> groups(operands);
  while (!groups.Done()) {
    const StripGroup group = groups.Get(operands);
    groups.Advance(group);
    const uint8_t* from =
        operands.image + int64_t{group.tile.row_begin} * operands.k_blocks * (kBlockK * 2);
    const uint32_t bytes = group.tile.rows * (Config::kTokenGroups * 128);
    const int stages = operands.k_blocks * (kBlockGroups / Config::kTokenGroups);
    for (int i = 0; i < stages; ++i, from += bytes) {
      rings.tokens.WaitEmpty();
      BarrierArriveExpecting(rings.tokens.Full(rings.tokens.stage()), bytes);
      BulkLoad(SharedAddress(shared_memory) + Config::kTokens +
                   rings.tokens.stage() * Config::kTokenStageBytes,
               from, bytes, rings.tokens.Full(rings.tokens.stage()));
      rings.tokens.Advance();
    }
  }
}

// A warpgroup without a strip in this group takes part in the hand-over only.
template <class Config>
__device__ __forceinline__ void SkipGroup(int k_blocks, Rings<Config>& rings, bool elected) {
  for (int kb = 0; kb < k_blocks; ++kb) {
    rings.weights.WaitFull();
    if (elected) rings.weights.Release(rings.weights.stage());
    rings.weights.Advance();
    for (int i = 0; i < kBlockGroups / Config::kTokenGroups; ++i) {
      rings.tokens.WaitFull();
      if (elected) rings.tokens.Release(rings.tokens.stage());
      rings.tokens.Advance();
    }
  }
}

// The token image of one group of 64 columns, as the tensor core is told.
template <class Config>
__device__ __forceinline__ uint64_t TokenGroup(const Rings<Config>& rings, int group,
                                               uint32_t group_bytes) {
  return WgmmaDescriptor(SharedAddress(shared_memory) + Config::kTokens +
                         rings.tokens.stage() * Config::kTokenStageBytes +
                         group % Config::kTokenGroups * group_bytes);
}

// Before the products of a group, and after them: products before the last group have ended.
template <class Config>
__device__ __forceinline__ void BeginGroup(const Rings<Config>& rings, int group) {
  if (group % Config::kTokenGroups == 0) rings.tokens.WaitFull();
}
template <class Config>
__device__ __forceinline__ void EndGroup(Rings<Config>& rings, int group, bool first,
                                         bool elected) {
  if (group % Config::kTokenGroups == 0 && elected && !first) rings.tokens.ReleasePrevious();
  if (group % Config::kTokenGroups == Config::kTokenGroups - 1) rings.tokens.Advance();
}
template <class Config>
__device__ __forceinline__ void ReleaseWeights(const Rings<Config>& rings, bool elected) {
  __syncwarp();
  if (elected) rings.weights.Release(rings.weights.stage());
}

constexpr uint32_t kGroupCodeBytes = kBlockThreads * 16;

// One block of 512 columns: a group is decoded while the products of the one before it run.
template <class Config, int N>
__device__ __forceinline__ void MultiplyBlock(uint32_t block, uint32_t group_bytes, bool first,
                                              bool elected, Rings<Config>& rings,
                                              float (&accumulators)[N / 2],
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
      ReleaseWeights(rings, elected);
    }
    BeginGroup(rings, group);
    const uint64_t tokens = TokenGroup(rings, group, group_bytes);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Wgmma<N>::Run(accumulators, fragment + 4 * step, tokens + 2 * step);
    }
    WgmmaCommit();
    WgmmaWait<1>();
    EndGroup(rings, group, first && group == 0, elected);
  }
}

// The same for wide tiles, where a product takes longer than its decode: every step of 16 columns
// is waited for alone, and decoding runs four steps ahead.
template <class Config, int N>
__device__ __forceinline__ void MultiplyBlockWoven(uint32_t block, uint32_t group_bytes, bool first,
                                                   bool elected, Rings<Config>& rings,
                                                   float (&accumulators)[N / 2],
                                                   uint32_t (&fragments)[2][16]) {
  const uint4 scales = LoadShared16(block + kCodeBytes);
  uint4 words = LoadShared16(block);
  uint4 next = LoadShared16(block + kGroupCodeBytes);
  DecodeGroup(words, GroupScales(scales, 0), fragments[0]);
  words = next;
#pragma unroll
  for (int group = 0; group < kBlockGroups; ++group) {
    BeginGroup(rings, group);
    const uint64_t tokens = TokenGroup(rings, group, group_bytes);
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
    if (group + 2 == kBlockGroups) ReleaseWeights(rings, elected);
    EndGroup(rings, group, first && group == 0, elected);
  }
}

// accumulators[64, N] = strip * tokens over all of K. Rows of the tile beyond group_bytes / 128 are
// whatever lies behind the image; they stay in their columns.
template <class Config, int N>
__device__ __forceinline__ void MultiplyStrip(int k_blocks, uint32_t group_bytes, uint32_t codes,
                                              Rings<Config>& rings, bool elected,
                                              float (&accumulators)[N / 2]) {
  // Not by the first product's flag: registers that look read before they are written would stay
  // occupied around the loop over strips, for every width.
#pragma unroll
  for (int i = 0; i < N / 2; ++i) accumulators[i] = 0;
  uint32_t fragments[2][16];
#pragma unroll 1
  for (int kb = 0; kb < k_blocks; ++kb) {
    rings.weights.WaitFull();
    const uint32_t block = codes + rings.weights.stage() * Config::kWeightStageBytes;
    if constexpr (N >= Config::kWovenFrom) {
      MultiplyBlockWoven<Config, N>(block, group_bytes, kb == 0, elected, rings, accumulators,
                                    fragments);
    } else {
      MultiplyBlock<Config, N>(block, group_bytes, kb == 0, elected, rings, accumulators,
                               fragments);
    }
    rings.weights.Advance();
  }
  WgmmaWait<0>();
  if (elected) rings.tokens.ReleasePrevious();
#pragma unroll
  for (int i = 0; i < N / 2; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}

// The strip of a warpgroup, by the first width that holds the tile.
template <class Config, class Epilogue, int N, int... kWider>
__device__ __forceinline__ void RunStrip(const GemmOperands& operands,
                                         const typename Epilogue::Arguments& out,
                                         const StripGroups<Config>& groups, int rows, int warpgroup,
                                         uint32_t codes, Rings<Config>& rings, bool elected,
                                         Widths<N, kWider...>) {
  if constexpr (sizeof...(kWider) > 0) {
    if (rows > N) {
      RunStrip<Config, Epilogue>(operands, out, groups, rows, warpgroup, codes, rings, elected,
                                 Widths<kWider...>{});
      return;
    }
  }
  float accumulators[N / 2];
  MultiplyStrip<Config, N>(operands.k_blocks, rows * 128u, codes, rings, elected, accumulators);
  const StripGroup group = groups.Get(operands);
  Epilogue::template Store<N>(out, group.tile, group.strip + warpgroup, accumulators);
}

template <class Config, class Epilogue>
__global__ void __launch_bounds__(Config::kThreads, 1)
    GemmKernel(const __grid_constant__ GemmOperands operands,
               const __grid_constant__ typename Epilogue::Arguments out) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Rings<Config> rings;
  if (threadIdx.x == 0) {
    rings.weights.Init(4 * Config::W);
    rings.tokens.Init(4 * Config::W);
    BarrierInitFence();
  }
  __syncthreads();
  LetSuccessorStart();

  if (warp < 4) {
    GiveRegisters<Config::kProducerRegisters>();
    if (warp == 0 && lane == 0) {
      CopyWeights<Config>(operands, rings);
    } else if (warp == 1 && lane == 0) {
      WaitForPredecessor();
      GlobalProxyFence();
      CopyTokens<Config>(operands, rings);
    }
  } else {
    TakeRegisters<Config::kMathRegisters>();
    WaitForPredecessor();
    const int warpgroup = warp / 4 - 1;
    const uint32_t codes = SharedAddress(shared_memory) + Config::kWeights +
                           warpgroup * static_cast<uint32_t>(kBlockBytes) + threadIdx.x % 128 * 16;
    StripGroups<Config> groups(operands);
    while (!groups.Done()) {
      const StripGroup group = groups.Get(operands);
      if (warpgroup < group.count) {
        RunStrip<Config, Epilogue>(operands, out, groups, group.tile.rows, warpgroup, codes, rings,
                                   lane == 0, typename Config::N{});
      } else {
        SkipGroup<Config>(operands.k_blocks, rings, lane == 0);
      }
      groups.Advance(groups.Get(operands));
    }
  }
}

}  // namespace halfbyte::sm90
