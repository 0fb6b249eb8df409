// From scores to weights and from sums of values to results; attention_cuda.h has the rules. A
// warpgroup holds 64 heads: thread 32 w + 4 g + q has heads 16 w + g and 16 w + g + 8 of a product,
// and in each 8 columns the two from 2 q on.
#pragma once

#include <sm90_wgmma.cuh>  // generated: sm90/sm90_wgmma.cmake

#include "kernels/attention/attention_queries.cuh"
#include "kernels/sm90/sm90_ptx.cuh"

namespace halfbyte::attention {

inline constexpr int kTileSteps = kTileKeys / 16;

// The scores of a tile: one chain over all channels. Returns when they are there.
template <class D>
__device__ __forceinline__ void ScoreTile(uint32_t queries, uint32_t keys,
                                          float (&scores)[kTileKeys / 2]) {
#pragma unroll
  for (float& score : scores) score = 0;
  const uint64_t a = sm90::WgmmaDescriptor(queries), b = sm90::WgmmaDescriptor(keys);
  sm90::WgmmaFence();
#pragma unroll
  for (int step = 0; step < D::kHeadDim / 16; ++step) {
    const uint64_t at = step / 4 * (kGroupBytes / 16) + step % 4 * 2;
    sm90::Wgmma<kTileKeys>::Run(scores, a + at, b + at);
  }
  sm90::WgmmaCommit();
  sm90::WgmmaWait<0>();
#pragma unroll
  for (float& score : scores) asm volatile("" : "+f"(score)::"memory");
}

// Sums of values += weights * values of a tile, in kParts times N channels from the group at
// `values` on. The caller waits.
template <int N, int kParts>
__device__ __forceinline__ void AddValues(const uint32_t (&weights)[4 * kTileSteps],
                                          uint32_t values, float (&sums)[kParts][N / 2]) {
  // Eight keys follow eight keys after 1,024 bytes, a group of channels the one before after its
  // size.
  const uint64_t b = uint64_t{(values & 0x3ffffu) >> 4} | uint64_t{kGroupBytes >> 4} << 16 |
                     uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
  sm90::WgmmaFence();
#pragma unroll
  for (int step = 0; step < kTileSteps; ++step) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      sm90::Wgmma<N>::RunAcross(sums[part], weights + 4 * step,
                                b + part * (N / 64) * (kGroupBytes / 16) + step * (2048 / 16));
    }
  }
  sm90::WgmmaCommit();
}

inline constexpr float kNoMaximum = -0x1p100f;  // below every score that counts

// 2^d of an integer d <= 0; 0 below 2^-60.
__device__ __forceinline__ float PowerOfTwo(float d) {
  return d < -60.0f ? 0.0f : __int_as_float((static_cast<int>(d) + 127) << 23);
}
// exp2 of t - m <= 0; 0 below 2^-60.
__device__ __forceinline__ float Weight(float difference) {
  return difference < -60.0f ? 0.0f : sm90::FastExp2(difference);
}
__device__ __forceinline__ float LargerPower(float maximum, float t) {
  return fmaxf(maximum, ceilf(t));
}

// Of a tile, for a thread's two heads: weights as wgmma takes them for A, relative to `maximum`,
// and their sum.
struct TileWeights {
  uint32_t weights[4 * kTileSteps];
  float maximum[2];
  float sum[2];
};

// `keys` of the tile exist.
template <class D>
__device__ __forceinline__ void WeighTile(float (&scores)[kTileKeys / 2], int keys,
                                          TileWeights& tile) {
  constexpr float kLog2E = 1.44269504f;
  const float factor = kLog2E * (1.0f / sqrtf(static_cast<float>(D::kHeadDim)));
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < kTileKeys / 2; ++i) {
    scores[i] *= factor;
    if (i / 4 * 8 + column + i % 2 >= keys) scores[i] = -INFINITY;
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float largest = -INFINITY;  // NaN is not seen
#pragma unroll
    for (int i = 0; i < kTileKeys / 4; ++i) {
      largest = fmaxf(largest, scores[i / 2 * 4 + 2 * row + i % 2]);
    }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float maximum = LargerPower(kNoMaximum, largest);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kTileKeys / 8; ++i) {
      const uint32_t pair = PackBf16(Weight(scores[4 * i + 2 * row] - maximum),
                                     Weight(scores[4 * i + 2 * row + 1] - maximum));
      sum += LowBf16(pair);
      sum += HighBf16(pair);
      tile.weights[i / 2 * 4 + i % 2 * 2 + row] = pair;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    tile.maximum[row] = maximum;
    tile.sum[row] = sum;
  }
}

// What a head's tiles come to.
struct RunningSum {
  float maximum = kNoMaximum;
  float sum = 0;

  // What weights of the next tile and what is summed so far are multiplied by.
  struct Factors {
    float tile;
    float before;
  };
  __device__ __forceinline__ Factors Add(float tile_maximum, float tile_sum) {
    const float larger = fmaxf(maximum, tile_maximum);
    const Factors factors{PowerOfTwo(tile_maximum - larger), PowerOfTwo(maximum - larger)};
    sum = sum * factors.before + tile_sum * factors.tile;
    maximum = larger;
    return factors;
  }
  // What sums of values are multiplied by in the end.
  __device__ __forceinline__ float Share(float sink) const {
    constexpr float kLog2E = 1.44269504f;
    const float t = sink * kLog2E;
    const float larger = LargerPower(maximum, t);
    const float before = PowerOfTwo(maximum - larger);
    const float weight = LowBf16(PackBf16(Weight(t - larger), 0));
    return before * (1.0f / (sum * before + weight));
  }
};

__device__ __forceinline__ void ScaleWeights(const float (&factors)[2],
                                             uint32_t (&weights)[4 * kTileSteps]) {
  const uint32_t of_rows[2] = {PackBf16(factors[0], factors[0]), PackBf16(factors[1], factors[1])};
#pragma unroll
  for (int i = 0; i < 4 * kTileSteps; ++i) weights[i] = MultiplyBf16(weights[i], of_rows[i % 2]);
}

template <int kParts, int kCount>
__device__ __forceinline__ void ScaleSums(const float (&factors)[2],
                                          float (&sums)[kParts][kCount]) {
  if (__all_sync(0xffffffffu, factors[0] == 1 && factors[1] == 1)) return;
#pragma unroll
  for (auto& part : sums) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) part[i] *= factors[i / 2 % 2];
  }
}

// After a wait for products: registers have what they are said to have.
template <int kParts, int kCount>
__device__ __forceinline__ void ReadSums(float (&sums)[kParts][kCount]) {
#pragma unroll
  for (auto& part : sums) {
#pragma unroll
    for (float& sum : part) asm volatile("" : "+f"(sum)::"memory");
  }
}

// Results of channels [channel, channel + 2 * kCount) of the heads of a tile.
template <class D, int kCount>
__device__ __forceinline__ void StoreResults(const AttentionArguments& a, int token, int position,
                                             int first_head, int channel, const float (&share)[2],
                                             const float (&sums)[kCount]) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int head = first_head + thread / 32 * 16 + thread % 32 / 4 + 8 * row;
    if (head >= a.heads) continue;
    Bf16* out = a.attended + (int64_t{token} * a.heads + head) * D::kHeadDim;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      const int c = channel + 8 * i + thread % 4 * 2;
      uint32_t pair =
          PackBf16(sums[4 * i + 2 * row] * share[row], sums[4 * i + 2 * row + 1] * share[row]);
      if (c >= D::kFp8Dim) {
        const int64_t angle = position * a.rope.pairs + (c - D::kFp8Dim) / 2;
        pair = RotatePair(pair, a.rope.cos[angle], -a.rope.sin[angle]);
      }
      *reinterpret_cast<uint32_t*>(out + c) = pair;
    }
  }
}

// The results of a padding token, by kThreads threads with thread = 0 .. kThreads - 1.
template <class D, int kThreads>
__device__ __forceinline__ void StoreZeros(const AttentionArguments& a, int token, int first_head,
                                           int channel, int channels, int thread) {
  const int pairs = channels / 2;
  for (int i = thread; i < kTileHeads * pairs; i += kThreads) {
    const int head = first_head + i / pairs;
    if (head >= a.heads) break;
    const int64_t row = int64_t{token} * a.heads + head;
    reinterpret_cast<uint32_t*>(a.attended + row * D::kHeadDim + channel)[i % pairs] = 0;
  }
}

}  // namespace halfbyte::attention
