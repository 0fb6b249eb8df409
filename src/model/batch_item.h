// What callers of a model's forward pass give it.
#pragma once

#include <cstdint>
#include <span>

#include "paging/kv_pages.h"
#include "paging/step_plan.h"

namespace halfbyte {

// One sequence's chunk of a ragged batch.
struct BatchItem {
  Sequence* sequence = nullptr;  // not twice in one batch
  std::span<const int32_t> tokens;
  LogitsWanted logits = LogitsWanted::kLast;
};

// The same where somebody else keeps the sequences: there is room for the tokens in its pages.
struct PlacedItem {
  const SequencePages* pages = nullptr;
  std::span<const int32_t> tokens;
  LogitsWanted logits = LogitsWanted::kLast;

  int64_t logits_rows() const { return LogitsRows(logits, std::ssize(tokens)); }
};

}  // namespace halfbyte
