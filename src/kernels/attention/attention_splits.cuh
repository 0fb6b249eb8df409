// Attention for few tokens, spread over the device: one kernel weighs keys, a block for each tile
// of 64; the next sums values, a block for each group of 64 channels. Between them lie, in scratch
// memory, for each token, tile of heads and tile of keys, weights as wgmma takes them, relative to
// the tile's maximum, then maximum and sum of each head.
#pragma once

#include "kernels/attention/attention_softmax.cuh"

namespace halfbyte::attention {

inline constexpr uint32_t kWeightBytes = kTileHeads * kTileKeys * 2;
inline constexpr uint32_t kTileScratchBytes = kWeightBytes + kTileHeads * 8;

// Items of work in the order in which blocks take them.
struct SplitShape {
  int tokens;
  int head_tiles;
  int key_tiles;  // most of a token; tiles of its scratch
};

extern __shared__ __align__(1024) uint8_t shared_memory[];

__device__ __forceinline__ std::byte* ScratchOf(const AttentionArguments& a,
                                                const SplitShape& shape, int token, int head_tile) {
  return a.scratch +
         (int64_t{token} * shape.head_tiles + head_tile) * shape.key_tiles * kTileScratchBytes;
}

template <class D>
struct WeighLayout {
  static constexpr int kThreads = 384;
  static constexpr uint32_t kQueries = 0;
  static constexpr uint32_t kKeys = kQueries + D::kTileBytes;
  static constexpr uint32_t kSharedBytes = kKeys + D::kTileBytes;
};

// A tile of keys, by 128 threads: each has a quarter of two keys.
template <class D>
__device__ __forceinline__ void DecodeTile(const KeyList& list, int tile, int thread,
                                           uint32_t keys) {
  const int quarter = thread % 4;
  RowAddress rows[2];
  int numbers[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    numbers[half] = list.Row(tile * kTileKeys + half * 32 + thread / 4);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half] = list.Address(tile * kTileKeys + half * 32 + thread / 4, numbers[half]);
  }
  RowPiece pieces[2][D::kGroups];
  uint2 scales[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    scales[half] = LoadScales(rows[half]);
#pragma unroll
    for (int group = 0; group < D::kGroups; ++group) {
      pieces[half][group] = LoadPiece<D>(rows[half], 64 * group + 16 * quarter);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int group = 0; group < D::kGroups; ++group) {
      StorePiece<D>(keys + group * kGroupBytes, half * 32 + thread / 4, quarter,
                    64 * group + 16 * quarter, pieces[half][group], ScaleOf(scales[half], group));
    }
  }
}

template <class D>
__global__ void __launch_bounds__(WeighLayout<D>::kThreads, 1)
    WeighSplits(const __grid_constant__ AttentionArguments a, const SplitShape shape) {
  using Layout = WeighLayout<D>;
  const uint32_t queries = sm90::SharedAddress(shared_memory) + Layout::kQueries;
  const uint32_t keys = sm90::SharedAddress(shared_memory) + Layout::kKeys;
  const int warpgroup = sm90::Uniform(static_cast<int>(threadIdx.x) / 128);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  // The next kernel reads rows before this one has ended: all that wrote them have by now.
  sm90::WaitForPredecessor();
  sm90::LetSuccessorStart();
  const int rows = shape.tokens * shape.head_tiles;
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); item < rows * shape.key_tiles;
       item += static_cast<int>(gridDim.x)) {
    const int tile = item / rows, token = item % rows / shape.head_tiles;
    const int head_tile = item % shape.head_tiles;
    const int position = a.tokens.positions[token];
    if (position < 0) continue;
    const KeyList list(a, token, position);
    if (tile >= list.tiles()) continue;
    if (warpgroup == 0) {
      DecodeTile<D>(list, tile, thread, keys);
    } else {
      MakeQueryRows<D, Layout::kThreads - 128>(a, token, position, head_tile * kTileHeads, 0,
                                               kTileHeads, static_cast<int>(threadIdx.x) - 128,
                                               queries);
    }
    SharedProxyFence();
    __syncthreads();
    if (warpgroup == 1) {
      float scores[kTileKeys / 2];
      ScoreTile<D>(queries, keys, scores);
      TileWeights weights;
      WeighTile<D>(scores, list.count() - tile * kTileKeys, weights);
      std::byte* out = ScratchOf(a, shape, token, head_tile) + int64_t{tile} * kTileScratchBytes;
      auto* to = reinterpret_cast<uint4*>(out) + thread;
#pragma unroll
      for (int step = 0; step < kTileSteps; ++step) {
        const uint32_t* w = weights.weights + 4 * step;
        to[step * 128] = {w[0], w[1], w[2], w[3]};
      }
      if (thread % 4 == 0) {
        auto* heads =
            reinterpret_cast<float2*>(out + kWeightBytes) + thread / 32 * 16 + thread % 32 / 4;
        heads[0] = {weights.maximum[0], weights.sum[0]};
        heads[8] = {weights.maximum[1], weights.sum[1]};
      }
    }
    __syncthreads();
  }
}

template <class D>
struct SumLayout {
  static constexpr int kDecoders = 256;
  static constexpr int kThreads = 128 + kDecoders + 32;
  static constexpr int kStages = 12;
  static constexpr int kTilesAtOnce = 6;  // of a decoder

  static constexpr uint32_t kValues = 0;
  static constexpr uint32_t kWeights = kValues + kStages * kGroupBytes;
  static constexpr uint32_t kBarriers = kWeights + kStages * kTileScratchBytes;
  static constexpr uint32_t kSharedBytes = kBarriers + 3 * kStages * 8;
  static_assert(kSharedBytes <= 232448);

  // Of the i-th tile that passes through the block.
  static __device__ __forceinline__ uint32_t At(uint32_t offset) {
    return sm90::SharedAddress(shared_memory) + offset;
  }
  static __device__ __forceinline__ uint32_t Stage(int i) {
    return static_cast<uint32_t>(i) % kStages;
  }
  static __device__ __forceinline__ uint32_t Values(int i) {
    return At(kValues) + Stage(i) * kGroupBytes;
  }
  static __device__ __forceinline__ uint32_t Weights(int i) {
    return At(kWeights) + Stage(i) * kTileScratchBytes;
  }
  static __device__ __forceinline__ uint32_t ValuesFull(int i) {
    return At(kBarriers) + Stage(i) * 8;
  }
  static __device__ __forceinline__ uint32_t WeightsFull(int i) {
    return ValuesFull(i) + kStages * 8;
  }
  static __device__ __forceinline__ uint32_t Empty(int i) { return ValuesFull(i) + kStages * 16; }
  static __device__ __forceinline__ uint32_t FullParity(int i) { return i / kStages % 2; }
  static __device__ __forceinline__ uint32_t EmptyParity(int i) { return FullParity(i) ^ 1; }

  static __device__ __forceinline__ void InitBarriers() {
    for (int i = 0; i < kStages; ++i) {
      sm90::BarrierInit(ValuesFull(i), kDecoders);
      sm90::BarrierInit(WeightsFull(i), 1);
      sm90::BarrierInit(Empty(i), 4);
    }
    sm90::BarrierInitFence();
  }
};

// A group of channels of all keys of a list, tiles [passed, passed + tiles) of the block. A thread
// has a quarter of one key of each tile.
template <class D>
__device__ __forceinline__ void DecodeGroup(const KeyList& list, int group, int passed) {
  using Layout = SumLayout<D>;
  constexpr int kAtOnce = Layout::kTilesAtOnce;
  const int thread = static_cast<int>(threadIdx.x) - 128;
  const int key = thread / 4, quarter = thread % 4, channel = 64 * group + 16 * quarter;
#pragma unroll 1
  for (int first = 0; first < list.tiles(); first += kAtOnce) {
    int numbers[kAtOnce];
    RowPiece pieces[kAtOnce];
    uint32_t scales[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) numbers[i] = list.Row((first + i) * kTileKeys + key);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const RowAddress row = list.Address((first + i) * kTileKeys + key, numbers[i]);
      pieces[i] = LoadPiece<D>(row, channel);
      scales[i] = ScaleOf(LoadScales(row), group);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= list.tiles()) break;
      const int at = passed + first + i;
      sm90::BarrierWait(Layout::Empty(at), Layout::EmptyParity(at));
      StorePiece<D>(Layout::Values(at), key, quarter, channel, pieces[i], scales[i]);
      SharedProxyFence();
      sm90::BarrierArrive(Layout::ValuesFull(at), 1);
    }
  }
}

template <class D>
__device__ __forceinline__ void SumGroup(const AttentionArguments& a, int tiles, int token,
                                         int position, int first_head, int group, int passed) {
  using Layout = SumLayout<D>;
  const int thread = static_cast<int>(threadIdx.x);
  const int head = thread / 32 * 16 + thread % 32 / 4;
  RunningSum running[2];
  float sums[1][32];
#pragma unroll
  for (float& sum : sums[0]) sum = 0;
#pragma unroll 1
  for (int at = passed; at < passed + tiles; ++at) {
    sm90::BarrierWait(Layout::WeightsFull(at), Layout::FullParity(at));
    const uint32_t from = Layout::Weights(at);
    uint32_t weights[4 * kTileSteps];
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      const uint4 w = sm90::LoadShared16(from + thread * 16 + step * 2048);
      weights[4 * step] = w.x;
      weights[4 * step + 1] = w.y;
      weights[4 * step + 2] = w.z;
      weights[4 * step + 3] = w.w;
    }
    RunningSum::Factors factors[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float2 tile = sm90::LoadShared8(from + kWeightBytes + (head + 8 * row) * 8);
      factors[row] = running[row].Add(tile.x, tile.y);
    }
    ScaleWeights({factors[0].tile, factors[1].tile}, weights);
    ScaleSums({factors[0].before, factors[1].before}, sums);
    sm90::BarrierWait(Layout::ValuesFull(at), Layout::FullParity(at));
    AddValues<64>(weights, Layout::Values(at), sums);
    sm90::WgmmaWait<0>();
    ReadSums(sums);
    if (thread % 32 == 0) sm90::BarrierArrive(Layout::Empty(at), 1);
  }
  float shares[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int64_t h = first_head + head + 8 * row;
    shares[row] = running[row].Share(h < a.heads ? a.sinks[h] : 0.0f);
  }
  StoreResults<D>(a, token, position, first_head, 64 * group, shares, sums[0]);
}

template <class D>
__device__ __forceinline__ void CopyWeights(const std::byte* from, int tiles, int passed) {
  using Layout = SumLayout<D>;
#pragma unroll 1
  for (int at = passed; at < passed + tiles; ++at, from += kTileScratchBytes) {
    sm90::BarrierWait(Layout::Empty(at), Layout::EmptyParity(at));
    sm90::BarrierArriveExpecting(Layout::WeightsFull(at), kTileScratchBytes);
    sm90::BulkLoad(Layout::Weights(at), from, kTileScratchBytes, Layout::WeightsFull(at));
  }
}

template <class D>
__global__ void __launch_bounds__(SumLayout<D>::kThreads, 1)
    SumSplits(const __grid_constant__ AttentionArguments a, const SplitShape shape) {
  using Layout = SumLayout<D>;
  if (threadIdx.x == 0) Layout::InitBarriers();
  __syncthreads();
  sm90::LetSuccessorStart();
  const int warp = sm90::Uniform(static_cast<int>(threadIdx.x) / 32);
  const bool sums = warp < 4, decodes = warp >= 4 && warp < 12;
  // Rows may be read before WeighSplits has ended; it has seen the end of whoever wrote them.
  if (!decodes) {
    sm90::WaitForPredecessor();
    sm90::GlobalProxyFence();
  }
  int passed = 0;  // tiles
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); item < shape.tokens * shape.head_tiles * D::kGroups;
       item += static_cast<int>(gridDim.x)) {
    const int group = item % D::kGroups, head_tile = item / D::kGroups % shape.head_tiles;
    const int token = item / D::kGroups / shape.head_tiles, first_head = head_tile * kTileHeads;
    const int position = a.tokens.positions[token];
    if (position < 0) {
      if (sums) {
        StoreZeros<D, 128>(a, token, first_head, 64 * group, 64, static_cast<int>(threadIdx.x));
      }
      continue;
    }
    const KeyList list(a, token, position);
    if (sums) {
      SumGroup<D>(a, list.tiles(), token, position, first_head, group, passed);
    } else if (decodes) {
      DecodeGroup<D>(list, group, passed);
    } else if (threadIdx.x % 32 == 0) {
      CopyWeights<D>(ScratchOf(a, shape, token, head_tile), list.tiles(), passed);
    }
    passed += list.tiles();
  }
}

}  // namespace halfbyte::attention
