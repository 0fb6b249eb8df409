// Rows of the KV cache encoded by a block from numbers in shared memory: byte for byte
// EncodeKvRow and EncodeIndexRow (kv_row.h), into the two parts of device_step.h. All threads of
// the block call them; threads are whole warps.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "numerics/bf16.h"
#include "numerics/fp8_block.h"
#include "numerics/mxfp4_block.h"

namespace halfbyte {

// The largest magnitude over a warp.
__device__ inline float WarpAmax(float x) {
  float largest = fabsf(x);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  }
  return largest;
}

// x: [head_dim], the last rope_dim rotated. Blocks of 64 codes, a warp for each.
__device__ inline void EncodeKvRowParts(const float* x, int head_dim, int rope_dim, std::byte* main,
                                        std::byte* scales) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int codes = head_dim - rope_dim;
  for (int b = warp; b * 64 < codes; b += warps) {
    const int at = b * 64 + lane;
    const float first = at < codes ? x[at] : 0.0f;
    const float second = at + 32 < codes ? x[at + 32] : 0.0f;
    const uint8_t scale = Fp8BlockScale(WarpAmax(fmaxf(fabsf(first), fabsf(second))));
    if (at < codes) main[at] = std::byte{Fp8Encode(first, scale)};
    if (at + 32 < codes) main[at + 32] = std::byte{Fp8Encode(second, scale)};
    if (lane == 0) scales[b] = std::byte{scale};
  }
  auto* const rotary = reinterpret_cast<Bf16*>(main + codes);
  for (int i = static_cast<int>(threadIdx.x); i < rope_dim; i += static_cast<int>(blockDim.x)) {
    const float value = x[codes + i];
    rotary[i] = ToBf16(fabsf(value) < 0x1p-52f ? 0.0f : value);
  }
}

// x: [dim], a power of two of at least 32; used up.
__device__ inline void EncodeIndexRowParts(float* x, int dim, std::byte* main, std::byte* scales) {
  const int threads = static_cast<int>(blockDim.x);
  for (int half = 1; half < dim; half *= 2) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < dim / 2; i += threads) {
      const int at = i / half * 2 * half + i % half;
      const float a = x[at], b = x[at + half];
      x[at] = a + b;
      x[at + half] = a - b;
    }
  }
  __syncthreads();
  const float factor = 1.0f / sqrtf(static_cast<float>(dim));
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int b = warp; b < dim / kMxfp4Block; b += threads / 32) {
    const float value = RoundToBf16(x[b * kMxfp4Block + lane] * factor);
    const uint8_t scale = Mxfp4BlockScale(WarpAmax(value));
    const uint8_t code = E2m1FromFloat(value / E8m0ToFloat(scale));
    const auto next = static_cast<uint8_t>(__shfl_down_sync(0xffffffffu, code, 1));
    if (lane % 2 == 0) main[(b * kMxfp4Block + lane) / 2] = std::byte{PackE2m1(code, next)};
    if (lane == 0) scales[b] = std::byte{scale};
  }
}

// RotatePairs of the last 2 * pairs of x [n], forward, rounded to bf16.
__device__ inline void RotateTail(float* x, int n, const float* cos, const float* sin, int pairs) {
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += static_cast<int>(blockDim.x)) {
    float* const pair = x + n - 2 * pairs + 2 * i;
    const float even = pair[0], odd = pair[1];
    pair[0] = RoundToBf16(even * cos[i] - odd * sin[i]);
    pair[1] = RoundToBf16(even * sin[i] + odd * cos[i]);
  }
}

}  // namespace halfbyte
