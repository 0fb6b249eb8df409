// The per-tensor fp32 scale of NVFP4 in its two conventions, as two types that do not mix.
#pragma once

#include <cmath>

#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/host_device.h"

namespace halfbyte {

// 6 * 448: the largest |code * block_scale|.
inline constexpr float kNvfp4Range = kE2m1Max * kE4m3Max;
// 6 * 256: leaves room for the 1.5x larger block scales of 4-over-6 (nvfp4.md §5).
inline constexpr float kNvfp4Range4Over6 = kE2m1Max * 256.0f;

class EncodeScale;

// Multiplier ("decode") convention: x = code * block_scale * global_scale, amax / 2688.
// ModelOpt's weight_scale_2 and input_scale. This is halfbyte's own convention.
class GlobalScale {
 public:
  HB_HD constexpr explicit GlobalScale(float multiplier) : value_(multiplier) {}

  // amax / 2688, at least 2^-126: of a smaller number neither the number itself nor its reciprocal
  // has full precision, and a tensor below 2688 * 2^-126 is served well by smaller block scales.
  // An all-zero tensor gets 1 (any positive number does; 1 is easy to recognize). `amax` is finite
  // and not negative; of infinity or NaN comes a scale that is not usable.
  HB_HD static constexpr GlobalScale FromAmax(float amax) {
    return GlobalScale(amax == 0 ? 1.0f : Normal(amax / kNvfp4Range));
  }
  HB_HD static constexpr GlobalScale FromAmax4Over6(float amax) {
    return GlobalScale(amax == 0 ? 1.0f : Normal(amax / kNvfp4Range4Over6));
  }
  static inline GlobalScale FromEncode(EncodeScale encode);

  HB_HD constexpr float value() const { return value_; }
  bool IsUsable() const { return std::isfinite(value_) && value_ > 0; }

  friend constexpr bool operator==(GlobalScale, GlobalScale) = default;

 private:
  HB_HD static constexpr float Normal(float x) { return x < 0x1p-126f ? 0x1p-126f : x; }

  float value_;
};

// Divisor ("encode") convention: x = code * block_scale / scale, 2688 / amax. The
// weight_global_scale and input_global_scale of compressed-tensors. Only the checkpoint room sees
// it.
class EncodeScale {
 public:
  constexpr explicit EncodeScale(float divisor) : value_(divisor) {}
  // One fp32 reciprocal. Not every number survives two of them (3584 comes back as 3583.9998).
  static constexpr EncodeScale FromGlobal(GlobalScale scale) {
    return EncodeScale(1.0f / scale.value());
  }
  constexpr float value() const { return value_; }

 private:
  float value_;
};

// What a GEMM's fp32 accumulator is multiplied by: both operands' global scales (nvfp4.md §3).
HB_HD constexpr float GemmAlpha(GlobalScale activation, GlobalScale weight) {
  return activation.value() * weight.value();
}

inline GlobalScale GlobalScale::FromEncode(EncodeScale encode) {
  return GlobalScale(1.0f / encode.value());
}

}  // namespace halfbyte
