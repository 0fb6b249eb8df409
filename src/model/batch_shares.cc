#include "model/batch_shares.h"

#include <algorithm>
#include <cstdint>

namespace halfbyte {

std::vector<BatchShare> ShareBatch(std::span<const PlacedItem> batch, int threads) {
  int64_t left = 0;
  for (const PlacedItem& item : batch) left += std::ssize(item.tokens);
  if (threads < 2 || left < threads) return {};
  std::vector<BatchShare> shares(static_cast<size_t>(threads));
  int64_t begin = 0;  // of the tokens of the first item that is left
  for (BatchShare& share : shares) {
    share.continues = begin > 0;
    int64_t room = left / (threads - (&share - shares.data()));
    left -= room;
    while (room > 0) {
      const PlacedItem& item = batch.front();
      const int64_t rest = std::ssize(item.tokens) - begin;
      const int64_t count = std::min(room, rest);
      PlacedItem& part = share.items.emplace_back(item);
      part.tokens = item.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
      part.offset += begin;
      if (count < rest && item.logits == LogitsWanted::kLast) part.logits = LogitsWanted::kNone;
      room -= count;
      begin += count;
      if (count < rest) break;
      begin = 0;
      batch = batch.subspan(1);
    }
  }
  return shares;
}

}  // namespace halfbyte
