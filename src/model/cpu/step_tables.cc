#include "model/cpu/step_tables.h"

#include <algorithm>

namespace halfbyte {
namespace {

// Tokens [begin, end) of an item, whose first stands in row `first` of all.
struct Chunk {
  const PlacedItem* item;
  int64_t begin, end, first;
};

TokenTables TablesOf(std::span<const Chunk> chunks, const RopeTables& rope) {
  TokenTables tables;
  std::vector<int64_t> positions;
  for (const Chunk& chunk : chunks) {
    const SequencePages& pages = *chunk.item->pages;
    const int64_t count = chunk.end - chunk.begin;
    tables.sequences.push_back(&pages);
    tables.spans.push_back({tables.tokens(), count, pages.position + chunk.begin});
    for (int64_t t = chunk.begin; t < chunk.end; ++t) {
      tables.rows.push_back(chunk.first + t);
      tables.token_ids.push_back(chunk.item->tokens[static_cast<size_t>(t)]);
      positions.push_back(pages.position + t);
    }
  }
  tables.window_angles.Set(rope.window, positions);
  tables.compressed_angles.Set(rope.compressed, positions);
  return tables;
}

int64_t Longest(const TokenTables& tables) {
  int64_t longest = 0;
  for (const TokenSpan& span : tables.spans) {
    longest = std::max(longest, span.position + span.count);
  }
  return longest;
}

}  // namespace

StepTables::StepTables(std::span<const PlacedItem> batch, const RopeTables& rope) {
  std::vector<Chunk> all, wanted;
  int64_t first = 0, wanted_tokens = 0;
  for (const PlacedItem& item : batch) {
    const int64_t count = std::ssize(item.tokens);
    all.push_back({&item, 0, count, first});
    if (const int64_t rows = item.logits_rows(); rows > 0) {
      wanted.push_back({&item, count - rows, count, first});
      wanted_tokens += rows;
    }
    first += count;
  }
  all_ = TablesOf(all, rope);
  all_wanted_ = wanted_tokens == first;
  if (!all_wanted_) wanted_ = TablesOf(wanted, rope);
}

StepShape StepTables::shape() const {
  const TokenTables& wanted = of(TokenSet::kWanted);
  return {.tokens = {all_.tokens(), wanted.tokens()}, .context = {Longest(all_), Longest(wanted)}};
}

}  // namespace halfbyte
