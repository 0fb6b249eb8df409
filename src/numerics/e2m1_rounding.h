// Rounding to E2M1 without going through a code (e2m1.h): what a kernel wants that quantizes and
// multiplies at once.
#pragma once

#include <bit>
#include <cstdint>

#include "numerics/e2m1.h"

namespace halfbyte {

// E2m1ToFloat(E2m1FromFloat(x)) in fewer operations: the spacing of the numbers is 0.5 below 2, 1
// below 4 and 2 above, and adding 1.5 * 2^22 .. 1.5 * 2^24 leaves no bits below that spacing.
HB_HD constexpr float RoundToE2m1(float x) {
  if (x != x) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  const float m = magnitude < kE2m1Max ? magnitude : kE2m1Max;
  const float shift = m < 2 ? 0x1.8p22f : m < 4 ? 0x1.8p23f : 0x1.8p24f;
  const float rounded = (m + shift) - shift;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) | (bits & 0x80000000u));
}

}  // namespace halfbyte
