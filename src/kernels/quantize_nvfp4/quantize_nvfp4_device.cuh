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

// max(amax, |x|) for finite x; NaN and infinity do not take part.
__device__ inline float JoinFiniteAmax(float amax, float x) {
  const float magnitude = fabsf(x);
  return magnitude <= FLT_MAX && magnitude > amax ? magnitude : amax;
}

// The sixteen values become code * block_scale of their NVFP4 block, which bf16 holds exactly; as
// QuantizeNvfp4Block has it, in fewer operations where all are finite.
__device__ inline void RequantizeBlock(float* x, GlobalScale global, Nvfp4BlockStats* stats) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kNvfp4Block; ++i) {
    largest = max(largest, __float_as_uint(x[i]) & 0x7fffffffu);
  }
  if (largest >= 0x7f800000u) {  // NaN or infinity
    const Nvfp4Block block = QuantizeNvfp4Block(x, global, stats);
    DequantizeNvfp4Block(block, GlobalScale(1.0f), x);
    return;
  }
  const float amax = __uint_as_float(largest);
  const float wanted = amax * ((1.0f / global.value()) / kE2m1Max);
  const uint8_t byte = internal::BlockScaleByte(wanted);
  ++stats->blocks;
  stats->zero += largest == 0;
  stats->flushed += largest != 0 && byte == 0;
  stats->at_max += byte == 0x7e;
  stats->clipped += wanted > kE4m3ClipThreshold;
  stats->amax = fmaxf(stats->amax, amax);
  const float scale = E4m3ToFloat(byte);
  const float multiplier = fminf(1.0f / (scale * global.value()), FLT_MAX);
#pragma unroll
  for (int i = 0; i < kNvfp4Block; ++i) {
    x[i] = byte == 0 ? 0.0f : RoundToE2m1(x[i] * multiplier) * scale;
  }
}

// Of numbers that bf16 holds exactly.
__device__ inline uint32_t PackExactBf16(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
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
