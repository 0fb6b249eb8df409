// Log-probabilities to report (server.md §1.8 step 1): log-softmax of a row of logits.
#pragma once

#include <cstdint>
#include <span>

#include "engine/output.h"

namespace halfbyte {

// `logits`: finite or -infinity, at least one finite. `token`: an id of the row; `top`: how many
// best tokens are listed beside it (the drawn one may be among them), best first, lowest id first
// among equals. Sums in double, in id order. text_offset stays 0.
LogprobEntry LogprobsOf(std::span<const float> logits, int32_t token, int32_t top);

}  // namespace halfbyte
