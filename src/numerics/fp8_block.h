// FP8 with power-of-two block scales, DeepSeek's rule (nvfp4.md §4): KV rows (blocks of 64), FP8
// activations and tiles (128).
#pragma once

#include <cstdint>

#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/host_device.h"

namespace halfbyte {

// E8M0 byte of 2^ceil(log2(max(amax, 1e-4) / 448)).
HB_HD constexpr uint8_t Fp8BlockScale(float amax) {
  return E8m0FromFloatRoundUp((amax > 1e-4f ? amax : 1e-4f) / kE4m3Max);
}

// What a value becomes in a block with that scale.
HB_HD constexpr uint8_t Fp8Encode(float x, uint8_t scale) {
  return E4m3FromFloat(x / E8m0ToFloat(scale));
}
HB_HD constexpr float Fp8Decode(uint8_t bits, uint8_t scale) {
  return E4m3ToFloat(bits) * E8m0ToFloat(scale);
}

}  // namespace halfbyte
