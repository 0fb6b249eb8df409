// One NVFP4 block: 16 E2M1 codes and one E4M3 scale, under a given global scale.
// The rule is halfbyte's own (nvfp4.md §3.2, moe-layer.md §4): a block whose scale byte rounds to 0
// becomes all zero, scale and codes; nothing is flushed earlier.
#pragma once

#include <cfloat>
#include <cstdint>

#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/global_scale.h"
#include "numerics/host_device.h"

namespace halfbyte {

inline constexpr int kNvfp4Block = 16;

struct Nvfp4Block {
  uint8_t codes[kNvfp4Block / 2] = {};  // low nibble = even element
  uint8_t scale = 0;                    // E4M3, 0x00..0x7e
};

// What a quantizer saw, for counters and reports.
struct Nvfp4BlockStats {
  int64_t blocks = 0;
  int64_t zero = 0;     // all elements zero
  int64_t flushed = 0;  // a nonzero block whose scale byte is 0
  int64_t at_max = 0;   // scale byte 0x7e; normal for the block that holds the tensor's amax
  int64_t clipped = 0;  // wanted scale > 464: the global scale is too small for this block

  constexpr Nvfp4BlockStats& operator+=(const Nvfp4BlockStats& other) {
    blocks += other.blocks;
    zero += other.zero;
    flushed += other.flushed;
    at_max += other.at_max;
    clipped += other.clipped;
    return *this;
  }
};

// max |x| over the block; NaN elements do not take part.
HB_HD constexpr float BlockAmax(const float* x, int count = kNvfp4Block) {
  float amax = 0;
  for (int i = 0; i < count; ++i) {
    const float m = x[i] < 0 ? -x[i] : x[i];
    if (m > amax) amax = m;
  }
  return amax;
}

// Codes of 16 values under a nonzero scale byte.
HB_HD constexpr void EncodeWithScale(const float* x, uint8_t scale, GlobalScale global,
                                     uint8_t* codes) {
  const float step = E4m3ToFloat(scale) * global.value();
  float multiplier = 1.0f / step;
  if (!(multiplier <= FLT_MAX)) multiplier = FLT_MAX;
  for (int i = 0; i < kNvfp4Block; i += 2) {
    codes[i / 2] = PackE2m1(E2m1FromFloat(x[i] * multiplier), E2m1FromFloat(x[i + 1] * multiplier));
  }
}

HB_HD constexpr Nvfp4Block QuantizeNvfp4Block(const float* x, GlobalScale global,
                                              Nvfp4BlockStats* stats = nullptr) {
  const float amax = BlockAmax(x);
  const float wanted = amax * ((1.0f / global.value()) / kE2m1Max);
  Nvfp4Block block;
  block.scale = E4m3FromFloat(wanted);
  if (block.scale != 0) EncodeWithScale(x, block.scale, global, block.codes);
  if (stats != nullptr) {
    *stats += {1, amax == 0, amax > 0 && block.scale == 0, block.scale == 0x7e,
               wanted > kE4m3ClipThreshold};
  }
  return block;
}

HB_HD constexpr float DequantizeNvfp4(uint8_t code, uint8_t scale, GlobalScale global) {
  return (E2m1ToFloat(code) * E4m3ToFloat(scale)) * global.value();  // the first product is exact
}

HB_HD constexpr void DequantizeNvfp4Block(const Nvfp4Block& block, GlobalScale global, float* x) {
  for (int i = 0; i < kNvfp4Block; ++i) {
    x[i] = DequantizeNvfp4(UnpackE2m1(block.codes, i), block.scale, global);
  }
}

// Sum of squared errors of a quantized block, in element order.
HB_HD constexpr float SquaredError(const float* x, const Nvfp4Block& block, GlobalScale global) {
  float sum = 0;
  for (int i = 0; i < kNvfp4Block; ++i) {
    const float d = DequantizeNvfp4(UnpackE2m1(block.codes, i), block.scale, global) - x[i];
    sum += d * d;
  }
  return sum;
}

// 4-over-6 (nvfp4.md §5): tries the scale that maps amax to 6 and the 1.5x larger one that maps it
// to 4, keeps the one with the smaller squared error; a tie goes to 6. Meant for a global scale
// from GlobalScale::FromAmax4Over6, which leaves room for the larger scale; correct for any.
HB_HD constexpr Nvfp4Block QuantizeNvfp4Block4Over6(const float* x, GlobalScale global,
                                                    Nvfp4BlockStats* stats = nullptr) {
  const Nvfp4Block six = QuantizeNvfp4Block(x, global, stats);
  Nvfp4Block four;
  four.scale = E4m3FromFloat(BlockAmax(x) * ((1.0f / global.value()) / 4.0f));
  if (six.scale == 0 || four.scale == 0) return six;
  EncodeWithScale(x, four.scale, global, four.codes);
  return SquaredError(x, four, global) < SquaredError(x, six, global) ? four : six;
}

}  // namespace halfbyte
