// The queries of a token: head norm, rotation, and the tile that wgmma reads.
#pragma once

#include "kernels/attention/attention_keys.cuh"

namespace halfbyte::attention {

__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ __forceinline__ float LowBf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float HighBf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// A pair of rotated numbers, as RotatePairs (kernels/rope/rope.h) has it; the inverse has -sin.
__device__ __forceinline__ uint32_t RotatePair(uint32_t pair, float cos, float sin) {
  const float even = LowBf16(pair), odd = HighBf16(pair);
  return PackBf16(even * cos - odd * sin, even * sin + odd * cos);
}

// Heads [first_head, first_head + kTileHeads) of a token, those that exist, as RmsNorm and
// ApplyRope make them, bf16 after each; the others are zeros. The tile has heads where a tile of
// keys has keys. Its rows [begin, end) by kThreads threads with thread = 0 .. kThreads - 1.
template <class D, int kThreads>
__device__ __forceinline__ void MakeQueryRows(const AttentionArguments& a, int token, int position,
                                              int first_head, int begin, int end, int thread,
                                              uint32_t tile) {
  // Eight threads for a segment of up to 256 channels: two of its sixteen lanes each.
  constexpr int kSegments = (D::kHeadDim + 255) / 256;
  constexpr int kSteps = D::kHeadDim / kSegments / 16;
  constexpr int kHeadThreads = 8 * kSegments;
  static_assert(kThreads % 32 == 0 && kSegments <= 2);
  const int part = thread % kHeadThreads;
  const int channel = part / 8 * 256 + part % 8 * 2;
#pragma unroll 1
  for (int row = begin + thread / kHeadThreads; row < end; row += kThreads / kHeadThreads) {
    const int head = first_head + row;
    const bool exists = head < a.heads;
    uint32_t x[kSteps];
    const auto* from = reinterpret_cast<const uint32_t*>(
        a.queries + (int64_t{token} * a.heads + head) * D::kHeadDim + channel);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) x[k] = exists ? from[8 * k] : 0;
    float low = 0, high = 0;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      low = __fmaf_rn(LowBf16(x[k]), LowBf16(x[k]), low);
      high = __fmaf_rn(HighBf16(x[k]), HighBf16(x[k]), high);
    }
#pragma unroll
    for (int width = 4; width >= 1; width /= 2) {
      low += __shfl_xor_sync(0xffffffffu, low, width);
      high += __shfl_xor_sync(0xffffffffu, high, width);
    }
    float sum = low + high;
    if constexpr (kSegments == 2) sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(D::kHeadDim) + a.norm_eps);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int c = channel + 16 * k;
      uint32_t pair = PackBf16(LowBf16(x[k]) * factor, HighBf16(x[k]) * factor);
      const bool may_turn = (kSegments - 1) * 256 + 14 + 16 * k >= D::kFp8Dim;  // known by k
      if (may_turn && c >= D::kFp8Dim) {
        const int64_t angle = position * a.rope.pairs + (c - D::kFp8Dim) / 2;
        pair = RotatePair(pair, a.rope.cos[angle], a.rope.sin[angle]);
      }
      const auto piece = static_cast<uint32_t>(c % 64 / 8 ^ row % 8);
      const uint32_t address = tile + c / 64 * kGroupBytes + static_cast<uint32_t>(row) * 128 +
                               piece * 16 + static_cast<uint32_t>(c % 8) * 2;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(pair) : "memory");
    }
  }
}

}  // namespace halfbyte::attention
