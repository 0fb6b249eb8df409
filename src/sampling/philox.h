// Random numbers of the sampler.
#pragma once

#include <cstdint>

#include "numerics/philox.h"

namespace halfbyte {

// What a number is drawn for; part of the counter, so that uses do not share numbers.
enum class DrawPurpose : uint32_t { kSampling = 0 };

// Uniform in [0, 1), a multiple of 2^-53 (server.md §1.8): for output token `output` of choice
// `choice`.
constexpr double UniformDraw(uint64_t seed, uint32_t output, uint32_t choice, DrawPurpose purpose) {
  const auto r = Philox4x32(seed, {output, choice, static_cast<uint32_t>(purpose), 0});
  return static_cast<double>((uint64_t{r[0]} << 21) + (r[1] >> 11)) * 0x1p-53;
}

}  // namespace halfbyte
