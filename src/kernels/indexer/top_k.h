// The best of many scores, exactly.
#pragma once

#include <cstdint>
#include <span>

namespace halfbyte {

// Writes the ids of the `keep` largest scores, ascending; equal scores go to the lower id, NaN
// counts as -infinity. 1 <= keep <= scores.size(). `scratch` has room for as many numbers.
void TopK(std::span<const float> scores, int64_t keep, uint32_t* scratch, int32_t* ids);

}  // namespace halfbyte
