#include "kernels/dispatch_plan/dispatch_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <random>

#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

// top_k ids per token that give the local experts of `placement` these counts, shuffled.
std::vector<int32_t> IdsForCounts(const std::vector<int64_t>& counts, uint32_t seed) {
  std::vector<int32_t> ids;
  for (size_t e = 0; e < counts.size(); ++e) {
    ids.insert(ids.end(), static_cast<size_t>(counts[e]), static_cast<int32_t>(e));
  }
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
  return ids;
}

DispatchPlan PlanFor(const ExpertPlacement& placement, const std::vector<int32_t>& ids,
                     int64_t top_k, int64_t alignment) {
  const auto slots = static_cast<int64_t>(ids.size());
  DispatchPlan plan(slots, placement.local_experts(), alignment);
  EXPECT_TRUE(plan.Build(placement, {ids.data(), slots / top_k, top_k}).has_value());
  return plan;
}

void ExpectInvariants(const DispatchPlan& plan, const ExpertPlacement& placement,
                      const std::vector<int32_t>& ids) {
  const ExpertOffsets& offsets = plan.offsets();
  EXPECT_LE(offsets.padded_rows(), plan.row_capacity());
  std::vector<int64_t> seen(static_cast<size_t>(plan.row_capacity()), DispatchPlan::kNone);
  std::vector<int64_t> next;
  for (int32_t e = 0; e < placement.local_experts(); ++e) {
    const LocalExpert expert{e};
    EXPECT_EQ(offsets.begin(expert) % plan.alignment(), 0);
    EXPECT_EQ(offsets.padded_end(expert),
              offsets.begin(expert) + RoundUp(offsets.count(expert), plan.alignment()));
    next.push_back(offsets.begin(expert));
  }
  for (int64_t s = 0; s < plan.slots(); ++s) {
    const auto expert = placement.ToLocal(ids[static_cast<size_t>(s)]);
    const int64_t row = plan.padded_row_of_slot(s);
    if (!expert) {
      EXPECT_EQ(row, DispatchPlan::kNone);
      continue;
    }
    EXPECT_EQ(row, next[static_cast<size_t>(Index(*expert))]++);  // slot order in the expert
    EXPECT_EQ(offsets.ExpertOf(row), *expert);
    EXPECT_EQ(plan.slot_of_padded_row(row), s);
    seen[static_cast<size_t>(row)] = s;
  }
  for (int64_t r = 0; r < offsets.padded_rows(); ++r) {
    EXPECT_EQ(plan.slot_of_padded_row(r), seen[static_cast<size_t>(r)]);  // padding is kNone
  }
}

TEST(ExpertOffsets, TheRowAtAnEndBelongsToTheNextExpertThatHasRows) {  // R34
  const ExpertOffsets offsets = *ExpertOffsets::FromEnds(std::vector<int64_t>{4, 8, 8}, 3);
  EXPECT_EQ(offsets.ExpertOf(3), LocalExpert{0});
  EXPECT_EQ(offsets.ExpertOf(4), LocalExpert{1});
  EXPECT_EQ(offsets.ExpertOf(7), LocalExpert{1});
  const ExpertOffsets gap = *ExpertOffsets::FromEnds(std::vector<int64_t>{0, 0, 5, 5, 6}, 5);
  EXPECT_EQ(gap.ExpertOf(0), LocalExpert{2});
  EXPECT_EQ(gap.ExpertOf(5), LocalExpert{4});
}

TEST(ExpertOffsets, EndsHaveOneEntryPerExpertAndALeadingZeroIsRefused) {  // R35
  const std::vector<int64_t> counts = {3, 0, 2};
  EXPECT_EQ(ExpertOffsets(counts, 128).ends(), (std::vector<int64_t>{3, 3, 5}));
  const auto zero = ExpertOffsets::FromEnds(std::vector<int64_t>{0, 3, 3, 5}, 3);
  ASSERT_FALSE(zero.has_value());
  EXPECT_NE(zero.error().message.find("leading zero"), std::string::npos);
  EXPECT_FALSE(ExpertOffsets::FromEnds(std::vector<int64_t>{3, 2, 5}, 3).has_value());
}

TEST(ExpertOffsets, PaddedRangesFollowTheCounts) {  // LAY-04, RTE-05
  const std::vector<int64_t> counts = {500, 4, 0, 129};
  const ExpertOffsets offsets(counts, 128);
  const std::vector<int64_t> begins = {0, 512, 640, 640}, ends = {512, 640, 640, 896};
  for (int32_t e = 0; e < 4; ++e) {
    EXPECT_EQ(offsets.begin(LocalExpert{e}), begins[static_cast<size_t>(e)]);
    EXPECT_EQ(offsets.padded_end(LocalExpert{e}), ends[static_cast<size_t>(e)]);
  }
  EXPECT_EQ(offsets.rows(), 633);
  EXPECT_EQ(ExpertOffsets(std::vector<int64_t>{4, 0, 129, 128, 300}, 128).padded_rows(), 896);
  EXPECT_EQ(ExpertOffsets(std::vector<int64_t>{0, 0, 0}, 128).padded_rows(), 0);
}

TEST(ExpertOffsets, ScaleRowsOfAnExpertLieAtItsPaddedRow) {  // LAY-04, R36: nothing stops at 127
  const ExpertOffsets offsets(std::vector<int64_t>{500, 524, 0, 129}, 128);
  const TiledScales all{offsets.padded_rows(), 448};
  for (int32_t e = 0; e < 4; ++e) {
    const LocalExpert expert{e};
    const TiledScales own{offsets.count(expert), 448};
    const int64_t base = all.offset(offsets.begin(expert), 0);
    for (int64_t row = 0; row < offsets.count(expert); ++row) {
      EXPECT_EQ(base + own.offset(row, 7), all.offset(offsets.begin(expert) + row, 7));
    }
  }
}

TEST(DispatchPlan, EveryTokenLandsInItsExpertsRange) {  // R37, R41, R44, RTE-05
  const ExpertPlacement placement = ExpertPlacement::Single(5);
  for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{
           {129, 0, 127, 500, 4}, {3, 0, 2, 0, 0}, {0, 0, 0, 0, 5}, {900, 0, 0, 0, 0}}) {
    for (const int64_t alignment : {1, 8, 128}) {
      const std::vector<int32_t> ids = IdsForCounts(counts, 1);
      const DispatchPlan plan = PlanFor(placement, ids, 1, alignment);
      for (int32_t e = 0; e < 5; ++e) {
        EXPECT_EQ(plan.offsets().count(LocalExpert{e}), counts[static_cast<size_t>(e)]);
      }
      ExpectInvariants(plan, placement, ids);
    }
  }
}

TEST(DispatchPlan, MarkersTakeNoRow) {  // RTE-02, R45
  const ExpertPlacement placement = ExpertPlacement::Single(4);
  const std::vector<int32_t> ids = {0, -1, -1, -1, 3, 4};
  const DispatchPlan plan = PlanFor(placement, ids, 2, 128);
  EXPECT_EQ(plan.offsets().rows(), 2);
  EXPECT_EQ(plan.offsets().count(LocalExpert{0}), 1);
  EXPECT_EQ(plan.offsets().count(LocalExpert{3}), 1);
  EXPECT_EQ(plan.slot_of_padded_row(0), 0);
  EXPECT_EQ(plan.slot_of_padded_row(128), 4);
  ExpectInvariants(plan, placement, ids);
  EXPECT_EQ(PlanFor(placement, {-1, -1, -1}, 3, 128).offsets().padded_rows(), 0);
}

TEST(DispatchPlan, DuplicateIdsOfATokenAreTwoSlots) {  // R46
  const DispatchPlan plan = PlanFor(ExpertPlacement::Single(4), {2, 2, 2, 1}, 2, 1);
  EXPECT_EQ(plan.offsets().count(LocalExpert{2}), 3);
}

TEST(DispatchPlan, OneChoicePerTokenStillGoesThroughTheMap) {  // R43: T = S is no identity
  const DispatchPlan plan = PlanFor(ExpertPlacement::Single(3), {2, 0, 1}, 1, 1);
  EXPECT_EQ(plan.padded_row_of_slot(0), 2);
  EXPECT_EQ(plan.padded_row_of_slot(1), 0);
  EXPECT_EQ(plan.padded_row_of_slot(2), 1);
}

TEST(DispatchPlan, TheBoundIsReachedAndNeverExceeded) {  // R38, LAY-05
  EXPECT_EQ(PaddedRowsBound(8192 * 6, 32, 128), 53120);
  EXPECT_EQ(PaddedRowsBound(8192 * 6, 48, 128), 55168);
  EXPECT_EQ(PaddedRowsBound(8192 * 6, 256, 128), 81664);
  EXPECT_EQ(PaddedRowsBound(0, 48, 128), 0);
  // All experts but one get one row more than a multiple of 128.
  std::vector<int64_t> counts(48, 1);
  int64_t left = 8192 * 6 - 48;
  for (size_t e = 0; left >= 128; e = (e + 1) % 48, left -= 128) counts[e] += 128;
  counts[0] += left;
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 8192 * 6);
  const DispatchPlan plan = PlanFor(ExpertPlacement::Single(48), IdsForCounts(counts, 2), 6, 128);
  EXPECT_EQ(plan.offsets().padded_rows(), 55168);
  EXPECT_EQ(plan.row_capacity(), 55168);
}

TEST(DispatchPlan, OneSlotBeyondTheCapacityIsRefused) {  // LAY-05
  const ExpertPlacement placement = ExpertPlacement::Single(3);
  DispatchPlan plan(6, 3, 128);
  const std::vector<int32_t> ids(7, 1);
  EXPECT_TRUE(plan.Build(placement, {ids.data(), 6, 1}).has_value());
  const Status refused = plan.Build(placement, {ids.data(), 7, 1});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("capacity of 6"), std::string::npos);
}

TEST(DispatchPlan, RowsTimesWidthAreCountedIn64Bits) {  // R48, RTE-03
  static_assert(RowElementOffset(49932, 6, 7168) == 2147475456);
  static_assert(RowElementOffset(49933, 6, 7168) == 2147518464);
  static_assert(RowElementOffset(56000, 8, 7168) == 3211264000);
}

RC_GTEST_PROP(DispatchPlan, HoldsItsInvariantsForAnyIdsAndRank, ()) {
  const auto experts = *rc::gen::inRange<int32_t>(1, 40);
  const auto ranks = *rc::gen::inRange<int32_t>(1, 6);
  const auto rank = *rc::gen::inRange<int32_t>(0, ranks);
  const auto ids =
      *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange<int32_t>(-2, experts + 2));
  const auto alignment = *rc::gen::element<int64_t>(1, 8, 128);
  const ExpertPlacement placement = *ExpertPlacement::Balanced(experts, ranks, rank);
  ExpectInvariants(PlanFor(placement, ids, 1, alignment), placement, ids);
}

}  // namespace
}  // namespace halfbyte
