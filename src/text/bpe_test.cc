#include "text/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace halfbyte {
namespace {

using Ids = std::vector<int32_t>;
using Merges = std::vector<BpeMerge>;

Bpe MakeBpe(const Merges& merges) {
  std::array<int32_t, 256> bytes;
  std::iota(bytes.begin(), bytes.end(), 0);
  BpeMergeTable table;
  uint32_t duplicate = 0;
  EXPECT_TRUE(table.Build(merges, &duplicate));
  return Bpe(bytes, std::move(table));
}

// The definition: look at all pairs, join the leftmost of the best, begin again.
Ids MergeSlowly(const Merges& merges, const std::string& word) {
  Ids ids;
  for (const char c : word) ids.push_back(static_cast<uint8_t>(c));
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t i = 0; i < merges.size(); ++i) ranks[{merges[i].left, merges[i].right}] = i;
  for (;;) {
    std::optional<std::pair<size_t, size_t>> best;  // rank, position
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto rank = ranks.find({ids[i], ids[i + 1]});
      if (rank != ranks.end() && (!best || rank->second < best->first)) best = {rank->second, i};
    }
    if (!best) return ids;
    ids[best->second] = merges[best->first].result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best->second) + 1);
  }
}

// Merges over the letters a, b, c, each building on earlier results.
rc::Gen<Merges> SomeMerges() {
  return rc::gen::map(rc::gen::container<std::vector<std::pair<uint8_t, uint8_t>>>(
                          rc::gen::arbitrary<std::pair<uint8_t, uint8_t>>()),
                      [](const std::vector<std::pair<uint8_t, uint8_t>>& picks) {
                        Ids known = {'a', 'b', 'c'};
                        Merges merges;
                        std::map<std::pair<int32_t, int32_t>, bool> used;
                        for (const auto& [l, r] : picks) {
                          const int32_t left = known[l % known.size()],
                                        right = known[r % known.size()];
                          if (std::exchange(used[{left, right}], true)) continue;
                          const auto result = static_cast<int32_t>(256 + merges.size());
                          merges.push_back({left, right, result});
                          known.push_back(result);
                        }
                        // Not in the order of their making: a rule may come before those it builds
                        // on.
                        for (size_t i = 0; i + 3 < merges.size(); i += 3)
                          std::swap(merges[i], merges[i + 3]);
                        return merges;
                      });
}

RC_GTEST_PROP(Bpe, EqualsTheDefinitionForShortAndLongWords, ()) {
  const Merges merges = *SomeMerges();
  const auto length = *rc::gen::inRange<size_t>(0, 200);  // both sides of the switch to a heap
  const auto word = *rc::gen::container<std::string>(length, rc::gen::element('a', 'a', 'b', 'c'));
  const Bpe bpe = MakeBpe(merges);
  BpeScratch scratch;
  const Ids expected = MergeSlowly(merges, word);
  for (int round = 0; round < 2; ++round) {  // the second one from the cache
    Ids ids;
    bpe.Encode(word, &scratch, &ids);
    RC_ASSERT(ids == expected);
  }
}

TEST(Bpe, JoinsTheLeftmostOfEqualPairs) {
  const Bpe bpe = MakeBpe({{'a', 'a', 300}});
  BpeScratch scratch;
  for (const size_t length : {3u, 99u}) {
    Ids ids;
    bpe.Encode(std::string(length, 'a'), &scratch, &ids);
    Ids expected(length / 2, 300);
    expected.push_back('a');
    EXPECT_EQ(ids, expected);
  }
}

TEST(Bpe, TheCacheTellsWordsApart) {
  const Bpe bpe = MakeBpe({{'a', 'b', 300}});
  BpeScratch scratch;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 40'000; ++i) {  // more words than the cache has places
      const std::string word = "ab" + std::to_string(i);
      Ids ids, plain;
      bpe.Encode(word, &scratch, &ids);
      bpe.EncodeUncached(word, &scratch, &plain);
      ASSERT_EQ(ids, plain) << word;
    }
  }
  Ids ids;
  bpe.Encode(std::string("\0\0", 2), &scratch, &ids);
  bpe.Encode(std::string("\0", 1), &scratch, &ids);
  EXPECT_EQ(ids, (Ids{0, 0, 0}));
}

TEST(Bpe, AMegabyteOfOneLetterIsHalvedAgainAndAgain) {
  Merges merges;
  for (int32_t i = 0; i < 20; ++i) {
    const int32_t side = i == 0 ? 'a' : 300 + i - 1;
    merges.push_back({side, side, 300 + i});
  }
  BpeScratch scratch;
  Ids ids;
  MakeBpe(merges).Encode(std::string(1 << 20, 'a'), &scratch, &ids);
  EXPECT_EQ(ids, Ids{319});
}

TEST(BpeMergeTable, ReportsAPairWithTwoRules) {
  BpeMergeTable table;
  uint32_t duplicate = 0;
  EXPECT_FALSE(table.Build(Merges{{1, 2, 3}, {2, 1, 4}, {1, 2, 5}}, &duplicate));
  EXPECT_EQ(duplicate, 2u);
  EXPECT_TRUE(table.Build({}, &duplicate));
  EXPECT_EQ(table.Find(1, 2).rank, BpeMergeTable::kNoRank);
}

}  // namespace
}  // namespace halfbyte
