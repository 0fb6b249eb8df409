#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace halfbyte {
namespace {

std::vector<int32_t> Ids(int64_t count, int32_t first = 0) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

constexpr int64_t kNever = 1 << 20;  // longer than anything here: no replay

class PrefixCacheTest : public testing::Test {
 protected:
  // A sequence that has computed `tokens`, its blocks cached; with a snapshot at its end.
  void Compute(PrefixCache& cache, const std::vector<int32_t>& tokens, const std::string& salt = "",
               bool snapshot = true) {
    PrefixCache::Chain chain = cache.Find(salt, {}, 0, kNever).chain;
    Sequence sequence = *pages_.NewSequence();
    for (int64_t left = std::ssize(tokens); left > 0; left -= 64) {
      ASSERT_TRUE(pages_.Reserve(sequence, std::min<int64_t>(left, 64)));
      pages_.Advance(sequence, std::min<int64_t>(left, 64));
    }
    cache.Extend(chain, sequence, tokens);
    if (snapshot) cache.TakeSnapshot(chain, sequence, /*rolling=*/false);
  }
  int64_t Hit(PrefixCache& cache, const std::vector<int32_t>& tokens,
              const std::string& salt = "") {
    const auto match = cache.Find(salt, tokens, std::ssize(tokens), kNever);
    return match.snapshot != nullptr ? match.snapshot->position() : 0;
  }

  const KvPoolSizes sizes_{10, 60, 4, 3};
  KvPages pages_{sizes_, 128};
};

uint64_t AlwaysTheSame(uint64_t, std::span<const int32_t>) { return 7; }

TEST_F(PrefixCacheTest, ACollisionOfKeysNeverHits) {
  PrefixCache cache(pages_, true, AlwaysTheSame);
  Compute(cache, Ids(512));
  Compute(cache, Ids(512, 9));
  EXPECT_EQ(Hit(cache, Ids(512)), 512);
  EXPECT_EQ(Hit(cache, Ids(512, 9)), 512);
  EXPECT_EQ(Hit(cache, Ids(512, 10)), 0);
  EXPECT_EQ(Hit(cache, Ids(512), "salt"), 0);
  std::vector<int32_t> twice = Ids(256);
  twice.insert(twice.end(), twice.begin(), twice.begin() + 256);
  EXPECT_EQ(cache.Find("", twice, 512, kNever).found_tokens, 256);  // a block is not its own child
}

TEST_F(PrefixCacheTest, ABlockThatIsCompletedTwiceIsKeptOnce) {
  PrefixCache cache(pages_, true);
  Compute(cache, Ids(512));
  Compute(cache, Ids(600));
  EXPECT_EQ(cache.cached_blocks(), 2);
  EXPECT_EQ(pages_.free().context_blocks, 8);
}

TEST_F(PrefixCacheTest, WithoutASnapshotThereIsNothingToContinueFrom) {
  PrefixCache cache(pages_, true);
  Compute(cache, Ids(512), "", /*snapshot=*/false);
  const auto match = cache.Find("", Ids(600), 600, kNever);
  EXPECT_EQ(match.snapshot, nullptr);
  EXPECT_EQ(match.found_tokens, 512);
}

TEST_F(PrefixCacheTest, BlocksAreReplayedWhereThatLeavesLessToCompute) {
  PrefixCache cache(pages_, true);
  Compute(cache, Ids(256));
  Compute(cache, Ids(1024), "", /*snapshot=*/false);
  const auto shared = [&](int64_t replay_tokens, int64_t limit = 1024) {
    const auto match = cache.Find("", Ids(1024), limit, replay_tokens);
    EXPECT_EQ(match.snapshot != nullptr, match.chain.tokens() == 256);
    EXPECT_EQ(match.chain.context_blocks().size() * 256, match.chain.tokens());
    EXPECT_EQ(match.found_tokens, limit / 256 * 256);
    return match.chain.tokens();
  };
  EXPECT_EQ(shared(767), 1024);
  EXPECT_EQ(shared(768), 256);  // as much: from the snapshot
  EXPECT_EQ(shared(500, 1023), 768);
  EXPECT_EQ(shared(500, 767), 256);
  EXPECT_EQ(shared(0, 400), 256);
  // Of a longer replay than there are tokens nothing is left.
  EXPECT_EQ(cache.Find("", Ids(256, 5), 256, 100).chain.tokens(), 0);
  const auto match = cache.Find("", Ids(1024), 1024, 100);
  EXPECT_EQ(match.chain.context_blocks(), (std::vector<int32_t>{0, 2, 3, 4}));  // 1 was cached
  EXPECT_EQ(cache.held_blocks(), 4);
}

TEST_F(PrefixCacheTest, EvictsTheLeastRecentlyUsedAndChildrenFirst) {
  PrefixCache cache(pages_, true);
  Compute(cache, Ids(768));              // three blocks
  Compute(cache, Ids(512, 1000));        // two
  EXPECT_EQ(Hit(cache, Ids(768)), 768);  // used later
  EXPECT_EQ(cache.available(), 10);
  ASSERT_TRUE(cache.MakeFree(6));
  EXPECT_EQ(cache.Find("", Ids(512, 1000), 512, kNever).found_tokens, 256);  // its child went
  ASSERT_TRUE(cache.MakeFree(8));
  EXPECT_EQ(cache.Find("", Ids(768), 768, kNever).found_tokens, 512);
  EXPECT_EQ(pages_.free().tails, 3);  // snapshots went with their blocks
  EXPECT_FALSE(cache.MakeFree(11));
  EXPECT_EQ(cache.cached_blocks(), 2);
  ASSERT_TRUE(cache.MakeFree(10));
  EXPECT_EQ(pages_.free(), sizes_);
}

TEST_F(PrefixCacheTest, BlocksInUseAreNeverEvicted) {
  PrefixCache cache(pages_, true);
  Compute(cache, Ids(768));
  {
    const auto match = cache.Find("", Ids(768), 512, kNever);
    EXPECT_EQ(match.snapshot, nullptr);  // the only snapshot is at 768
  }
  const auto match = cache.Find("", Ids(768), 768, kNever);
  EXPECT_EQ(cache.held_blocks(), 3);
  EXPECT_EQ(cache.available(), 7);
  EXPECT_FALSE(cache.MakeFree(8));
  cache.Clear();
  EXPECT_EQ(cache.cached_blocks(), 3);
  EXPECT_EQ(match.snapshot->position(), 768);
}

TEST_F(PrefixCacheTest, TheOldestSnapshotMakesRoomForANewOne) {
  PrefixCache cache(pages_, true);
  for (int32_t i = 0; i < 4; ++i) Compute(cache, Ids(256, 1000 * i));
  EXPECT_EQ(Hit(cache, Ids(256, 0)), 0);
  for (int32_t i = 1; i < 4; ++i) EXPECT_EQ(Hit(cache, Ids(256, 1000 * i)), 256) << i;
}

TEST_F(PrefixCacheTest, Disabled) {
  PrefixCache cache(pages_, false);
  Compute(cache, Ids(768));
  EXPECT_EQ(Hit(cache, Ids(768)), 0);
  EXPECT_EQ(pages_.free(), sizes_);
}

}  // namespace
}  // namespace halfbyte
