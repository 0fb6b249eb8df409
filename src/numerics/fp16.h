// IEEE binary16, read only: some checkpoints store unquantized tensors in it.
#pragma once

#include <bit>
#include <cstdint>

#include "numerics/host_device.h"

namespace halfbyte {

struct Fp16 {
  uint16_t bits = 0;
};

// Exact: every fp16 number is an fp32 number.
HB_HD constexpr float ToFloat(Fp16 x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t exponent32 = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (exponent32 << 23) | (mantissa << 13));
}

}  // namespace halfbyte
