#include "moe/expert_exchange.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <thread>

#include "comm/in_process_ranks.h"
#include "moe/moe_test_layer.h"

namespace halfbyte {
namespace {

// H, I, 2I, E, T and k are pairwise different and no multiples of each other (TST-03).
constexpr TestShape kShape{
    .hidden = 96, .intermediate = 80, .experts = 7, .tokens = 11, .top_k = 3};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct World {
  int ranks = 1;
  std::vector<int32_t> owners;  // empty: balanced
  int64_t max_tokens = 64;
};

ExpertPlacement Place(const World& world, int64_t experts, int rank) {
  return world.owners.empty()
             ? *ExpertPlacement::Balanced(static_cast<int32_t>(experts), world.ranks, rank)
             : *ExpertPlacement::Table(world.owners, world.ranks, rank);
}

// Calls body(rank) in a thread for each rank of the world.
void OnEachRank(const World& world, const std::function<void(Communicator&)>& body) {
  auto ranks = InProcessRanks(world.ranks);
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&body, mine = std::move(rank)] {
      body(*mine);
      mine->Leave(true);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What every rank gets; the output buffers hold NaN before.
std::vector<std::vector<float>> RunOnRanks(const TestLayer& layer, const MoeParams& params,
                                           const TestInput& input, const World& world) {
  std::vector<std::vector<float>> outs(static_cast<size_t>(world.ranks));
  OnEachRank(world, [&](Communicator& ranks) {
    const ExpertPlacement placement = Place(world, layer.shape.experts, ranks.rank());
    const MoeLayer mine = layer.Layer(params, &placement);
    ThreadPool pool(1);
    MoeWorkspace workspace(layer.Limits(world.max_tokens));
    ExpertExchange exchange(ranks, layer.Limits(world.max_tokens));
    std::vector<float>& out = outs[static_cast<size_t>(ranks.rank())];
    out.assign(input.hidden.size(), std::nanf(""));
    const Status status =
        exchange.Run(Context(pool), mine, input.Hidden(), input.Routing(),
                     {out.data(), input.shape.tokens, input.shape.hidden}, workspace);
    EXPECT_TRUE(status.has_value());
  });
  return outs;
}

void ExpectOneRanksBits(const TestLayer& layer, const MoeParams& params, const TestInput& input,
                        const World& world) {
  const std::vector<float> expected = layer.Run(params, input);
  const auto outs = RunOnRanks(layer, params, input, world);
  for (size_t r = 0; r < outs.size(); ++r) {
    EXPECT_TRUE(SameBits(outs[r], expected))
        << ArithmeticName(params.arithmetic) << ", rank " << r << " of " << outs.size();
  }
}

std::vector<MoeParams> AllParams(const TestLayer& layer) {
  std::vector<MoeParams> all;
  for (const Arithmetic arithmetic : kArithmetics) {
    for (const auto placement :
         {RoutingWeightPlacement::kBeforeDown, RoutingWeightPlacement::kAfterDown}) {
      all.push_back(layer.Params(arithmetic));
      all.back().routing_weight = placement;
    }
  }
  all.push_back(layer.Params(Arithmetic::kW4a4));
  all.back().gate_up_input_scale = GlobalScale(0.004f);
  all.back().down_input_scale = GlobalScale(0.031f);
  return all;
}

TEST(ExpertExchange, AnyNumberOfRanksGivesTheBitsOfOne) {  // R51, R54
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 1);
  const TestInput input(kShape, 2);
  for (const MoeParams& params : AllParams(layer)) {
    for (const int ranks : {1, 2, 3, 8}) {  // of 8 ranks one has no expert
      ExpectOneRanksBits(layer, params, input, {.ranks = ranks});
    }
  }
}

TEST(ExpertExchange, AnyTableGivesTheBitsOfOneRank) {  // R55
  TestShape shape = kShape;
  shape.intermediate = 160;  // MXFP4 has blocks of 32
  const TestLayer layer(shape, WeightFormat::kMxfp4, 3);
  const TestInput input(shape, 4);
  for (const std::vector<int32_t>& owners : std::vector<std::vector<int32_t>>{
           {2, 0, 2, 1, 0, 2, 1}, {2, 2, 2, 2, 2, 2, 2}, {0, 1, 1, 1, 1, 1, 1}}) {
    for (const MoeParams& params : AllParams(layer)) {
      ExpectOneRanksBits(layer, params, input, {.ranks = 3, .owners = owners});
    }
  }
}

TEST(ExpertExchange, ExpertsThatDoNotDivideEvenlyAllHaveAnOwner) {  // EP-02, R50, R52
  struct Case {
    int64_t experts;
    int ranks;
  };
  for (const Case c : {Case{256, 24}, Case{384, 20}, Case{256, 6}, Case{384, 8}}) {
    const TestShape shape{
        .hidden = 32, .intermediate = 16, .experts = c.experts, .tokens = 64, .top_k = 6};
    const TestLayer layer(shape, WeightFormat::kNvfp4, 5);
    TestInput input(shape, 6);
    // Every expert at least once, those at the edges of every rank included.
    for (size_t s = 0; s < input.ids.size(); ++s) {
      input.ids[s] = static_cast<int32_t>(s % static_cast<size_t>(c.experts));
    }
    ExpectOneRanksBits(layer, layer.Params(Arithmetic::kW4a4), input, {.ranks = c.ranks});
  }
}

TEST(ExpertExchange, EverythingMayGoToOneRank) {  // EP-03
  const TestShape shape{.hidden = 64, .intermediate = 48, .experts = 16, .tokens = 300, .top_k = 2};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 7);
  TestInput input(shape, 8);
  for (const int32_t first : {0, 14}) {  // of 8 ranks the first, the last
    for (size_t s = 0; s < input.ids.size(); ++s) {
      input.ids[s] = first + static_cast<int32_t>(s % 2);
    }
    for (const int64_t max_tokens : {int64_t{300}, int64_t{299}, int64_t{7}}) {  // also in pieces
      ExpectOneRanksBits(layer, layer.Params(Arithmetic::kW4a4), input,
                         {.ranks = 8, .max_tokens = max_tokens});
    }
  }
}

TEST(ExpertExchange, NoTokensAndNoExpertsAreFine) {
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 9);
  const TestInput input(kShape, 10);
  const MoeParams params = layer.Params(Arithmetic::kW4a4);
  ExpectOneRanksBits(layer, params, input.Select({}), {.ranks = 3});
  TestInput padding = input;
  std::fill(padding.ids.begin(), padding.ids.end(), -1);
  for (const std::vector<float>& out : RunOnRanks(layer, params, padding, {.ranks = 3})) {
    EXPECT_TRUE(SameBits(out, std::vector<float>(out.size(), 0.0f)));  // every row written
  }
}

RC_GTEST_PROP(ExpertExchangeProperty, AnyChoicesOnAnyPlacementGiveTheBitsOfOneRank, ()) {
  static const TestLayer layer({.hidden = 32, .intermediate = 16, .experts = 5, .top_k = 3},
                               WeightFormat::kNvfp4, 11);
  TestShape shape = layer.shape;
  shape.tokens = *rc::gen::inRange(0, 9);
  TestInput input(shape, *rc::gen::arbitrary<uint32_t>());
  for (int32_t& id : input.ids) id = *rc::gen::inRange(-1, 6);  // duplicates, markers
  World world{.ranks = *rc::gen::inRange(1, 5), .max_tokens = *rc::gen::inRange(1, 10)};
  for (int e = 0; e < 5; ++e) world.owners.push_back(*rc::gen::inRange(0, world.ranks));
  const MoeParams params = layer.Params(*rc::gen::element(Arithmetic::kW4a16, Arithmetic::kW4a4));
  const std::vector<float> expected = layer.Run(params, input);
  for (const auto& out : RunOnRanks(layer, params, input, world)) {
    RC_ASSERT(SameBits(out, expected));
  }
}

TEST(MoeLayer, SlotValuesAreThoseOfOneRank) {  // R54
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 12);
  const TestInput input(kShape, 13);
  for (const MoeParams& params : AllParams(layer)) {
    const auto slots_of = [&](const ExpertPlacement& placement) {
      ThreadPool pool(2);
      MoeWorkspace workspace(layer.Limits(kShape.tokens));
      std::vector<float> values(static_cast<size_t>(kShape.tokens * kShape.top_k * kShape.hidden));
      const int64_t count =
          layer.Layer(params, &placement)
              .RunSlots(Context(pool), input.Hidden(), input.Routing(),
                        {values.data(), kShape.tokens * kShape.top_k, kShape.hidden}, workspace);
      values.resize(static_cast<size_t>(count * kShape.hidden));
      return values;
    };
    const std::vector<float> all = slots_of(ExpertPlacement::Single(kShape.experts));
    std::vector<std::vector<float>> parts;
    std::vector<size_t> next(8, 0);
    for (int r = 0; r < 8; ++r) parts.push_back(slots_of(Place({.ranks = 8}, kShape.experts, r)));
    const ExpertPlacement owners = Place({.ranks = 8}, kShape.experts, 0);
    const auto width = static_cast<size_t>(kShape.hidden);
    for (size_t slot = 0; slot < input.ids.size(); ++slot) {
      const auto owner = static_cast<size_t>(owners.owner(GlobalExpert{input.ids[slot]}));
      ASSERT_LE(next[owner] + width, parts[owner].size());
      EXPECT_EQ(std::memcmp(parts[owner].data() + next[owner], all.data() + slot * width,
                            width * sizeof(float)),
                0);
      next[owner] += width;
    }
    for (size_t r = 0; r < 8; ++r) EXPECT_EQ(next[r], parts[r].size());
  }
}

TEST(MoeLayer, PartialSumsOverRanksAreTheWholeWithinRounding) {  // R50, R51, R55
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 14);
  const TestInput input(kShape, 15);
  const World world{.ranks = 4, .owners = {2, 0, 2, 0, 0, 2, 1}};  // rank 3 has nothing to do
  for (const Arithmetic arithmetic : {Arithmetic::kW4a16, Arithmetic::kW4a4, Arithmetic::kW4a8}) {
    const MoeParams params = layer.Params(arithmetic);
    const std::vector<float> expected = layer.Run(params, input);
    OnEachRank(world, [&](Communicator& ranks) {
      const ExpertPlacement placement = Place(world, kShape.experts, ranks.rank());
      std::vector<float> out = layer.Run(params, input, {.threads = 1, .placement = &placement});
      if (ranks.rank() == 3) {
        EXPECT_TRUE(SameBits(out, std::vector<float>(out.size(), 0.0f)));
      }
      ASSERT_TRUE(ranks.AllReduceSum(out).has_value());
      EXPECT_LE(1 - Compare(out, expected, kShape.hidden).cosine, 1e-6);
    });
  }
}

TEST(MoeLayer, OneRanksInputScalesAreNotTheLayers) {  // EP-01
  const std::vector<float> all = {1e-3f, 2e-3f, 3e-3f, 4e-3f, 5e-3f, 6e-3f, 7e-3f, 8e-3f};
  const TestShape shape{.hidden = 64, .intermediate = 48, .experts = 8, .tokens = 5, .top_k = 3};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 16);
  const TestInput input(shape, 17);
  MoeParams params = layer.Params(Arithmetic::kW4a4);
  params.gate_up_input_scale = *StaticActivationScale(all, "layer gate_up", /*headroom=*/0);
  params.down_input_scale = *StaticActivationScale(all, "layer down", /*headroom=*/0);
  ExpectOneRanksBits(layer, params, input, {.ranks = 2});
  ExpectOneRanksBits(layer, params, input, {.ranks = 3});
  // The largest scale of the first of 3 ranks is 3e-3; with it the results would be others. (With
  // 4e-3, of the first of 2 ranks, they would not: powers of two do not show, R75.)
  const ExpertPlacement first = *ExpertPlacement::Balanced(8, 3, 0);
  MoeParams local = params;
  local.gate_up_input_scale = *StaticActivationScale(*first.LocalPart(all), "layer gate_up", 0);
  EXPECT_FALSE(SameBits(layer.Run(local, input), layer.Run(params, input)));
}

TEST(ExpertExchange, AFailedRankEndsTheCallsOfTheOthers) {  // EP-03: no rank waits for ever
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 18);
  const TestInput input(kShape, 19);
  const MoeParams params = layer.Params(Arithmetic::kW4a16);
  auto ranks = InProcessRanks(2);
  std::thread survivor([&, mine = std::move(ranks[0])] {
    const ExpertPlacement placement = Place({.ranks = 2}, kShape.experts, 0);
    ThreadPool pool(1);
    MoeWorkspace workspace(layer.Limits(64));
    ExpertExchange exchange(*mine, layer.Limits(64));
    std::vector<float> out(input.hidden.size());
    const Status status =
        exchange.Run(Context(pool), layer.Layer(params, &placement), input.Hidden(),
                     input.Routing(), {out.data(), kShape.tokens, kShape.hidden}, workspace);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().message, "rank 1 of 2 failed");
    EXPECT_FALSE(mine->Leave(false));
  });
  EXPECT_TRUE(ranks[1]->Leave(false));
  survivor.join();
}

}  // namespace
}  // namespace halfbyte
