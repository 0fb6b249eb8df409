// Byte-pair encoding of one pretoken: starts from one token per byte and, as long as any neighbours
// have a merge rule, joins the pair whose rule stands earliest in the file, the leftmost one on
// ties.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string_view>
#include <utility>
#include <vector>

namespace halfbyte {

struct BpeMerge {
  int32_t left;
  int32_t right;
  int32_t result;
};

// Merge rules by pair of neighbours. At most 2^30 rules, each pair once.
class BpeMergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Entry {
    uint64_t pair;
    uint32_t rank;  // position in the file; kNoRank: no such rule
    int32_t result;
  };

  // False if a pair has two rules; `duplicate` is then the rank of the second.
  bool Build(std::span<const BpeMerge> merges, uint32_t* duplicate);
  // The rule for the pair, or an entry with kNoRank.
  const Entry& Find(int32_t left, int32_t right) const;

 private:
  size_t SlotOf(uint64_t pair) const;  // where the pair is or would be

  std::vector<Entry> slots_;  // open addressing, a power of two, at most half full
};

// Memory for Bpe::Encode: buffers and a bounded cache of short pretokens (1 MiB). Belongs to one
// Bpe; one per thread at a time.
class BpeScratch {
 public:
  BpeScratch() : cache_(size_t{1} << kCacheBits) {}

  // Asked for while a long pretoken is encoded: that ends soon, with ids of no use.
  void SetStop(std::stop_token stop) { stop_ = std::move(stop); }
  // Gives back what long pretokens took.
  void Trim();

 private:
  friend class Bpe;
  static constexpr int kCacheBits = 14;
  static constexpr size_t kMaxWord = 22;
  static constexpr size_t kMaxIds = 10;
  struct alignas(64) CachedWord {  // one cache line
    uint8_t length = 0;            // 0: empty slot
    uint8_t count = 0;
    char word[kMaxWord] = {};
    int32_t ids[kMaxIds] = {};
  };
  struct Candidate {
    uint32_t rank;
    uint32_t position;
  };

  std::stop_token stop_;
  std::vector<CachedWord> cache_;
  std::vector<int32_t> symbols_;
  std::vector<uint32_t> ranks_;  // of the pair that begins here
  std::vector<uint32_t> next_;
  std::vector<uint32_t> previous_;
  std::vector<Candidate> heap_;
};

class Bpe {
 public:
  Bpe() = default;
  Bpe(const std::array<int32_t, 256>& byte_ids, BpeMergeTable merges)
      : byte_ids_(byte_ids), merges_(std::move(merges)) {}

  // Appends the tokens of `word` to `ids`: near-linear time in its length, which must be below
  // 2^31.
  void Encode(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;
  // The same without cache; what the cache is filled from.
  void EncodeUncached(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;

  int32_t byte_id(uint8_t byte) const { return byte_ids_[byte]; }

 private:
  void MergeShort(BpeScratch* scratch) const;
  void MergeLong(BpeScratch* scratch) const;

  std::array<int32_t, 256> byte_ids_ = {};
  BpeMergeTable merges_;
};

}  // namespace halfbyte
