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

// What a quantizer saw, for counters and reports (moe-layer.md §7). All numbers count blocks.
struct Nvfp4BlockStats {
  int64_t blocks = 0;
  int64_t zero = 0;        // all elements zero (or NaN)
  int64_t flushed = 0;     // a nonzero block whose scale byte is 0
  int64_t at_max = 0;      // scale byte 0x7e; normal for the block that holds the tensor's amax
  int64_t clipped = 0;     // wanted scale > 464: the global scale is too small for this block
  int64_t non_finite = 0;  // holds NaN (encoded as 0) or infinity (encoded as the largest number)
  float amax = 0;          // largest finite |x|

  constexpr Nvfp4BlockStats& operator+=(const Nvfp4BlockStats& other) {
    blocks += other.blocks;
    zero += other.zero;
    flushed += other.flushed;
    at_max += other.at_max;
    clipped += other.clipped;
    non_finite += other.non_finite;
    amax = other.amax > amax ? other.amax : amax;
    return *this;
  }
};

// max |x| over the block; NaN elements do not take part, infinity does.
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

namespace internal {

// The scale byte for the wanted scale. Nothing wanted, or an unusable global scale: 0, never NaN.
HB_HD constexpr uint8_t BlockScaleByte(float wanted) {
  return wanted > 0 ? E4m3FromFloat(wanted) : uint8_t{0};
}

HB_HD constexpr Nvfp4BlockStats StatsOfBlock(const float* x, float wanted, uint8_t scale) {
  Nvfp4BlockStats stats{.blocks = 1};
  bool any = false;
  for (int i = 0; i < kNvfp4Block; ++i) {
    const float m = x[i] < 0 ? -x[i] : x[i];
    any = any || m > 0;
    if (!(m <= FLT_MAX)) {
      stats.non_finite = 1;
    } else if (m > stats.amax) {
      stats.amax = m;
    }
  }
  stats.zero = !any;
  stats.flushed = any && scale == 0;
  stats.at_max = scale == 0x7e;
  stats.clipped = wanted > kE4m3ClipThreshold;
  return stats;
}

}  // namespace internal

HB_HD constexpr Nvfp4Block QuantizeNvfp4Block(const float* x, GlobalScale global,
                                              Nvfp4BlockStats* stats = nullptr) {
  const float wanted = BlockAmax(x) * ((1.0f / global.value()) / kE2m1Max);
  Nvfp4Block block;
  block.scale = internal::BlockScaleByte(wanted);
  if (block.scale != 0) EncodeWithScale(x, block.scale, global, block.codes);
  if (stats != nullptr) *stats += internal::StatsOfBlock(x, wanted, block.scale);
  return block;
}

// Parity with the predecessor of this program, which flushed every block with amax / global_scale
// < 6 * 2^-9 (moe-layer.md §4): scales between 2^-10 and 2^-9 round up to 2^-9 and would have
// carried information. For comparison with its bytes only.
HB_HD constexpr Nvfp4Block QuantizeNvfp4BlockFlushEarly(const float* x, GlobalScale global,
                                                        Nvfp4BlockStats* stats = nullptr) {
  const float amax = BlockAmax(x);
  const float encode = 1.0f / global.value();
  if (amax * encode >= kE2m1Max * 0x1p-9f) return QuantizeNvfp4Block(x, global, stats);
  if (stats != nullptr) *stats += internal::StatsOfBlock(x, amax * (encode / kE2m1Max), 0);
  return {};
}

HB_HD constexpr float DequantizeNvfp4(uint8_t code, uint8_t scale, GlobalScale global) {
  return (E2m1ToFloat(code) * E4m3ToFloat(scale)) * global.value();  // the first product is exact
}

HB_HD constexpr void DequantizeNvfp4Block(const Nvfp4Block& block, GlobalScale global, float* x) {
  for (int i = 0; i < kNvfp4Block; ++i) {
    x[i] = DequantizeNvfp4(UnpackE2m1(block.codes, i), block.scale, global);
  }
}

// Sum of squared errors of a quantized block, all in fp32. The order of the sum is fixed, element i
// with i+8, then +4, +2, +1, so that every variant of a quantizer chooses alike.
HB_HD constexpr float SquaredError(const float* x, const Nvfp4Block& block, GlobalScale global) {
  float squares[kNvfp4Block] = {};
  for (int i = 0; i < kNvfp4Block; ++i) {
    const float d = DequantizeNvfp4(UnpackE2m1(block.codes, i), block.scale, global) - x[i];
    squares[i] = d * d;
  }
  for (int width = kNvfp4Block / 2; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) squares[i] += squares[i + width];
  }
  return squares[0];
}

// 4-over-6 (nvfp4.md §5): tries the scale that maps amax to 6 and the 1.5x larger one that maps it
// to 4, keeps the one with the smaller squared error; a tie goes to 6. Meant for a global scale
// from GlobalScale::FromAmax4Over6, which leaves room for the larger scale; correct for any.
// `flushed` and `clipped` of the statistics speak about the first of the two.
HB_HD constexpr Nvfp4Block QuantizeNvfp4Block4Over6(const float* x, GlobalScale global,
                                                    Nvfp4BlockStats* stats = nullptr) {
  const float amax = BlockAmax(x);
  const float encode = 1.0f / global.value();
  const float wanted = amax * (encode / kE2m1Max);
  Nvfp4Block six;
  six.scale = internal::BlockScaleByte(wanted);
  Nvfp4Block four;
  four.scale = internal::BlockScaleByte(amax * (encode / 4.0f));
  Nvfp4Block best = six;
  if (six.scale != 0) {
    EncodeWithScale(x, six.scale, global, six.codes);
    EncodeWithScale(x, four.scale, global, four.codes);
    best = SquaredError(x, four, global) < SquaredError(x, six, global) ? four : six;
  }
  if (stats != nullptr) *stats += internal::StatsOfBlock(x, wanted, best.scale);
  return best;
}

}  // namespace halfbyte
