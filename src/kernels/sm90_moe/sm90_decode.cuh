// Woven NVFP4 codes (sm90_layout.h) to bf16 fragments of the tensor core, exactly.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/sm90/sm90_ptx.cuh"

namespace halfbyte::sm90 {

// scale * 2^119, twice: the byte becomes exponent and mantissa of a bf16 number.
__device__ __forceinline__ uint32_t ScalePair(uint32_t word, int byte) {
  return __byte_perm(word, 0, 0x4440 + byte) * 0x00100010u + 0x76807680u;
}
// The scales of a thread's two rows in a group of 64 columns, from its 16 scale bytes.
__device__ __forceinline__ uint2 GroupScales(const uint4& scales, int group) {
  const uint32_t word = group < 2   ? scales.x
                        : group < 4 ? scales.y
                        : group < 6 ? scales.z
                                    : scales.w;
  return {ScalePair(word, group % 2 * 2), ScalePair(word, group % 2 * 2 + 1)};
}

// One word is a thread's fragments for 16 columns. Shifted and masked, a code is the bf16 number
// code * 2^-126 (0.5 as a subnormal, which the multiplication keeps); times a scale pair it is the
// weight * 2^-7.
__device__ __forceinline__ void DecodeWord(uint32_t w, uint2 scales, uint32_t* fragment) {
  const uint32_t c0 = w & 0x81c081c0u;
  const uint32_t c1 = (w << 6) & 0x81c081c0u;
  const uint32_t c2 = __funnelshift_l(w, w, 12) & 0x81c081c0u;
  const uint32_t c3 = ((w << 2) & 0x80c080c0u) | ((w >> 6) & 0x01000100u);
  fragment[0] = MultiplyBf16Pair(c0, scales.x);
  fragment[1] = MultiplyBf16Pair(c1, scales.y);
  fragment[2] = MultiplyBf16Pair(c2, scales.x);
  fragment[3] = MultiplyBf16Pair(c3, scales.y);
}
__device__ __forceinline__ void DecodeGroup(const uint4& codes, uint2 scales, uint32_t* fragments) {
  DecodeWord(codes.x, scales, fragments);
  DecodeWord(codes.y, scales, fragments + 4);
  DecodeWord(codes.z, scales, fragments + 8);
  DecodeWord(codes.w, scales, fragments + 12);
}

}  // namespace halfbyte::sm90
