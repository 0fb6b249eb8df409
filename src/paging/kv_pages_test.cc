#include "paging/kv_pages.h"

#include <gtest/gtest.h>

#include <vector>

#include "paging/paging_test_sequences.h"

namespace halfbyte {
namespace {

TEST(KvPages, AForkSharesFullPagesAndCopiesTheOthers) {
  const KvPoolSizes sizes{4, 16, 3, 0};
  KvPages pages(sizes, /*window=*/128);
  {
    Sequence one = *pages.NewSequence();
    Grow(pages, one, 300, 60);
    const KvPoolSizes before = pages.free();
    std::vector<PageCopy> copies;
    const Sequence fork = *pages.Fork(one, copies);
    EXPECT_EQ(fork.position(), 300);
    EXPECT_EQ(fork.pages().context_blocks[0], one.pages().context_blocks[0]);
    EXPECT_NE(fork.pages().context_blocks[1], one.pages().context_blocks[1]);
    EXPECT_EQ(copies.size(), 3u);
    EXPECT_EQ(pages.free(), (KvPoolSizes{before.context_blocks - 1, before.window_pages - 1,
                                         before.state_slots - 1, 0}));
    const Sequence third = *pages.Fork(one, copies);
    copies.clear();
    EXPECT_FALSE(pages.Fork(one, copies));  // neither a block nor a slot is left
    EXPECT_TRUE(copies.empty());
  }
  EXPECT_EQ(pages.free(), sizes);
}

TEST(KvPages, AReplayHasBlocksAndNoWindowBeforeItsStart) {
  const KvPoolSizes sizes{8, 20, 2, 1};
  KvPages pages(sizes, /*window=*/128);
  {
    Sequence first = *pages.NewSequence();
    Grow(pages, first, 1024);
    const std::vector<int32_t> blocks = first.pages().context_blocks;
    const int64_t windows = pages.free().window_pages;
    Sequence replay = *pages.Replay(blocks, 300);
    EXPECT_EQ(replay.position(), 1024 - 300);
    EXPECT_EQ(replay.pages().replay_start, 1024 - 300);
    EXPECT_EQ(replay.pages().replay_end, 1024);
    EXPECT_EQ(pages.free().context_blocks, 4);
    EXPECT_EQ(pages.free().window_pages, windows);
    ASSERT_TRUE(pages.Reserve(replay, 300));
    EXPECT_EQ(pages.free().context_blocks, 4);
    EXPECT_EQ(pages.free().window_pages, windows - 5);  // 724 to 1,023: pages 11 to 15
    EXPECT_EQ(replay.pages().window_pages[10], -1);
    EXPECT_GE(replay.pages().window_pages[11], 0);
    pages.Advance(replay, 300);
    EXPECT_EQ(pages.free().window_pages, windows - 2);
    EXPECT_TRUE(pages.TakeSnapshot(replay));
    ASSERT_TRUE(pages.Reserve(replay, 1));
    EXPECT_EQ(replay.pages().context_blocks.size(), 5);
    EXPECT_FALSE(pages.Replay(blocks, 300));  // no slot is left
  }
  EXPECT_EQ(pages.free(), sizes);
}

}  // namespace
}  // namespace halfbyte
