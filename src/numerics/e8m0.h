// E8M0: a byte that is an exponent, 2^(bits - 127); 0xff is NaN (nvfp4.md §4). Scales of MXFP4
// blocks and of DeepSeek's FP8 tiles.
#pragma once

#include <bit>
#include <cstdint>

#include "numerics/host_device.h"

namespace halfbyte {

inline constexpr uint8_t kE8m0Nan = 0xff;

HB_HD constexpr float E8m0ToFloat(uint8_t bits) {
  if (bits == kE8m0Nan) return std::bit_cast<float>(0x7fc00000u);
  if (bits == 0) return 0x1p-127f;  // an fp32 subnormal
  return std::bit_cast<float>(uint32_t{bits} << 23);
}

// The smallest power of two >= x, so that x / scale never exceeds 1. x <= 2^-127 gives 0,
// x > 2^127 and infinity give 0xfe, NaN gives 0xff.
HB_HD constexpr uint8_t E8m0FromFloatRoundUp(float x) {
  if (x != x) return kE8m0Nan;
  if (x <= 0x1p-127f) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = bits >> 23;
  if (exponent == 0) return 1;  // between 2^-127 and 2^-126
  const uint32_t up = exponent + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
  return static_cast<uint8_t>(up > 254u ? 254u : up);
}

}  // namespace halfbyte
