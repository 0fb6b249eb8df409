// What kernels that quantize to NVFP4 share: bf16 pairs, and counters kept in registers until a
// block is done.
#pragma once

#include <cstdint>

#include "kernels/quantize_nvfp4/quantize_nvfp4_cuda.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {

// Two bf16 of a word, the lower half first.
__device__ inline float LowBf16(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float HighBf16(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }
__device__ inline uint32_t PackBf16(Bf16 low, Bf16 high) {
  return uint32_t{low.bits} | uint32_t{high.bits} << 16;
}

// max(amax, |x|) for finite x; NaN and infinity do not take part.
__device__ inline float JoinFiniteAmax(float amax, float x) {
  const float magnitude = fabsf(x);
  return magnitude <= FLT_MAX && magnitude > amax ? magnitude : amax;
}

// code * block_scale, exact.
__device__ inline Bf16 DecodedBf16(const Nvfp4Block& block, int element) {
  return ToBf16(E2m1ToFloat(UnpackE2m1(block.codes, element)) * E4m3ToFloat(block.scale));
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
