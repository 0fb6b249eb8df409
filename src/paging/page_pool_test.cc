#include "paging/page_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace halfbyte {
namespace {

TEST(PagePool, HandsOutTheLowestFreePageUntilNoneIsLeft) {
  PagePool pool(3);
  EXPECT_EQ(pool.Take(), 0);
  EXPECT_EQ(pool.Take(), 1);
  EXPECT_EQ(pool.Take(), 2);
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_EQ(pool.Take(), std::nullopt);
  pool.Release(1);
  pool.Release(0);
  EXPECT_EQ(pool.Take(), 0);
  EXPECT_EQ(pool.Take(), 1);
}

TEST(PagePool, AnEmptyPoolHasNothingToGive) {
  PagePool pool;
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_EQ(pool.Take(), std::nullopt);
}

TEST(PagePool, APageIsFreeAfterItsLastReference) {
  PagePool pool(2);
  const int32_t page = *pool.Take();
  pool.Retain(page);
  pool.Retain(page);
  pool.Release(page);
  pool.Release(page);
  EXPECT_EQ(pool.free_pages(), 1);
  pool.Release(page);
  EXPECT_EQ(pool.free_pages(), 2);
}

TEST(PagePool, ManyRandomStepsAgreeWithACountOfReferences) {
  PagePool pool(20);
  std::map<int32_t, int> references;
  std::mt19937 random(1);
  for (int step = 0; step < 20000; ++step) {
    auto page = references.begin();
    if (!references.empty()) std::advance(page, random() % references.size());
    switch (random() % 3) {
      case 0: {
        const std::optional<int32_t> taken = pool.Take();
        ASSERT_EQ(taken.has_value(), references.size() < 20);
        if (taken) {
          for (int32_t lower = 0; lower < *taken; ++lower) ASSERT_TRUE(references.contains(lower));
          ASSERT_TRUE(references.emplace(*taken, 1).second) << "page " << *taken << " is in use";
        }
        break;
      }
      case 1:
        if (references.empty()) break;
        pool.Retain(page->first);
        ++page->second;
        break;
      default:
        if (references.empty()) break;
        pool.Release(page->first);
        if (--page->second == 0) references.erase(page);
    }
    ASSERT_EQ(pool.free_pages(), 20 - std::ssize(references));
  }
}

TEST(PagePoolDeathTest, ReleasingOrRetainingAFreePageAborts) {
  PagePool pool(2);
  const int32_t page = *pool.Take();
  pool.Release(page);
  EXPECT_DEATH(pool.Release(page), "page 0 is free");
  EXPECT_DEATH(pool.Retain(1), "page 1 is free");
}

}  // namespace
}  // namespace halfbyte
