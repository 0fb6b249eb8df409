#include "kernels/indexer/top_k.h"

#include <cstring>

#include "kernels/indexer/ordered_score.h"

namespace halfbyte {
namespace {

constexpr int kDigitBits = 11;

// How many keys have each value of a digit. Four counters in turn: many keys in a row have the same
// digit, and an addition waits for the one before.
class DigitCounts {
 public:
  DigitCounts(const uint32_t* keys, int64_t count, int shift) {
    std::memset(counts_, 0, sizeof(counts_));
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
      for (int64_t j = 0; j < 4; ++j) ++counts_[j][Digit(keys[i + j], shift)];
    }
    for (; i < count; ++i) ++counts_[0][Digit(keys[i], shift)];
  }

  static uint32_t Digit(uint32_t key, int shift) { return (key >> shift) % (1u << kDigitBits); }

  // The digit of the keep-th largest key; from `keep` are taken those with a larger one.
  uint32_t Find(int64_t& keep) const {
    for (uint32_t digit = 1u << kDigitBits; digit-- > 0;) {
      int64_t count = 0;
      for (const auto& counts : counts_) count += counts[digit];
      if (count >= keep) return digit;
      keep -= count;
    }
    return 0;
  }

 private:
  uint32_t counts_[4][1 << kDigitBits];
};

// The keep-th largest key, digit by digit; `keep` becomes how many keys equal to it are wanted.
uint32_t FindThreshold(uint32_t* keys, int64_t count, int64_t& keep) {
  uint32_t threshold = 0;
  for (int shift = 2 * kDigitBits; shift >= 0; shift -= kDigitBits) {
    const uint32_t digit = DigitCounts(keys, count, shift).Find(keep);
    threshold |= digit << shift;
    int64_t equal = 0;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t key = keys[i];
      keys[equal] = key;
      equal += DigitCounts::Digit(key, shift) == digit ? 1 : 0;
    }
    count = equal;
  }
  return threshold;
}

}  // namespace

void TopK(std::span<const float> scores, int64_t keep, uint32_t* scratch, int32_t* ids) {
  const int64_t count = std::ssize(scores);
  for (int64_t i = 0; i < count; ++i) scratch[i] = OrderedScore(scores[static_cast<size_t>(i)]);
  int64_t equal_wanted = keep;
  const uint32_t threshold = FindThreshold(scratch, count, equal_wanted);
  int64_t kept = 0;
  for (int32_t i = 0; kept < keep; ++i) {
    const uint32_t key = OrderedScore(scores[static_cast<size_t>(i)]);
    const int64_t equal = key == threshold && equal_wanted > 0 ? 1 : 0;
    ids[kept] = i;
    kept += equal + (key > threshold ? 1 : 0);
    equal_wanted -= equal;
  }
}

}  // namespace halfbyte
