// Which tokens of a ragged batch belong to one sequence.
#pragma once

#include <cstdint>

namespace halfbyte {

// Batch rows [first, first + count) are the sequence's positions [position, position + count).
struct TokenSpan {
  int64_t first = 0;
  int64_t count = 0;
  int64_t position = 0;
};

}  // namespace halfbyte
