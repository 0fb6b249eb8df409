// bfloat16: the upper 16 bits of an fp32. Conversion rounds to nearest, ties to even; values beyond
// the largest finite bf16 become infinity, as IEEE 754 has it; NaN stays NaN (quiet).
#pragma once

#include <bit>
#include <cstdint>

#include "numerics/host_device.h"

namespace halfbyte {

struct Bf16 {
  uint16_t bits = 0;

  friend constexpr bool operator==(Bf16, Bf16) = default;  // compares bits: NaN equals itself
};

HB_HD constexpr float ToFloat(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

HB_HD constexpr Bf16 ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<uint16_t>((bits >> 16) | 0x0040u)};  // NaN, made quiet
  }
  const uint32_t odd = (bits >> 16) & 1u;
  return {static_cast<uint16_t>((bits + 0x7fffu + odd) >> 16)};
}

HB_HD constexpr float RoundToBf16(float x) { return ToFloat(ToBf16(x)); }

}  // namespace halfbyte
