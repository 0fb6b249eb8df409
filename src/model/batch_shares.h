// A ragged batch cut into shares that threads compute side by side.
#pragma once

#include <span>
#include <vector>

#include "model/step.h"

namespace halfbyte {

// Runs of whole items in their order, one for each thread, with about equal numbers of tokens. None
// if that does not pay: one thread, or a share of more than 1.5 times the mean.
std::vector<std::span<const PlacedItem>> ShareBatch(std::span<const PlacedItem> batch, int threads);

}  // namespace halfbyte
