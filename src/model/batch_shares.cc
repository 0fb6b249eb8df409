#include "model/batch_shares.h"

#include <cstdint>

namespace halfbyte {

std::vector<std::span<const PlacedItem>> ShareBatch(std::span<const PlacedItem> batch,
                                                    int threads) {
  if (threads < 2 || std::ssize(batch) < threads) return {};
  int64_t total = 0;
  for (const PlacedItem& item : batch) total += std::ssize(item.tokens);
  std::vector<std::span<const PlacedItem>> shares;
  int64_t before = 0;  // tokens of all shares so far
  size_t begin = 0;
  for (int64_t share = 1; share <= threads; ++share) {
    // Item after item, as long as that brings the end nearer to where it should be.
    const int64_t wanted = total * share;
    int64_t after = before;
    size_t end = begin;
    while (end < batch.size()) {
      const int64_t next = after + std::ssize(batch[end].tokens);
      if (next * threads - wanted > wanted - after * threads) break;
      after = next;
      ++end;
    }
    if (2 * (after - before) * threads > 3 * total) return {};
    shares.push_back(batch.subspan(begin, end - begin));
    before = after;
    begin = end;
  }
  return shares;
}

}  // namespace halfbyte
