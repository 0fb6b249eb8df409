// What becomes of the accumulators: h (gate_up) or slot values (down). Thread 32 * w + 4 * g + t of
// a warpgroup holds, for j < N / 8 and e in 0, 1, row 16 * w + g of its strip at token 8 j + 2 t +
// e in accumulators[4 j + e], and row 16 * w + g + 8 in accumulators[4 j + 2 + e].
#pragma once

#include <cuda_bf16.h>

#include "kernels/quantize_nvfp4/quantize_nvfp4_device.cuh"
#include "kernels/sm90/sm90_ptx.cuh"
#include "kernels/sm90_moe/sm90_gemm.h"

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
    bool requantizes;
    BlockScaler scaler;
    const int32_t* slot_of_row;
    Nvfp4DeviceStats* stats;
    int64_t intermediate;
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

  // Where a thread's pair of h lies within the row of a group.
  static __device__ __forceinline__ int Piece(int thread) {
    return thread / 32 * 2 + thread % 4 / 2;
  }
  static __device__ __forceinline__ int Word(int thread, int strip) {
    return strip % 2 * 2 + thread % 2;
  }

  // Atoms of tokens that are finished together.
  static constexpr int AtomsAtOnce(int n) { return n < 32 ? n / 8 : 4; }
  static constexpr int ExchangeBytes(int n) { return AtomsAtOnce(n) * 256; }  // of a warpgroup

  // h of token 8 j + lane / 4 of `atoms` atoms, requantized. A block of sixteen channels lies in
  // two lanes of each of the four warps, which meet in shared memory: an entry of 16 bytes holds
  // the warps' magnitudes of a block, then its scaling. Returns the block that this thread scaled.
  template <int kAtOnce>
  static __device__ __forceinline__ Magnitudes Requantize(const Arguments& a, int atoms,
                                                          uint32_t exchange,
                                                          uint32_t (&words)[kAtOnce]) {
    int thread = static_cast<int>(threadIdx.x) % 128;
    asm volatile("" : "+r"(thread));  // or what follows from it would stay in registers
    const int lane = thread % 32;
    const uint32_t own = exchange + (lane / 4 * 2 + lane % 2) * 16;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const Magnitudes pair = JoinLanes(MagnitudesOfPair(words[j]), 2);
      if (lane % 4 < 2) StoreShared4(own + j * 256 + thread / 32 * 4, pair.bits);
    }
    WarpgroupBarrier();
    Magnitudes block;
    if (thread / 16 < atoms) {
      const uint32_t entry = exchange + thread * 16;
      const uint4 warps = LoadShared16(entry);
      block = Join(Join({warps.x}, {warps.y}), Join({warps.z}, {warps.w}));
      const BlockScaling scaling(block, a.scaler);
      StoreShared8(entry, {scaling.scale, scaling.multiplier});
    }
    WarpgroupBarrier();
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const float2 numbers = LoadShared8(own + j * 256);
      BlockScaling scaling;
      scaling.scale = numbers.x;
      scaling.multiplier = numbers.y;
      words[j] = scaling.RequantizePair(words[j]);
    }
    WarpgroupBarrier();  // before the next entries
    return block;
  }
  // Whether the block that this thread scales is one of h, not of padding.
  static __device__ __forceinline__ bool Counts(const Arguments& a, int64_t first_row, int atoms,
                                                int strip) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    return a.stats != nullptr && thread / 16 < atoms &&
           (2 * strip + thread % 2) * kNvfp4Block < a.intermediate &&
           __ldcg(a.slot_of_row + first_row + thread / 2) >= 0;
  }
  // One block of each lane that counts.
  static __device__ __noinline__ void Count(const BlockScaler& scaler, Magnitudes block,
                                            bool counts, Nvfp4DeviceStats* to) {
    ThreadStats stats;
    if (counts) scaler.Count(block, &stats.sum);
    stats.AddTo(to);
  }

  template <int N>
  static __device__ __forceinline__ void Store(const Arguments& a, Alpha alpha,
                                               const TokenTile& tile, int strip, uint32_t exchange,
                                               const float (&accumulators)[N / 2]) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int row = thread % 32 / 4;  // after the transposition: the token within its atom
    uint8_t* image = a.h_image + tile.row_begin * a.row_bytes;
    uint8_t* to = image + int64_t{strip / 2} * (tile.rows * 128) + row * 128 +
                  (Piece(thread) ^ row) * 16 + Word(thread, strip) * 4;
    const int64_t first = tile.row_begin + thread % 4 * 2;
    constexpr int kAtOnce = AtomsAtOnce(N);
#pragma unroll
    for (int j = 0; j < N / 8; j += kAtOnce) {
      const int atoms = min(kAtOnce, tile.rows / 8 - j);
      if (atoms <= 0) break;
      const bool counts = a.requantizes && Counts(a, tile.row_begin + 8 * j, atoms, strip);
      uint32_t words[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i >= atoms || j + i >= N / 8) {
          words[i] = 0;
          continue;
        }
        const float* sums = accumulators + 4 * (j + i);
        const float2 scale = RowPair(a.row_scale, first + 8 * (j + i));
        const float2 weight = RowPair(a.row_weight, first + 8 * (j + i));
        const float h0 =
            SwiGlu(a, sums[0] * (alpha.x * scale.x), sums[2] * (alpha.y * scale.x), weight.x);
        const float h1 =
            SwiGlu(a, sums[1] * (alpha.x * scale.y), sums[3] * (alpha.y * scale.y), weight.y);
        const __nv_bfloat162 pair = __floats2bfloat162_rn(h0, h1);
        words[i] = Transpose8x8(*reinterpret_cast<const uint32_t*>(&pair));
      }
      Magnitudes block;
      if (a.requantizes) block = Requantize(a, atoms, exchange, words);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i >= atoms || j + i >= N / 8) break;
        *reinterpret_cast<uint32_t*>(to + (j + i) * kAtomBytes) = words[i];
      }
      if (__any_sync(0xffffffffu, counts)) Count(a.scaler, block, counts, a.stats);
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
                                               const TokenTile& tile, int strip, uint32_t,
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
