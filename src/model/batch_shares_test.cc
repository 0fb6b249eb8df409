#include "model/batch_shares.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace halfbyte {
namespace {

// Items of so many tokens each.
std::vector<PlacedItem> Batch(const std::vector<int64_t>& tokens) {
  static const std::vector<int32_t> ids(4096);
  std::vector<PlacedItem> batch;
  for (const int64_t count : tokens) {
    batch.push_back({.tokens = std::span(ids).first(static_cast<size_t>(count))});
  }
  return batch;
}

std::vector<size_t> ItemsOfShares(const std::vector<int64_t>& tokens, int threads) {
  const std::vector<PlacedItem> batch = Batch(tokens);
  std::vector<size_t> items;
  for (const auto& share : ShareBatch(batch, threads)) items.push_back(share.size());
  return items;
}

TEST(BatchShares, HaveAboutEqualNumbersOfTokens) {
  EXPECT_EQ(ItemsOfShares({1, 1, 1, 1, 1, 1, 1, 1}, 2), (std::vector<size_t>{4, 4}));
  EXPECT_EQ(ItemsOfShares({1, 1, 1}, 2), (std::vector<size_t>{2, 1}));
  EXPECT_EQ(ItemsOfShares({1, 1, 1, 1, 30, 34}, 2), (std::vector<size_t>{5, 1}));
  EXPECT_EQ(ItemsOfShares({64, 64, 64, 1, 1}, 3), (std::vector<size_t>{1, 1, 3}));
}

TEST(BatchShares, DoNotExistWhereTheyWouldNotPay) {
  EXPECT_TRUE(ItemsOfShares({1, 1, 1, 1}, 1).empty());
  EXPECT_TRUE(ItemsOfShares({1, 1, 1, 1}, 0).empty());
  EXPECT_TRUE(ItemsOfShares({64}, 2).empty());
  EXPECT_TRUE(ItemsOfShares({1, 1, 1, 64}, 2).empty());
  EXPECT_TRUE(ItemsOfShares({64, 1, 1, 1}, 2).empty());
}

TEST(BatchShares, HoldEveryItemOnceInOrderAndNoThreadHasFarTooMuch) {
  std::mt19937 random(1);
  int shared = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<int64_t> tokens(1 + random() % 20);
    for (int64_t& count : tokens) count = random() % 3 == 0 ? 1 + random() % 100 : 1;
    const std::vector<PlacedItem> batch = Batch(tokens);
    const int threads = 2 + static_cast<int>(random() % 4);
    const auto shares = ShareBatch(batch, threads);
    if (shares.empty()) continue;
    ++shared;
    ASSERT_EQ(std::ssize(shares), threads);
    int64_t total = 0;
    for (const int64_t count : tokens) total += count;
    const PlacedItem* next = batch.data();
    for (const auto& share : shares) {
      EXPECT_EQ(share.data(), next);
      next += share.size();
      int64_t mine = 0;
      for (const PlacedItem& item : share) mine += std::ssize(item.tokens);
      EXPECT_LE(2 * mine * threads, 3 * total);
    }
    EXPECT_EQ(next, batch.data() + batch.size());
  }
  EXPECT_GT(shared, 200);
}

}  // namespace
}  // namespace halfbyte
