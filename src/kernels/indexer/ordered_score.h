// Scores as integers in their order: what top-k compares, on the CPU and on a GPU.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "numerics/host_device.h"

namespace halfbyte {

// -0 equals 0, NaN counts as -infinity.
HB_HD constexpr uint32_t OrderedScore(float score) {
  constexpr float kLast = -std::numeric_limits<float>::infinity();
  const auto bits = std::bit_cast<uint32_t>((score != score ? kLast : score) + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

}  // namespace halfbyte
