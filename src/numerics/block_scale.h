// Moving a block scale onto another global scale, when two tensors have to share one (gate and up
// of an expert in a kernel with a single alpha).
#pragma once

#include <bit>
#include <cstdint>

#include "numerics/e4m3.h"
#include "numerics/host_device.h"

namespace halfbyte {

struct RescaledBlockScale {
  uint8_t bits = 0;
  bool exact = true;  // the block still means the same numbers
  bool lost =
      false;  // a nonzero scale became 0: the block must be encoded again, or keep two alphas
};

// `ratio` is old global scale / new global scale. Nearest E4M3, ties to even, saturating: only a
// ratio that is a power of two can be exact, and not even that for every byte.
HB_HD constexpr RescaledBlockScale RescaleBlockScale(uint8_t bits, float ratio) {
  const double wanted = double{E4m3ToFloat(bits)} * double{ratio};  // exact
  // To fp32 rounded to odd, so that the rounding to E4M3 is the only one.
  uint32_t narrow = std::bit_cast<uint32_t>(static_cast<float>(wanted));
  const double narrowed = double{std::bit_cast<float>(narrow)};
  if (narrowed > wanted) --narrow;
  if (narrowed != wanted) narrow |= 1;
  const uint8_t rescaled = E4m3FromFloat(std::bit_cast<float>(narrow));
  return {rescaled, double{E4m3ToFloat(rescaled)} == wanted, bits != 0 && rescaled == 0};
}

}  // namespace halfbyte
