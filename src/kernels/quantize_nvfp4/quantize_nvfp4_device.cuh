// What kernels that quantize to NVFP4 share: bf16 pairs, and counters kept in registers until a
// block is done.
#pragma once

#include <cstdint>

#include "kernels/quantize_nvfp4/quantize_nvfp4_cuda.h"
#include "numerics/e2m1_rounding.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {

// Two bf16 of a word, the lower half first.
__device__ inline float LowBf16(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float HighBf16(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }
// Of numbers that bf16 holds exactly.
__device__ inline uint32_t PackExactBf16(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

// What some bf16 numbers are: the bits of the largest finite magnitude, and whether there are
// infinities or NaN among them. Joined, it is that of all; 0 is that of none.
struct Magnitudes {
  uint32_t bits = 0;

  static constexpr uint32_t kInfinity = 1u << 16, kNan = 1u << 17;
  __device__ uint32_t largest_bits() const { return bits & 0xffffu; }
  __device__ float largest() const { return __uint_as_float(bits << 16); }
  __device__ bool any(uint32_t flags) const { return (bits & flags) != 0; }
};
__device__ inline Magnitudes Join(Magnitudes a, Magnitudes b) {
  return {max(a.largest_bits(), b.largest_bits()) |
          ((a.bits | b.bits) & (Magnitudes::kInfinity | Magnitudes::kNan))};
}
__device__ inline Magnitudes MagnitudesOfPair(uint32_t word) {
  const uint32_t low = word & 0x7fffu, high = word >> 16 & 0x7fffu;
  if (max(low, high) < 0x7f80u) return {max(low, high)};
  const auto of = [](uint32_t x) {
    return Magnitudes{x < 0x7f80u ? x : x == 0x7f80u ? Magnitudes::kInfinity : Magnitudes::kNan};
  };
  return Join(of(low), of(high));
}
__device__ inline Magnitudes JoinLanes(Magnitudes own, int lane_mask) {
  return Join(own, {__shfl_xor_sync(0xffffffffu, own.bits, lane_mask)});
}

// Scales of blocks under a global scale, as QuantizeNvfp4Block has them.
struct BlockScaler {
  float global = 0;
  float to_scale = 0;  // from the largest magnitude of a block to the scale that it wants

  __host__ __device__ explicit BlockScaler(GlobalScale scale)
      : global(scale.value()), to_scale((1.0f / scale.value()) / kE2m1Max) {}

  static __device__ float Amax(Magnitudes block) {
    return block.any(Magnitudes::kInfinity) ? INFINITY : block.largest();
  }
  __device__ uint8_t Byte(Magnitudes block) const {
    return internal::BlockScaleByte(Amax(block) * to_scale);
  }
  __device__ void Count(Magnitudes block, Nvfp4BlockStats* stats) const {
    const bool zero = Amax(block) == 0;
    ++stats->blocks;
    stats->zero += zero;
    stats->flushed += !zero && Byte(block) == 0;
    stats->at_max += Byte(block) == 0x7e;
    stats->clipped += Amax(block) * to_scale > kE4m3ClipThreshold;
    stats->non_finite += block.any(Magnitudes::kInfinity | Magnitudes::kNan);
    stats->amax = fmaxf(stats->amax, block.largest());
  }
};

// How an activation becomes code * block_scale of its NVFP4 block, which bf16 holds exactly; in
// fewer operations than through the code.
struct BlockScaling {
  float scale = 0;  // 0: the block becomes zero
  float multiplier = 0;

  __device__ BlockScaling() = default;
  __device__ BlockScaling(Magnitudes block, const BlockScaler& scaler)
      : scale(E4m3ToFloat(scaler.Byte(block))),
        multiplier(fminf(1.0f / (scale * scaler.global), FLT_MAX)) {}

  __device__ float Requantize(float x) const {
    return scale == 0 ? 0.0f : RoundToE2m1(x * multiplier) * scale;
  }
  __device__ uint32_t RequantizePair(uint32_t word) const {
    return PackExactBf16(Requantize(LowBf16(word)), Requantize(HighBf16(word)));
  }
};

// A whole block in one thread.
__device__ inline void RequantizeBlock(uint32_t (&words)[kNvfp4Block / 2],
                                       const BlockScaler& scaler, Nvfp4BlockStats* stats) {
  Magnitudes block;
#pragma unroll
  for (const uint32_t word : words) block = Join(block, MagnitudesOfPair(word));
  scaler.Count(block, stats);
  const BlockScaling scaling(block, scaler);
#pragma unroll
  for (uint32_t& word : words) word = scaling.RequantizePair(word);
}

// The statistics of one thread; AddTo must be called by all threads of the block.
struct ThreadStats {
  Nvfp4BlockStats sum;

  __device__ void AddTo(Nvfp4DeviceStats* stats) const {
    AddCount(sum.blocks, &stats->blocks);
    AddCount(sum.zero, &stats->zero);
    AddCount(sum.flushed, &stats->flushed);
    AddCount(sum.at_max, &stats->at_max);
    AddCount(sum.clipped, &stats->clipped);
    AddCount(sum.non_finite, &stats->non_finite);
    const uint32_t amax = __reduce_max_sync(0xffffffffu, __float_as_uint(sum.amax));
    if (threadIdx.x % 32 == 0 && amax != 0) atomicMax(&stats->amax_bits, amax);
  }

 private:
  __device__ static void AddCount(int64_t own, unsigned long long* total) {
    const unsigned sum = __reduce_add_sync(0xffffffffu, static_cast<unsigned>(own));
    if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(total, static_cast<unsigned long long>(sum));
  }
};

}  // namespace halfbyte
