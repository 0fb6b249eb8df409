// A ragged batch cut into shares that threads compute side by side.
#pragma once

#include <span>
#include <vector>

#include "model/step.h"

namespace halfbyte {

// The next tokens of the batch, as items.
struct BatchShare {
  std::vector<PlacedItem> items;
  bool continues = false;  // its first item goes on with the last one of the share before
};

// One share for each thread, their numbers of tokens equal but for one. An item that is cut asks
// for the same logits as before. None with one thread, or fewer tokens than threads.
std::vector<BatchShare> ShareBatch(std::span<const PlacedItem> batch, int threads);

}  // namespace halfbyte
