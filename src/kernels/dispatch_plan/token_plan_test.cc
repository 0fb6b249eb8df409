#include "kernels/dispatch_plan/token_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "device/cuda/gpu_test.h"
#include "kernels/dispatch_plan/dispatch_plan.h"

namespace halfbyte {
namespace {

constexpr int32_t kAtom = kTileStep;

struct HostPlan {
  std::vector<TokenTile> tiles;
  int32_t wide_tiles = 0;
  std::vector<int32_t> row_of_slot, slot_of_row, tile_of_atom;
};

// By kernels/dispatch_plan/dispatch_plan.h and the cuts of token_tiles.h.
HostPlan ReferencePlan(const ExpertPlacement& placement, const std::vector<int32_t>& ids,
                       int32_t max_tile_rows, int32_t wide_tile_rows) {
  const auto slots = static_cast<int64_t>(ids.size());
  DispatchPlan plan(slots, placement.local_experts(), kAtom);
  HB_CHECK(plan.Build(placement, {ids.data(), slots, 1}).has_value(), "too many slots");
  HostPlan host;
  for (int64_t s = 0; s < slots; ++s) {
    host.row_of_slot.push_back(static_cast<int32_t>(plan.padded_row_of_slot(s)));
  }
  for (int64_t r = 0; r < plan.offsets().padded_rows(); ++r) {
    host.slot_of_row.push_back(static_cast<int32_t>(plan.slot_of_padded_row(r)));
  }
  for (int32_t e = 0; e < placement.local_experts(); ++e) {
    const auto rows = static_cast<int32_t>(plan.offsets().count(LocalExpert{e}));
    const auto begin = static_cast<int32_t>(plan.offsets().begin(LocalExpert{e}));
    const int32_t count = TilesOfExpert(rows, max_tile_rows);
    for (int32_t i = 0; i < count; ++i) {
      const TokenTile tile = TileOfExpert(e, begin, rows, i, count);
      host.tiles.push_back(tile);
    }
  }
  const auto middle =
      std::stable_partition(host.tiles.begin(), host.tiles.end(),
                            [&](const TokenTile& tile) { return tile.rows > wide_tile_rows; });
  host.wide_tiles = static_cast<int32_t>(middle - host.tiles.begin());
  host.tile_of_atom.resize(host.slot_of_row.size() / kAtom);
  for (size_t i = 0; i < host.tiles.size(); ++i) {
    for (int32_t a = 0; a < host.tiles[i].rows / kAtom; ++a) {
      host.tile_of_atom[static_cast<size_t>(host.tiles[i].row_begin / kAtom + a)] =
          static_cast<int32_t>(i);
    }
  }
  return host;
}

class TokenPlanCuda : public GpuTest {
 protected:
  void Compare(const ExpertPlacement& placement, const std::vector<int32_t>& ids,
               int32_t max_tile_rows, int32_t wide_tile_rows = 0) {
    const auto slots = static_cast<int64_t>(ids.size());
    const int64_t experts = placement.local_experts();
    const auto max_rows = static_cast<size_t>(MaxTokenRows(slots, experts));
    const auto max_tiles = static_cast<size_t>(MaxTokenTiles(slots, experts, max_tile_rows));
    std::vector<int32_t> locals;
    for (int32_t id = 0; id < placement.experts(); ++id) {
      const auto local = placement.ToLocal(id);
      locals.push_back(local ? Index(*local) : -1);
    }
    DeviceArray<int32_t> d_ids(ids), d_locals(locals), tile_count(2), row_count(1),
        row_of_slot(ids.size()), slot_of_row(max_rows), tile_of_atom(max_rows / kAtom),
        counts(static_cast<size_t>(PlanChunks(slots) * experts));
    DeviceArray<TokenTile> tiles(max_tiles);
    const TokenPlan plan{tiles.data(),       tile_count.data(),  row_count.data(),
                         row_of_slot.data(), slot_of_row.data(), tile_of_atom.data(),
                         counts.data()};
    ASSERT_EQ(PrepareTokenPlan(), cudaSuccess);
    ASSERT_TRUE(Finish(LaunchTokenPlan({.topk_ids = d_ids.data(),
                                        .slots = slots,
                                        .local_of_global = d_locals.data(),
                                        .global_experts = placement.experts(),
                                        .local_experts = placement.local_experts(),
                                        .max_tile_rows = max_tile_rows,
                                        .wide_tile_rows = wide_tile_rows},
                                       plan, stream.get())));
    const HostPlan host = ReferencePlan(placement, ids, max_tile_rows, wide_tile_rows);
    ASSERT_LE(host.slot_of_row.size(), max_rows);
    ASSERT_LE(host.tiles.size(), max_tiles);
    ASSERT_EQ(tile_count.Read(),
              (std::vector<int32_t>{static_cast<int32_t>(host.tiles.size()), host.wide_tiles}));
    ASSERT_EQ(row_count.Read()[0], std::ssize(host.slot_of_row));
    EXPECT_EQ(row_of_slot.Read(), host.row_of_slot);
    EXPECT_EQ(Head(slot_of_row.Read(), host.slot_of_row.size()), host.slot_of_row);
    EXPECT_EQ(Head(tile_of_atom.Read(), host.tile_of_atom.size()), host.tile_of_atom);
    const std::vector<TokenTile> written = tiles.Read();
    for (size_t i = 0; i < host.tiles.size(); ++i) {
      ASSERT_EQ(written[i].expert, host.tiles[i].expert) << i;
      ASSERT_EQ(written[i].row_begin, host.tiles[i].row_begin) << i;
      ASSERT_EQ(written[i].rows, host.tiles[i].rows) << i;
    }
  }

  static std::vector<int32_t> Head(std::vector<int32_t> values, size_t count) {
    values.resize(count);
    return values;
  }
};

std::vector<int32_t> RandomIds(int64_t slots, int32_t experts, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(slots));
  for (int32_t& id : ids) {
    id = random() % 10 == 0 ? -1 : static_cast<int32_t>(random() % static_cast<uint32_t>(experts));
  }
  return ids;
}

TEST_F(TokenPlanCuda, IsThatOfTheCpuForEveryNumberOfSlotsAndExperts) {  // R44, R45
  uint32_t seed = 0;
  for (const int32_t experts : {1, 2, 7, 48, 256, 384, 2048}) {
    for (const int64_t slots : {1, 2, 31, 32, 33, 384, 2047, 2048, 2049, 6001, 49152}) {
      Compare(ExpertPlacement::Single(experts), RandomIds(slots, experts, ++seed), 32);
    }
  }
}

TEST_F(TokenPlanCuda, PutsWideTilesFirst) {
  for (const int64_t slots : {100, 3000, 20000}) {
    Compare(ExpertPlacement::Single(24), RandomIds(slots, 24, 77), 192, 128);
    Compare(ExpertPlacement::Single(24), RandomIds(slots, 24, 78), 32, 16);
  }
}

TEST_F(TokenPlanCuda, ServesSkewedAndAdversarialRoutings) {  // R37, R38, R46
  const ExpertPlacement placement = ExpertPlacement::Single(48);
  for (const int32_t rows : {8, 32, 192}) {
    Compare(placement, std::vector<int32_t>(5000, 17), rows);  // all to one
    Compare(placement, std::vector<int32_t>(300, -1), rows);   // nobody
    std::vector<int32_t> each(48);
    std::iota(each.begin(), each.end(), 0);
    Compare(placement, each, rows);  // one row per expert
    // The bound of rows: every expert begins an atom with one row.
    std::vector<int32_t> worst = each;
    worst.insert(worst.end(), 8192 * 6 - 48, 47);
    Compare(placement, worst, rows);
    std::vector<int32_t> outside = each;
    for (const int32_t id : {48, 49, -2, 1 << 30, -(1 << 30)}) outside.push_back(id);
    Compare(placement, outside, rows);
  }
}

TEST_F(TokenPlanCuda, ForeignSlotsTakeNoRow) {  // R50, R52
  for (const int32_t rank : {0, 5, 7}) {
    const auto placement = ExpertPlacement::Balanced(384, 8, rank);
    ASSERT_TRUE(placement.has_value());
    Compare(*placement, RandomIds(3000, 384, static_cast<uint32_t>(rank)), 64);
  }
  std::vector<int32_t> owners(37);
  for (size_t e = 0; e < owners.size(); ++e) owners[e] = static_cast<int32_t>(e * 7 % 3);
  const auto table = ExpertPlacement::Table(owners, 3, 1);
  ASSERT_TRUE(table.has_value());
  Compare(*table, RandomIds(500, 37, 5), 64);
}

}  // namespace
}  // namespace halfbyte
