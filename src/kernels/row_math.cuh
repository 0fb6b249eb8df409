// Row-sized building blocks of kernels that give the bits of the CPU's (row_math.h, segment_sum.h,
// simd16_exp.h): sums in segments of 256 columns, sixteen lanes in each, segments in a binary tree.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>

namespace halfbyte {

inline constexpr int kDeviceSegment = 256;  // kSegmentColumns

__host__ __device__ constexpr int64_t SegmentsOf(int64_t columns) {
  return (columns + kDeviceSegment - 1) / kDeviceSegment;
}

// simd16_exp.h.
__device__ inline float Exp16(float x) {
  constexpr float kRoundToInteger = 0x1.8p23f;
  x = 89.0f < x ? 89.0f : x;  // NaN stays
  x = -88.0f > x ? -88.0f : x;
  float n = x * 1.44269504f;
  n = (n + kRoundToInteger) - kRoundToInteger;
  float r = __fmaf_rn(n, -0x1.62e4p-1f, x);
  r = __fmaf_rn(n, -0x1.7f7d1cp-20f, r);
  float p = 1.0f / 5040;
  p = __fmaf_rn(p, r, 1.0f / 720);
  p = __fmaf_rn(p, r, 1.0f / 120);
  p = __fmaf_rn(p, r, 1.0f / 24);
  p = __fmaf_rn(p, r, 1.0f / 6);
  p = __fmaf_rn(p, r, 0.5f);
  p = __fmaf_rn(p, r, 1.0f);
  p = __fmaf_rn(p, r, 1.0f);
  return p * __uint_as_float(static_cast<uint32_t>(static_cast<int>(n) + 127) << 23);
}

// Of sixteen neighbouring lanes: lane i + lane i+8, then +4, +2, +1. All sixteen get it.
__device__ inline float SumOf16(float x) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The binary tree over `count` sums of segments, `stride` apart, by one thread.
__device__ inline float TreeTotal(const float* sums, int count, int stride = 1) {
  constexpr int kLevels = 16;
  float parts[kLevels];
  float total = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    float sum = sums[i * stride];
    int level = 0;
    for (; (i >> level) % 2 != 0; ++level) sum = parts[level] + sum;
    parts[level] = sum;
  }
  bool any = false;
#pragma unroll 1
  for (int level = 0; level < kLevels; ++level) {
    if ((count >> level) % 2 == 0) continue;
    total = any ? parts[level] + total : parts[level];
    any = true;
  }
  return total;
}

// rsqrt(mean(x^2) + eps) of a row in shared memory, by a block of whole warps; sums: [segments] of
// shared memory. Every thread gets it.
__device__ inline float NormFactor(const float* x, int n, float eps, float* sums) {
  const int half = static_cast<int>(threadIdx.x) / 16, lane = static_cast<int>(threadIdx.x) % 16;
  const int halves = static_cast<int>(blockDim.x) / 16;
  const int segments = static_cast<int>(SegmentsOf(n));
  // Whole warps take part in the exchange between lanes.
  for (int first = 0; first < segments; first += halves) {
    const int segment = first + half;
    float sum = 0;
    const int end = min(n, (segment + 1) * kDeviceSegment);
    for (int i = segment * kDeviceSegment + lane; i < end; i += 16)
      sum = __fmaf_rn(x[i], x[i], sum);
    sum = SumOf16(sum);
    if (lane == 0 && segment < segments) sums[segment] = sum;
  }
  __syncthreads();
  const float mean = TreeTotal(sums, segments) / static_cast<float>(n);
  const float factor = 1.0f / sqrtf(mean + eps);
  __syncthreads();  // sums may be used again
  return factor;
}

}  // namespace halfbyte
