#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "comm/communicator.h"
#include "comm/in_process_ranks.h"

namespace halfbyte {
namespace {

// Runs body(communicator) in a thread for each rank and waits for all.
void OnEachRank(int size, const std::function<void(Communicator&)>& body) {
  auto ranks = InProcessRanks(size);
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&body, mine = std::move(rank)] { body(*mine); });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<float> RandomValues(int seed, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal(0, 1e3f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Communicator, SumsInTheOrderOfTheRanks) {
  for (const int size : {1, 2, 3, 8}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{40000}}) {  // none, one, some pieces
      std::vector<float> expected = RandomValues(0, count);
      for (int r = 1; r < size; ++r) {
        const std::vector<float> other = RandomValues(r, count);
        for (size_t i = 0; i < count; ++i) expected[i] += other[i];
      }
      OnEachRank(size, [&](Communicator& ranks) {
        std::vector<float> values = RandomValues(ranks.rank(), count);
        ASSERT_TRUE(ranks.AllReduceSum(values).has_value());
        EXPECT_EQ(values, expected);
        EXPECT_FALSE(ranks.Leave(true));
      });
    }
  }
}

TEST(Communicator, MaximumTellsNotANumber) {
  OnEachRank(3, [](Communicator& ranks) {
    const auto rank = static_cast<float>(ranks.rank());
    std::vector<float> values = {rank, -rank, ranks.rank() == 1 ? std::nanf("") : 5.0f};
    ASSERT_TRUE(ranks.AllReduceMax(values).has_value());
    EXPECT_EQ(values[0], 2.0f);
    EXPECT_EQ(values[1], 0.0f);
    EXPECT_TRUE(std::isnan(values[2]));
    EXPECT_FALSE(ranks.Leave(true));
  });
}

TEST(Communicator, GathersTheBitsOfEveryRankInOrder) {
  // Ranks without a number, and numbers that arithmetic would change.
  const std::vector<int64_t> counts = {2, 0, 3, 0};
  const float strange[] = {-0.0f, std::nanf("7"), 1e-45f, -std::numeric_limits<float>::infinity(),
                           1.0f};
  OnEachRank(4, [&](Communicator& ranks) {
    const std::span<const float> all_values(strange);
    const std::span<const float> mine = ranks.rank() == 0   ? all_values.first(2)
                                        : ranks.rank() == 2 ? all_values.last(3)
                                                            : all_values.first(0);
    float all[5] = {};
    ASSERT_TRUE(ranks.AllGather(mine, counts, all).has_value());
    EXPECT_EQ(std::memcmp(all, strange, sizeof(all)), 0);
    EXPECT_FALSE(ranks.Leave(true));
  });
}

TEST(Communicator, CollectsAnObjectOfEveryRank) {
  struct Pair {
    int64_t number;
    double half;
  };
  OnEachRank(3, [](Communicator& ranks) {
    const Pair mine[] = {{ranks.rank(), ranks.rank() / 2.0}, {-ranks.rank(), 0}};
    const auto all = ranks.Collect(std::span<const Pair>(mine));
    ASSERT_TRUE(all.has_value());
    ASSERT_EQ(all->size(), 6u);
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ((*all)[static_cast<size_t>(2 * r)].number, r);
      EXPECT_EQ((*all)[static_cast<size_t>(2 * r)].half, r / 2.0);
      EXPECT_EQ((*all)[static_cast<size_t>(2 * r) + 1].number, -r);
    }
    EXPECT_TRUE(ranks.Collect(std::span<const Pair>())->empty());
    EXPECT_FALSE(ranks.Leave(true));
  });
}

TEST(Communicator, BroadcastsFromAnyRoot) {
  OnEachRank(3, [](Communicator& ranks) {
    for (int root = 0; root < 3; ++root) {
      int64_t value = 100 + ranks.rank();
      ASSERT_TRUE(ranks.Broadcast(std::as_writable_bytes(std::span(&value, 1)), root).has_value());
      EXPECT_EQ(value, 100 + root);
    }
    ASSERT_TRUE(ranks.Barrier().has_value());
    EXPECT_FALSE(ranks.Leave(true));
  });
}

TEST(Communicator, OneFailedRankEndsAllAndReportsAlone) {
  for (const int culprit : {0, 2}) {
    OnEachRank(3, [&](Communicator& ranks) {
      if (ranks.rank() == culprit) {
        EXPECT_TRUE(ranks.Leave(false));
        return;
      }
      float value = 1;
      const Status status = ranks.AllReduceSum({&value, 1});
      ASSERT_FALSE(status.has_value());
      EXPECT_EQ(status.error().message, fmt::format("rank {} of 3 failed", culprit));
      EXPECT_FALSE(ranks.Barrier().has_value());  // nothing works any more, and nothing waits
      EXPECT_FALSE(ranks.Leave(false));
    });
  }
}

TEST(Communicator, OfRanksThatFailTogetherTheLowestReports) {
  OnEachRank(3, [](Communicator& ranks) { EXPECT_EQ(ranks.Leave(false), ranks.first()); });
}

TEST(Communicator, AFailureAtTheEndReachesRanksThatDidWell) {
  OnEachRank(2, [](Communicator& ranks) { EXPECT_EQ(ranks.Leave(ranks.first()), !ranks.first()); });
}

TEST(Communicator, RanksThatDoDifferentThingsAreToldSo) {  // EP-03: no rank waits for ever
  const auto expect_refusal = [](Communicator& ranks, const Status& status) {
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().message,
              "rank 1 of 2 is doing something else than rank 0: start all ranks with the same "
              "program, model and flags");
    EXPECT_EQ(ranks.Leave(false), ranks.first());
  };
  OnEachRank(2, [&](Communicator& ranks) {  // other sizes
    std::vector<float> values(ranks.first() ? 3 : 4);
    expect_refusal(ranks, ranks.AllReduceSum(values));
  });
  OnEachRank(2, [&](Communicator& ranks) {  // the same total, divided otherwise
    const std::vector<int64_t> counts =
        ranks.first() ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{2, 1};
    const float mine = 0;
    float all[3];
    expect_refusal(ranks, ranks.AllGather({&mine, 1}, counts, all));
  });
  OnEachRank(2, [&](Communicator& ranks) {  // fewer objects
    const std::vector<int> mine(ranks.first() ? 2 : 1);
    const auto all = ranks.Collect(std::span(mine));
    expect_refusal(ranks, all ? Status() : tl::unexpected<Error>(all.error()));
  });
  OnEachRank(2, [&](Communicator& ranks) {  // another operation
    float value = 0;
    expect_refusal(ranks, ranks.first() ? ranks.Barrier() : ranks.AllReduceMax({&value, 1}));
  });
  OnEachRank(2, [&](Communicator& ranks) {  // one thinks that the work is done
    if (ranks.first()) {
      expect_refusal(ranks, ranks.Barrier());
    } else {
      EXPECT_FALSE(ranks.Leave(true));
    }
  });
}

TEST(Communicator, IfTheFirstRankHasFinishedTheNextOneReports) {
  OnEachRank(3, [](Communicator& ranks) {
    if (ranks.first()) {
      EXPECT_FALSE(ranks.Leave(true));
      return;
    }
    EXPECT_FALSE(ranks.Barrier().has_value());
    EXPECT_EQ(ranks.Leave(false), ranks.rank() == 1);
  });
}

TEST(Communicator, ARankThatDisappearsEndsTheOthers) {
  auto ranks = InProcessRanks(2);
  std::thread survivor([mine = std::move(ranks[0])] {
    const Status status = mine->Barrier();
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().message, "another rank is gone");
    EXPECT_TRUE(mine->Leave(false));
  });
  ranks.pop_back();  // no Leave
  survivor.join();
}

TEST(Communicator, OneRankAloneNeedsNobody) {
  const auto ranks = InProcessRanks(1);
  float value = -0.0f;
  ASSERT_TRUE(ranks.front()->AllReduceSum({&value, 1}).has_value());
  EXPECT_TRUE(std::signbit(value));
  EXPECT_TRUE(ranks.front()->Leave(false));
}

}  // namespace
}  // namespace halfbyte
