// Sizes of a MoE layer's routed experts, by the name of a model or as four numbers.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace halfbyte {

struct MoeShape {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t experts = 0;
  int64_t top_k = 0;

  int64_t expert_weights() const { return 3 * hidden * intermediate; }
  int64_t expert_bytes() const { return expert_weights() * 9 / 16; }  // NVFP4: 4.5 bit each
  int64_t slot_flops() const { return 2 * expert_weights(); }         // of one token in one expert
};

// "v4-flash", "v4-pro", or "H,I,E,K": hidden and intermediate size (multiples of 16), experts, and
// experts per token. Errors say what is wrong with which of them.
Result<MoeShape> ParseMoeShape(std::string_view text);

}  // namespace halfbyte
