#include "kernels/dispatch_plan/token_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace halfbyte {
namespace {

std::vector<int32_t> RowsOfTiles(int32_t rows, int32_t max_rows) {
  const int32_t count = TilesOfExpert(rows, max_rows);
  std::vector<int32_t> sizes;
  for (int32_t i = 0; i < count; ++i) {
    sizes.push_back(TileOfExpert(3, 40, rows, i, count).rows);
  }
  return sizes;
}

TEST(TokenTiles, AreNearlyEqualAndNoneIsWiderThanAllowed) {
  using Rows = std::vector<int32_t>;
  EXPECT_EQ(RowsOfTiles(0, 32), Rows{});
  EXPECT_EQ(RowsOfTiles(1, 32), Rows{8});
  EXPECT_EQ(RowsOfTiles(32, 32), Rows{32});
  EXPECT_EQ(RowsOfTiles(33, 32), (Rows{24, 16}));
  EXPECT_EQ(RowsOfTiles(300, 192), (Rows{152, 152}));
  for (const int32_t max_rows : {8, 32, 64, 192}) {
    for (int32_t rows = 1; rows < 2000; ++rows) {
      const Rows sizes = RowsOfTiles(rows, max_rows);
      ASSERT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend())) << rows;
      ASSERT_LE(sizes.front(), max_rows) << rows;
      ASSERT_LE(sizes.front() - sizes.back(), 8) << rows;
    }
  }
}

TEST(TokenTiles, FollowEachOtherWithoutGaps) {
  for (int32_t rows = 1; rows < 1000; rows += 7) {
    const int32_t count = TilesOfExpert(rows, 64);
    int32_t next = 40;
    for (int32_t i = 0; i < count; ++i) {
      const TokenTile tile = TileOfExpert(3, 40, rows, i, count);
      ASSERT_EQ(tile.expert, 3);
      ASSERT_EQ(tile.row_begin, next);
      next += tile.rows;
    }
    ASSERT_EQ(next, 40 + AtomsOfExpert(rows) * 8);
  }
}

TEST(TokenTiles, TheWideOnesAreCounted) {
  for (const int32_t wide_rows : {0, 8, 112, 128, 192}) {
    for (int32_t rows = 0; rows < 2000; ++rows) {
      const std::vector<int32_t> sizes = RowsOfTiles(rows, 192);
      const auto wide =
          std::count_if(sizes.begin(), sizes.end(), [&](int32_t size) { return size > wide_rows; });
      ASSERT_EQ(WideTilesOfExpert(rows, TilesOfExpert(rows, 192), wide_rows), wide)
          << rows << " rows, wide above " << wide_rows;
    }
  }
}

TEST(TokenTiles, BoundsAreReachedAndNeverExceeded) {  // R38
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const auto experts = static_cast<int32_t>(1 + random() % 40);
    const auto slots = static_cast<int32_t>(1 + random() % 600);
    const int32_t max_rows = 8 * static_cast<int32_t>(1 + random() % 24);
    std::vector<int32_t> counts(static_cast<size_t>(experts));
    const uint32_t used = 1 + random() % static_cast<uint32_t>(experts);
    for (int32_t s = 0; s < slots; ++s) ++counts[random() % used];
    int64_t rows = 0, tiles = 0;
    for (const int32_t count : counts) {
      rows += AtomsOfExpert(count) * 8;
      tiles += TilesOfExpert(count, max_rows);
    }
    ASSERT_LE(rows, MaxTokenRows(slots, experts));
    ASSERT_LE(tiles, MaxTokenTiles(slots, experts, max_rows));
  }
  // One row for each expert but the last, which has the rest.
  int64_t rows = 47 * 8 + AtomsOfExpert(8192 * 6 - 47) * 8;
  EXPECT_EQ(MaxTokenRows(8192 * 6, 48), rows);
}

}  // namespace
}  // namespace halfbyte
