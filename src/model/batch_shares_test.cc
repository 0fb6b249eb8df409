#include "model/batch_shares.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>

namespace halfbyte {
namespace {

constexpr int64_t kPosition = 1000;

// Items of so many tokens each, whose ids number the tokens through the batch.
struct Batch {
  explicit Batch(const std::vector<int64_t>& tokens) {
    pages.position = kPosition;
    ids.resize(static_cast<size_t>(std::reduce(tokens.begin(), tokens.end())));
    std::iota(ids.begin(), ids.end(), 0);
    std::span<const int32_t> rest(ids);
    for (const int64_t count : tokens) {
      items.push_back({&pages, rest.first(static_cast<size_t>(count))});
      rest = rest.subspan(static_cast<size_t>(count));
    }
  }

  SequencePages pages;
  std::vector<int32_t> ids;
  std::vector<PlacedItem> items;
};

// Tokens of the items of each share.
std::vector<std::vector<int64_t>> Shares(const std::vector<int64_t>& tokens, int threads) {
  std::vector<std::vector<int64_t>> counts;
  for (const BatchShare& share : ShareBatch(Batch(tokens).items, threads)) {
    counts.emplace_back();
    for (const PlacedItem& item : share.items) counts.back().push_back(std::ssize(item.tokens));
  }
  return counts;
}

using Counts = std::vector<std::vector<int64_t>>;

TEST(BatchShares, AreRunsOfItemsAndCutOneWhereTheyMust) {
  EXPECT_EQ(Shares({1, 1, 1, 1}, 2), (Counts{{1, 1}, {1, 1}}));
  EXPECT_EQ(Shares({1, 1, 1}, 2), (Counts{{1}, {1, 1}}));
  EXPECT_EQ(Shares({1, 1, 64}, 2), (Counts{{1, 1, 31}, {33}}));
  EXPECT_EQ(Shares({9}, 3), (Counts{{3}, {3}, {3}}));
}

TEST(BatchShares, DoNotExistForOneThreadOrTooFewTokens) {
  EXPECT_TRUE(Shares({1, 1, 1, 1}, 1).empty());
  EXPECT_TRUE(Shares({1, 1, 1, 1}, 0).empty());
  EXPECT_TRUE(Shares({1}, 2).empty());
  EXPECT_TRUE(Shares({}, 2).empty());
}

TEST(BatchShares, OfACutItemTheLastPartAsksForItsLastToken) {
  Batch batch({10});
  const auto last = ShareBatch(batch.items, 2);
  EXPECT_EQ(last[0].items[0].logits, LogitsWanted::kNone);
  EXPECT_EQ(last[1].items[0].logits, LogitsWanted::kLast);
  batch.items[0].logits = LogitsWanted::kAll;
  const auto all = ShareBatch(batch.items, 2);
  EXPECT_EQ(all[0].items[0].logits, LogitsWanted::kAll);
  EXPECT_EQ(all[1].items[0].logits, LogitsWanted::kAll);
}

TEST(BatchShares, HoldEveryTokenOnceInOrderAtItsPosition) {
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    std::vector<int64_t> tokens(1 + random() % 12);
    for (int64_t& count : tokens) count = random() % 3 == 0 ? 1 + random() % 100 : 1;
    const Batch batch(tokens);
    const auto total = std::ssize(batch.ids);
    const int threads = 2 + static_cast<int>(random() % 4);
    const auto shares = ShareBatch(batch.items, threads);
    ASSERT_EQ(std::ssize(shares), total < threads ? 0 : threads);
    int32_t next = 0;
    int32_t first_of_item = 0;  // the token at kPosition
    size_t item = 0;
    for (const BatchShare& share : shares) {
      EXPECT_EQ(share.continues, next != first_of_item);
      const int32_t begin = next;
      for (const PlacedItem& part : share.items) {
        for (size_t i = 0; i < part.tokens.size(); ++i, ++next) {
          ASSERT_EQ(part.tokens[i], next);
          EXPECT_EQ(part.position() + static_cast<int64_t>(i), kPosition + next - first_of_item);
        }
        if (next - first_of_item == tokens[item]) {
          first_of_item = next;
          ++item;
        }
      }
      EXPECT_LE(next - begin, total / threads + 1);
    }
    EXPECT_EQ(next, shares.empty() ? 0 : total);
  }
}

}  // namespace
}  // namespace halfbyte
