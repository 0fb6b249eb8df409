// What a kernel does to the values it stores: nothing (fp32 math), or round them to bf16.
// Activations are kept in fp32 memory on the CPU either way; with kBf16 every stored value is a
// bf16 number.
#pragma once

#include "numerics/bf16.h"
#include "numerics/host_device.h"

namespace halfbyte {

enum class Rounding { kNone, kBf16 };

HB_HD constexpr float Round(Rounding rounding, float x) {
  return rounding == Rounding::kBf16 ? RoundToBf16(x) : x;
}

}  // namespace halfbyte
