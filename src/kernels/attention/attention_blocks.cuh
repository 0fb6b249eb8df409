// Attention with one block for a token and 64 heads, for many tokens. Its warpgroups hand tiles of
// keys on:
//   keys    reads rows, writes tiles of bf16 numbers        -> tiles (2)
//   scores  queries x keys, weights, maxima and sums        -> weights (2)
//   values  two warpgroups with half of the channels each: weights x keys
#pragma once

#include "kernels/attention/attention_softmax.cuh"

namespace halfbyte::attention {

extern __shared__ __align__(1024) uint8_t shared_memory[];

template <class D>
struct BlockLayout {
  static constexpr int kThreads = 512;
  static constexpr uint32_t kWeightBytes = kTileHeads * kTileKeys * 2;

  static constexpr uint32_t kQueries = 0;
  static constexpr uint32_t kKeys = kQueries + D::kTileBytes;
  static constexpr uint32_t kWeights = kKeys + 2 * D::kTileBytes;
  static constexpr uint32_t kFactors = kWeights + 2 * kWeightBytes;  // [2][heads] fp32
  static constexpr uint32_t kShares = kFactors + 2 * kTileHeads * 4;
  static constexpr uint32_t kBarriers = kShares + kTileHeads * 4;
  static constexpr uint32_t kSharedBytes = kBarriers + 9 * 8;
  static_assert(kSharedBytes <= 232448);

  // Of the i-th tile.
  static __device__ __forceinline__ uint32_t At(uint32_t offset) {
    return sm90::SharedAddress(shared_memory) + offset;
  }
  static __device__ __forceinline__ uint32_t Keys(int i) {
    return At(kKeys) + i % 2 * D::kTileBytes;
  }
  static __device__ __forceinline__ uint32_t Weights(int i) {
    return At(kWeights) + i % 2 * kWeightBytes;
  }
  static __device__ __forceinline__ float* Factors(int i) {
    return reinterpret_cast<float*>(shared_memory + kFactors) + i % 2 * kTileHeads;
  }
  static __device__ __forceinline__ float* Shares() {
    return reinterpret_cast<float*>(shared_memory + kShares);
  }
  static __device__ __forceinline__ uint32_t KeysFull(int i) { return At(kBarriers) + i % 2 * 8; }
  static __device__ __forceinline__ uint32_t KeysEmpty(int i) {
    return At(kBarriers) + 16 + i % 2 * 8;
  }
  static __device__ __forceinline__ uint32_t WeightsFull(int i) {
    return At(kBarriers) + 32 + i % 2 * 8;
  }
  static __device__ __forceinline__ uint32_t WeightsEmpty(int i) {
    return At(kBarriers) + 48 + i % 2 * 8;
  }
  static __device__ __forceinline__ uint32_t SharesFull() { return At(kBarriers) + 64; }

  static __device__ __forceinline__ void InitBarriers() {
    for (int i = 0; i < 2; ++i) {
      sm90::BarrierInit(KeysFull(i), 128);
      sm90::BarrierInit(KeysEmpty(i), 8);
      sm90::BarrierInit(WeightsFull(i), 128);
      sm90::BarrierInit(WeightsEmpty(i), 8);
    }
    sm90::BarrierInit(SharesFull(), 128);
    sm90::BarrierInitFence();
  }
  static __device__ __forceinline__ uint32_t FullParity(int i) { return i / 2 % 2; }
  static __device__ __forceinline__ uint32_t EmptyParity(int i) { return FullParity(i) ^ 1; }
};

// The rows of a key that a thread reads: a quarter of each group of 64 channels.
template <class D>
struct KeyRegisters {
  RowPiece pieces[D::kGroups];
  uint2 scales;
};

// A warp has 16 keys of a tile, in two halves of eight: four threads for each key. While the pieces
// of one half become numbers those of the next are read.
template <class D>
__device__ __forceinline__ void DecodeKeys(const KeyList& list) {
  using Layout = BlockLayout<D>;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int quarter = thread % 4;
  const auto key_of = [thread](int half) {
    return half / 2 * kTileKeys + thread / 32 * 16 + half % 2 * 8 + thread % 32 / 4;
  };
  const int halves = 2 * list.tiles();
  KeyRegisters<D> registers;
  RowAddress next = list.Address(key_of(0), list.Row(key_of(0)));
  registers.scales = LoadScales(next);
#pragma unroll
  for (int group = 0; group < D::kGroups; ++group) {
    registers.pieces[group] = LoadPiece<D>(next, 64 * group + 16 * quarter);
  }
  next = list.Address(key_of(1), list.Row(key_of(1)));
  int row = list.Row(key_of(2));
#pragma unroll 1
  for (int half = 0; half < halves; ++half) {
    const int tile = half / 2, key = key_of(half) % kTileKeys;
    if (half % 2 == 0) sm90::BarrierWait(Layout::KeysEmpty(tile), Layout::EmptyParity(tile));
    const uint32_t keys = Layout::Keys(tile);
    const uint2 scales = registers.scales;
    registers.scales = LoadScales(next);
#pragma unroll
    for (int group = 0; group < D::kGroups; ++group) {
      const int channel = 64 * group + 16 * quarter;
      StorePiece<D>(keys + group * kGroupBytes, key, quarter, channel, registers.pieces[group],
                    ScaleOf(scales, group));
      registers.pieces[group] = LoadPiece<D>(next, channel);
    }
    next = list.Address(key_of(half + 2), row);
    row = list.Row(key_of(half + 3));
    if (half % 2 == 1) {
      SharedProxyFence();
      sm90::BarrierArrive(Layout::KeysFull(tile), 1);
    }
  }
}

template <class D>
__device__ __forceinline__ void WeighKeys(const AttentionArguments& a, const KeyList& list,
                                          int first_head) {
  using Layout = BlockLayout<D>;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int head = thread / 32 * 16 + thread % 32 / 4;
  RunningSum running[2];
#pragma unroll 1
  for (int tile = 0; tile < list.tiles(); ++tile) {
    sm90::BarrierWait(Layout::KeysFull(tile), Layout::FullParity(tile));
    float scores[kTileKeys / 2];
    ScoreTile<D>(Layout::At(Layout::kQueries), Layout::Keys(tile), scores);
    TileWeights weights;
    WeighTile<D>(scores, list.count() - tile * kTileKeys, weights);
    const RunningSum::Factors factors[2] = {running[0].Add(weights.maximum[0], weights.sum[0]),
                                            running[1].Add(weights.maximum[1], weights.sum[1])};
    ScaleWeights({factors[0].tile, factors[1].tile}, weights.weights);
    sm90::BarrierWait(Layout::WeightsEmpty(tile), Layout::EmptyParity(tile));
    const uint32_t to = Layout::Weights(tile) + thread * 16;
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      const uint32_t* w = weights.weights + 4 * step;
      StoreShared16(to + step * 2048, {w[0], w[1], w[2], w[3]});
    }
    if (thread % 4 == 0) {
      Layout::Factors(tile)[head] = factors[0].before;
      Layout::Factors(tile)[head + 8] = factors[1].before;
    }
    sm90::BarrierArrive(Layout::WeightsFull(tile), 1);
  }
  if (thread % 4 == 0) {
    for (int row = 0; row < 2; ++row) {
      const int64_t h = first_head + head + 8 * row;
      Layout::Shares()[head + 8 * row] = running[row].Share(h < a.heads ? a.sinks[h] : 0.0f);
    }
  }
  sm90::BarrierArrive(Layout::SharesFull(), 1);
}

template <class D>
__device__ __forceinline__ void SumValues(const AttentionArguments& a, int tiles, int token,
                                          int position, int first_head, int part) {
  using Layout = BlockLayout<D>;
  // Of one product: ptxas refuses wider ones in a kernel of 512 threads.
  constexpr int N = D::kHeadDim == 512 ? 128 : 64, kParts = D::kHeadDim / 2 / N;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int head = thread / 32 * 16 + thread % 32 / 4;
  float sums[kParts][N / 2];
#pragma unroll
  for (auto& of_part : sums) {
#pragma unroll
    for (float& sum : of_part) sum = 0;
  }
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    sm90::BarrierWait(Layout::KeysFull(tile), Layout::FullParity(tile));
    sm90::BarrierWait(Layout::WeightsFull(tile), Layout::FullParity(tile));
    uint32_t weights[4 * kTileSteps];
    const uint32_t from = Layout::Weights(tile) + thread * 16;
#pragma unroll
    for (int step = 0; step < kTileSteps; ++step) {
      const uint4 w = sm90::LoadShared16(from + step * 2048);
      weights[4 * step] = w.x;
      weights[4 * step + 1] = w.y;
      weights[4 * step + 2] = w.z;
      weights[4 * step + 3] = w.w;
    }
    const float factors[2] = {Layout::Factors(tile)[head], Layout::Factors(tile)[head + 8]};
    ScaleSums(factors, sums);
    __syncwarp();
    if (thread % 32 == 0) sm90::BarrierArrive(Layout::WeightsEmpty(tile), 1);
    AddValues<N>(weights, Layout::Keys(tile) + part * (D::kTileBytes / 2), sums);
    sm90::WgmmaWait<0>();
    ReadSums(sums);
    if (thread % 32 == 0) sm90::BarrierArrive(Layout::KeysEmpty(tile), 1);
  }
  sm90::BarrierWait(Layout::SharesFull(), 0);
  const float shares[2] = {Layout::Shares()[head], Layout::Shares()[head + 8]};
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    StoreResults<D>(a, token, position, first_head, part * (D::kHeadDim / 2) + i * N, shares,
                    sums[i]);
  }
}

// grid: tokens, tiles of heads.
template <class D>
__global__ void __launch_bounds__(BlockLayout<D>::kThreads, 1)
    AttendByBlocks(const __grid_constant__ AttentionArguments a) {
  using Layout = BlockLayout<D>;
  const int token = static_cast<int>(blockIdx.x);
  const int first_head = static_cast<int>(blockIdx.y) * kTileHeads;
  if (threadIdx.x == 0) Layout::InitBarriers();
  __syncthreads();
  sm90::LetSuccessorStart();
  sm90::WaitForPredecessor();
  const int position = a.tokens.positions[token];
  if (position < 0) {
    StoreZeros<D, Layout::kThreads>(a, token, first_head, 0, D::kHeadDim,
                                    static_cast<int>(threadIdx.x));
    return;
  }
  const KeyList list(a, token, position);
  const int warpgroup = sm90::Uniform(static_cast<int>(threadIdx.x) / 128);
  if (warpgroup == 0) {
    sm90::GiveRegisters<88>();
    DecodeKeys<D>(list);
  } else if (warpgroup == 1) {
    sm90::GiveRegisters<72>();
    sm90::MathBarrier<384>();
    WeighKeys<D>(a, list, first_head);
  } else {
    sm90::TakeRegisters<176>();
    MakeQueryRows<D, 256>(a, token, position, first_head, 0, kTileHeads,
                          static_cast<int>(threadIdx.x) - 256, Layout::At(Layout::kQueries));
    SharedProxyFence();
    sm90::MathBarrier<384>();
    SumValues<D>(a, list.tiles(), token, position, first_head, warpgroup - 2);
  }
}

}  // namespace halfbyte::attention
