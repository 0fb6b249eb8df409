// What becomes of the accumulators: h (gate_up) or slot values (down). Thread 32 * w + 4 * g + t of
// a warpgroup holds, for j < N / 8 and e in 0, 1, row 16 * w + g of its strip at token 8 j + 2 t +
// e in accumulators[4 j + e], and row 16 * w + g + 8 in accumulators[4 j + 2 + e].
#pragma once

#include <cuda_bf16.h>

#include "kernels/sm90_moe/sm90_gemm.h"
#include "kernels/sm90_moe/sm90_ptx.cuh"

namespace halfbyte::sm90 {

// Two tokens' numbers, 1 where there are none.
__device__ __forceinline__ float2 RowPair(const float* rows, int64_t row) {
  return rows == nullptr ? float2{1, 1} : __ldcg(reinterpret_cast<const float2*>(rows + row));
}

struct GateUpEpilogue {
  struct Arguments {
    const float* alpha_gate;
    const float* alpha_up;
    const float* row_scale;
    const float* row_weight;
    float limit;
    float swiglu_alpha;
    float swiglu_add;
    uint8_t* h_image;
    int64_t row_bytes;  // of the image of h
    int strips;
    int groups;  // of 64 columns with channels; those up to row_bytes are filled with zeros
  };

  // exp and the quotient are within a few units of fp32; one rounding to bf16 follows.
  static __device__ __forceinline__ float SwiGlu(const Arguments& a, float gate, float up,
                                                 float weight) {
    constexpr float kLog2E = 1.44269504f;
    const float g = MinNan(gate, a.limit);
    const float u = MaxNan(MinNan(up, a.limit), -a.limit);
    const float power = FastExp2(g * (-a.swiglu_alpha * kLog2E));
    return g * FastReciprocal(1.0f + power) * (u + a.swiglu_add) * weight;
  }

  // What a strip needs of its expert.
  using Alpha = float2;
  static __device__ __forceinline__ Alpha Load(const Arguments& a, int expert) {
    return {__ldg(a.alpha_gate + expert) * kEpilogueFactor,
            __ldg(a.alpha_up + expert) * kEpilogueFactor};
  }

  template <int N>
  static __device__ __forceinline__ void Store(const Arguments& a, Alpha alpha,
                                               const TokenTile& tile, int strip,
                                               const float (&accumulators)[N / 2]) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int row = thread % 32 / 4;  // after the transposition: the token within its atom
    const int piece = strip % 2 * 4 + thread / 32;
    uint8_t* image = a.h_image + tile.row_begin * a.row_bytes;
    uint8_t* to = image + int64_t{strip / 2} * (tile.rows * 128) + row * 128 + (piece ^ row) * 16 +
                  thread % 4 * 4;
    const int64_t first = tile.row_begin + thread % 4 * 2;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      if (8 * j >= tile.rows) break;
      const float2 scale = RowPair(a.row_scale, first + 8 * j);
      const float2 weight = RowPair(a.row_weight, first + 8 * j);
      const float h0 = SwiGlu(a, accumulators[4 * j] * (alpha.x * scale.x),
                              accumulators[4 * j + 2] * (alpha.y * scale.x), weight.x);
      const float h1 = SwiGlu(a, accumulators[4 * j + 1] * (alpha.x * scale.y),
                              accumulators[4 * j + 3] * (alpha.y * scale.y), weight.y);
      const __nv_bfloat162 pair = __floats2bfloat162_rn(h0, h1);
      *reinterpret_cast<uint32_t*>(to + j * kAtomBytes) =
          Transpose8x8(*reinterpret_cast<const uint32_t*>(&pair));
    }
    if (strip == a.strips - 1) {
      const int64_t end = tile.rows * a.row_bytes;
      for (int64_t i = int64_t{a.groups} * (tile.rows * 128) + thread * 16; i < end;
           i += 128 * 16) {
        *reinterpret_cast<uint4*>(image + i) = uint4{0, 0, 0, 0};
      }
    }
  }
};

struct DownEpilogue {
  struct Arguments {
    const float* alpha;
    const float* row_scale;
    float* slot_values;
    int64_t hidden;
  };

  using Alpha = float;
  static __device__ __forceinline__ Alpha Load(const Arguments& a, int expert) {
    return __ldg(a.alpha + expert) * kEpilogueFactor;
  }

  template <int N>
  static __device__ __forceinline__ void Store(const Arguments& a, Alpha alpha,
                                               const TokenTile& tile, int strip,
                                               const float (&accumulators)[N / 2]) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int64_t slab = int64_t{strip} * kStripRows + thread / 32 * 16;
    if (slab >= a.hidden) return;
    const int64_t first = tile.row_begin + thread % 4 * 2;
    float* to = a.slot_values + first * a.hidden + slab + thread % 32 / 4;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      if (8 * j >= tile.rows) break;
      const float2 scale = RowPair(a.row_scale, first + 8 * j);
      float* at = to + 8 * j * a.hidden;
      at[0] = accumulators[4 * j] * (alpha * scale.x);
      at[8] = accumulators[4 * j + 2] * (alpha * scale.x);
      at[a.hidden] = accumulators[4 * j + 1] * (alpha * scale.y);
      at[a.hidden + 8] = accumulators[4 * j + 3] * (alpha * scale.y);
    }
  }
};

}  // namespace halfbyte::sm90
