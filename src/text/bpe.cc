#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace halfbyte {
namespace {

constexpr uint64_t kEmptyPair = UINT64_MAX;  // token ids are below 2^31, so no pair looks like this
constexpr uint32_t kNone = UINT32_MAX;

// Below this many symbols a plain scan for the best pair beats a heap.
constexpr size_t kShortWord = 48;

uint64_t Pair(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

uint64_t Mix(uint64_t x) {  // the finalizer of MurmurHash3
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

uint64_t HashWord(std::string_view word) {
  uint64_t hash = word.size();
  for (size_t i = 0; i < word.size(); i += 8) {
    uint64_t chunk = 0;
    std::memcpy(&chunk, word.data() + i, std::min<size_t>(8, word.size() - i));
    hash = Mix(hash ^ chunk) + i;
  }
  return hash;
}

}  // namespace

size_t BpeMergeTable::SlotOf(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = Mix(pair) & mask;
  while (slots_[slot].pair != pair && slots_[slot].pair != kEmptyPair) slot = (slot + 1) & mask;
  return slot;
}

bool BpeMergeTable::Build(std::span<const BpeMerge> merges, uint32_t* duplicate) {
  HB_CHECK(merges.size() <= size_t{1} << 30, "{} merges", merges.size());
  slots_.assign(std::bit_ceil(2 * merges.size() + 2), Entry{kEmptyPair, kNoRank, 0});
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    const BpeMerge& merge = merges[rank];
    Entry& slot = slots_[SlotOf(Pair(merge.left, merge.right))];
    if (slot.pair != kEmptyPair) {
      *duplicate = rank;
      return false;
    }
    slot = {Pair(merge.left, merge.right), rank, merge.result};
  }
  return true;
}

const BpeMergeTable::Entry& BpeMergeTable::Find(int32_t left, int32_t right) const {
  return slots_[SlotOf(Pair(left, right))];
}

void BpeScratch::Trim() {
  stop_ = {};
  constexpr size_t kKept = 16 << 10;  // symbols
  if (std::max(symbols_.capacity(), heap_.capacity()) <= kKept) return;
  symbols_ = {};
  ranks_ = {};
  next_ = {};
  previous_ = {};
  heap_ = {};
}

void Bpe::Encode(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const {
  if (word.size() > BpeScratch::kMaxWord || word.empty()) {
    EncodeUncached(word, scratch, ids);
    return;
  }
  BpeScratch::CachedWord& slot = scratch->cache_[HashWord(word) & (scratch->cache_.size() - 1)];
  if (slot.length == word.size() && std::memcmp(slot.word, word.data(), word.size()) == 0) {
    ids->insert(ids->end(), slot.ids, slot.ids + slot.count);
    return;
  }
  const size_t before = ids->size();
  EncodeUncached(word, scratch, ids);
  const size_t count = ids->size() - before;
  if (count > BpeScratch::kMaxIds) return;
  slot.length = static_cast<uint8_t>(word.size());
  slot.count = static_cast<uint8_t>(count);
  std::memcpy(slot.word, word.data(), word.size());
  std::copy(ids->begin() + static_cast<ptrdiff_t>(before), ids->end(), slot.ids);
}

void Bpe::EncodeUncached(std::string_view word, BpeScratch* scratch,
                         std::vector<int32_t>* ids) const {
  HB_CHECK(word.size() < size_t{1} << 31, "a pretoken of {} bytes", word.size());
  auto& symbols = scratch->symbols_;
  auto& ranks = scratch->ranks_;
  symbols.clear();
  for (const char c : word) symbols.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  ranks.assign(symbols.size(), kNone);
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    ranks[i] = merges_.Find(symbols[i], symbols[i + 1]).rank;
  }
  if (symbols.size() <= kShortWord) {
    MergeShort(scratch);
  } else {
    MergeLong(scratch);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

// Both ways leave the result in scratch->symbols_. ranks_[i] is the rank of the pair (i, i + 1).
void Bpe::MergeShort(BpeScratch* scratch) const {
  auto& symbols = scratch->symbols_;
  auto& ranks = scratch->ranks_;
  while (symbols.size() > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.end());  // the first of equal ones
    if (*best == kNone) break;
    const auto at = static_cast<size_t>(best - ranks.begin());
    symbols[at] = merges_.Find(symbols[at], symbols[at + 1]).result;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
    ranks.erase(best + 1);
    ranks[at] = at + 1 < symbols.size() ? merges_.Find(symbols[at], symbols[at + 1]).rank : kNone;
    if (at > 0) ranks[at - 1] = merges_.Find(symbols[at - 1], symbols[at]).rank;
  }
}

// A linked list of symbols and a heap of candidate pairs. A candidate is stale, and skipped, if the
// pair at its position has another rank by now (a symbol merged away has none).
void Bpe::MergeLong(BpeScratch* scratch) const {
  auto& symbols = scratch->symbols_;
  auto& ranks = scratch->ranks_;
  auto& next = scratch->next_;
  auto& previous = scratch->previous_;
  auto& heap = scratch->heap_;
  const auto count = static_cast<uint32_t>(symbols.size());
  const auto later = [](const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  next.resize(count);
  previous.resize(count);
  heap.clear();
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
    if (ranks[i] != kNone) heap.push_back({ranks[i], i});
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto update = [&](uint32_t at) {
    ranks[at] = next[at] == kNone ? kNone : merges_.Find(symbols[at], symbols[next[at]]).rank;
    if (ranks[at] == kNone) return;
    heap.push_back({ranks[at], at});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  constexpr uint32_t kLookEvery = 1 << 16;
  for (uint32_t turn = 0; !heap.empty(); ++turn) {
    if (turn % kLookEvery == 0 && scratch->stop_.stop_requested()) return symbols.clear();
    const BpeScratch::Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    const uint32_t at = best.position;
    if (ranks[at] != best.rank) continue;
    const uint32_t gone = next[at];
    symbols[at] = merges_.Find(symbols[at], symbols[gone]).result;
    symbols[gone] = -1;
    ranks[gone] = kNone;
    next[at] = next[gone];
    if (next[at] != kNone) previous[next[at]] = at;
    update(at);
    if (previous[at] != kNone) update(previous[at]);
  }
  std::erase(symbols, -1);
}

}  // namespace halfbyte
