// FP8 E4M3 without infinity (OCP "e4m3fn", nvfp4.md §2): bias 7, subnormals m/512, largest finite
// number 448 (0x7e), NaN 0x7f. As a block scale only 0x00..0x7e are valid (unsigned, "UE4M3").
#pragma once

#include <bit>
#include <cstdint>

#include "numerics/host_device.h"

namespace halfbyte {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE4m3MinSubnormal = 0x1p-9f;
// Beyond this the nearest number of an unbounded E4M3 grid is no longer 448: saturation is
// clipping.
inline constexpr float kE4m3ClipThreshold = 464.0f;

HB_HD constexpr float E4m3ToFloat(uint8_t bits) {
  const uint32_t exponent = (bits >> 3) & 15u;
  const uint32_t mantissa = bits & 7u;
  if ((bits & 0x7f) == 0x7f) {
    return std::bit_cast<float>(0x7fc00000u | (uint32_t{bits & 0x80u} << 24));
  }
  const float value = exponent == 0
                          ? static_cast<float>(mantissa) * kE4m3MinSubnormal
                          : std::bit_cast<float>(((exponent + 120u) << 23) | (mantissa << 20));
  return (bits & 0x80) != 0 ? -value : value;
}

// Nearest, ties to even, saturating at +-448 (also for infinity). NaN gives 0x7f with x's sign.
HB_HD constexpr uint8_t E4m3FromFloat(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7f);
  if (magnitude >= std::bit_cast<uint32_t>(kE4m3Max)) return static_cast<uint8_t>(sign | 0x7e);
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Subnormal: a multiple of 2^-9. Adding 2^14 puts the unit of the last place at 2^-9.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) & 0xfu));
  }
  const uint32_t odd = (magnitude >> 20) & 1u;
  const uint32_t rounded = (magnitude + 0x7ffffu + odd) >> 20;  // 8 exponent bits, 3 mantissa bits
  return static_cast<uint8_t>(sign | (rounded - (120u << 3)));
}

// Whether `bits` may stand in a block scale tensor.
HB_HD constexpr bool IsBlockScale(uint8_t bits) { return bits <= 0x7e; }

}  // namespace halfbyte
