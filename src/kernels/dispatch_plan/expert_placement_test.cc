#include "kernels/dispatch_plan/expert_placement.h"

#include <gtest/gtest.h>

#include <numeric>

namespace halfbyte {
namespace {

TEST(ExpertPlacement, BalancedRangesGiveEveryExpertOneOwner) {  // EP-02
  struct Case {
    int32_t experts, ranks;
  };
  for (const Case c : {Case{256, 24}, Case{384, 20}, Case{256, 6}, Case{8, 2}, Case{7, 7},
                       Case{3, 8}, Case{1, 1}}) {
    std::vector<int> owners_of(static_cast<size_t>(c.experts), 0);
    int32_t next = 0;
    for (int32_t rank = 0; rank < c.ranks; ++rank) {
      const ExpertPlacement p = *ExpertPlacement::Balanced(c.experts, c.ranks, rank);
      EXPECT_EQ(p.local_experts(), c.experts / c.ranks + (rank < c.experts % c.ranks));
      for (int32_t e = 0; e < p.local_experts(); ++e) {
        const GlobalExpert global = p.ToGlobal(LocalExpert{e});
        EXPECT_EQ(Index(global), next + e);  // contiguous, in rank order
        EXPECT_EQ(p.owner(global), rank);
        ++owners_of[static_cast<size_t>(Index(global))];
      }
      next += p.local_experts();
    }
    for (const int owners : owners_of) EXPECT_EQ(owners, 1);
  }
  const ExpertPlacement last = *ExpertPlacement::Balanced(256, 24, 23);
  EXPECT_EQ(Index(last.ToGlobal(LocalExpert{0})), 246);
  EXPECT_EQ(last.owner(GlobalExpert{255}), 23);
}

TEST(ExpertPlacement, TheNeighboursOfARankAreForeign) {  // R50, R52
  for (const int32_t rank : {0, 5, 7}) {
    const ExpertPlacement p = *ExpertPlacement::Balanced(384, 8, rank);
    const int32_t begin = rank * 48;
    EXPECT_EQ(p.ToLocal(begin), LocalExpert{0});
    EXPECT_EQ(p.ToLocal(begin + 47), LocalExpert{47});
    EXPECT_EQ(p.ToLocal(begin - 1), std::nullopt);
    EXPECT_EQ(p.ToLocal(begin + 48), std::nullopt);
    int local = 0;
    for (int32_t id = -2; id < 387; ++id) local += p.ToLocal(id).has_value();
    EXPECT_EQ(local, 48);
  }
}

TEST(ExpertPlacement, MarkersOnEitherSideAreNoExpert) {  // RTE-02
  const ExpertPlacement p = ExpertPlacement::Single(4);
  for (const int32_t id :
       {-1, 4, 5, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    EXPECT_EQ(p.ToLocal(id), std::nullopt);
  }
  EXPECT_EQ(p.ToLocal(3), LocalExpert{3});
}

TEST(ExpertPlacement, ATableMayScatterExperts) {  // R55
  const ExpertPlacement p = *ExpertPlacement::Table({1, 0, 1, 2, 0}, 3, 1);
  EXPECT_EQ(p.local_experts(), 2);
  EXPECT_EQ(p.ToLocal(0), LocalExpert{0});
  EXPECT_EQ(p.ToLocal(2), LocalExpert{1});
  EXPECT_EQ(p.ToLocal(1), std::nullopt);
  EXPECT_EQ(Index(p.ToGlobal(LocalExpert{1})), 2);
}

TEST(ExpertPlacement, LocalListsAreCutByGlobalIds) {  // EP-01
  const std::vector<float> scales = {1, 2, 3, 4, 5, 6, 7, 8};
  const ExpertPlacement p = *ExpertPlacement::Balanced(8, 2, 1);
  EXPECT_EQ(*p.LocalPart(scales), (std::vector<float>{5, 6, 7, 8}));
  EXPECT_FALSE(p.LocalPart(std::vector<float>(4)).has_value());
}

TEST(ExpertPlacement, NonsenseIsRefusedInASentence) {
  EXPECT_FALSE(ExpertPlacement::Balanced(0, 1, 0).has_value());
  EXPECT_FALSE(ExpertPlacement::Balanced(4, 0, 0).has_value());
  EXPECT_FALSE(ExpertPlacement::Balanced(4, 2, 2).has_value());
  EXPECT_FALSE(ExpertPlacement::Balanced(4, 2, -1).has_value());
  EXPECT_FALSE(ExpertPlacement::Table({}, 1, 0).has_value());
  const auto bad = ExpertPlacement::Table({0, 3}, 2, 0);
  ASSERT_FALSE(bad.has_value());
  EXPECT_NE(bad.error().message.find("expert 1 has owner 3"), std::string::npos);
}

}  // namespace
}  // namespace halfbyte
