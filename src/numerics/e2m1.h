// E2M1, the 4-bit element of NVFP4 and MXFP4 (nvfp4.md §1). A code is 0..15; bit 3 is the sign.
// No infinity, no NaN. Code 8 is negative zero; it decodes to -0 and compares equal to code 0.
// Two codes share a byte: the low nibble is the even element along the contraction dimension.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "numerics/host_device.h"

namespace halfbyte {

inline constexpr float kE2m1Max = 6.0f;
inline constexpr std::array<float, 8> kE2m1Magnitudes = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
// Twice the value of each code, as the integer kernels use it.
inline constexpr std::array<int8_t, 16> kE2m1Doubled = {0, 1,  2,  3,  4,  6,  8,  12,
                                                        0, -1, -2, -3, -4, -6, -8, -12};

HB_HD constexpr float E2m1ToFloat(uint8_t code) {
  const int magnitude = code & 7;
  // 0, 0.5 and then (2 + mantissa) * 2^(exponent - 2): computed, so that device code needs no
  // table.
  const int exponent = magnitude >> 1;
  const int mantissa = magnitude & 1;
  const float value = exponent == 0 ? 0.5f * static_cast<float>(mantissa)
                                    : 0.5f * static_cast<float>((2 + mantissa) << (exponent - 1));
  return (code & 8) != 0 ? -value : value;
}

// Nearest, ties to the even code, saturating at 6. The sign bit is kept, also of zero and of what
// rounds to zero (code 8), as the hardware converts do. NaN gives code 0.
HB_HD constexpr uint8_t E2m1FromFloat(float x) {
  if (x != x) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 28 & 8u;
  const float m = std::bit_cast<float>(bits & 0x7fffffffu);
  // The seven midpoints; a midpoint itself belongs to the even code beside it.
  const int magnitude = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) +
                        (m >= 3.5f) + (m > 5.0f);
  return static_cast<uint8_t>(sign | static_cast<uint32_t>(magnitude));
}

HB_HD constexpr uint8_t PackE2m1(uint8_t even, uint8_t odd) {
  return static_cast<uint8_t>((even & 15) | (odd << 4));
}
HB_HD constexpr uint8_t UnpackE2m1(const uint8_t* packed, int64_t element) {
  return static_cast<uint8_t>((packed[element / 2] >> (4 * (element % 2))) & 15);
}

}  // namespace halfbyte
