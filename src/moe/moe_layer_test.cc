#include "moe/moe_layer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "moe/moe_test_layer.h"

namespace halfbyte {
namespace {

constexpr Arithmetic kProductionArithmetics[] = {Arithmetic::kW4a16, Arithmetic::kW4a4,
                                                 Arithmetic::kW4a8};
constexpr WeightFormat kAllFormats[] = {WeightFormat::kF32,   WeightFormat::kBf16,
                                        WeightFormat::kF16,   WeightFormat::kFp8,
                                        WeightFormat::kNvfp4, WeightFormat::kMxfp4};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// H, I, 2I, E, T and k are pairwise different and no multiples of each other (TST-03).
constexpr TestShape kShape{
    .hidden = 416, .intermediate = 352, .experts = 7, .tokens = 5, .top_k = 3};

std::vector<float> Reference(const TestLayer& layer, const MoeParams& params,
                             const TestInput& input) {
  return ReferencePipeline(layer, params, input);
}

TEST(MoeLayer, EqualsTheReferencePipelineBitForBit) {  // R29, R37, R41, R44, R59, R62
  for (const WeightFormat format : kAllFormats) {
    const TestLayer layer(kShape, format, 1);
    const TestInput input(kShape, 2);
    for (const Arithmetic arithmetic : kProductionArithmetics) {
      const bool four_bit = format == WeightFormat::kNvfp4 || format == WeightFormat::kMxfp4;
      if (IsFourBitOnly(arithmetic) && !four_bit) continue;
      for (const bool per_token : {false, true}) {
        if (per_token && arithmetic != Arithmetic::kW4a4) continue;  // they have no such scales
        for (const bool before_down : {false, true}) {
          MoeParams params = layer.Params(arithmetic);
          params.routing_weight = before_down ? RoutingWeightPlacement::kBeforeDown
                                              : RoutingWeightPlacement::kAfterDown;
          params.output_scale = before_down ? 1.0f : 2.5f;
          if (!per_token) params.gate_up_input_scale = GlobalScale(0.004f);
          if (!per_token) params.down_input_scale = GlobalScale(0.031f);
          const std::vector<float> expected = Reference(layer, params, input);
          for (const CpuIsa isa : SupportedCpuIsas()) {
            for (const int threads : {1, 3}) {
              EXPECT_TRUE(
                  SameBits(layer.Run(params, input, {.isa = isa, .threads = threads}), expected))
                  << WeightFormatName(format) << ' ' << ArithmeticName(arithmetic) << ' '
                  << CpuIsaName(isa);
            }
          }
        }
      }
    }
  }
}

// R59, R65.
TEST(MoeLayer, ExpertsOfAnySizeEqualTheReference) {  // R37: 129, 500 and all rows; no 128-row cap
  const TestShape shape{.hidden = 96, .intermediate = 64, .experts = 5, .tokens = 1045, .top_k = 1};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 3);
  TestInput input(shape, 4);
  for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{
           {129, 0, 127, 500, 289}, {0, 0, 1045, 0, 0}, {0, 1, 0, 0, 1044}}) {
    size_t slot = 0;
    for (size_t e = 0; e < counts.size(); ++e) {
      for (int64_t i = 0; i < counts[e]; ++i) input.ids[slot++] = static_cast<int32_t>(e);
    }
    for (const Arithmetic arithmetic : kProductionArithmetics) {
      const MoeParams params = layer.Params(arithmetic);
      const std::vector<float> expected = Reference(layer, params, input);
      EXPECT_TRUE(SameBits(layer.Run(params, input, {.max_tokens = 2000}), expected));
      EXPECT_TRUE(SameBits(layer.Run(params, input, {.max_tokens = 1}), expected));  // in pieces
      EXPECT_TRUE(SameBits(layer.Run(params, input, {.max_tokens = 131}), expected));
    }
  }
}

// R58, R67.
TEST(MoeLayer, ATokenDoesNotDependOnItsBatch) {  // R49, R76, MDL-07: alone, permuted, any pieces
  TestShape shape = kShape;
  shape.tokens = 33;
  const TestLayer layer(shape, WeightFormat::kNvfp4, 5);
  const TestInput input(shape, 6);
  for (const Arithmetic arithmetic : kArithmetics) {
    const MoeParams params = layer.Params(arithmetic);
    const std::vector<float> together = layer.Run(params, input);
    for (const int64_t t : {0, 7, 32}) {
      const std::vector<float> alone = layer.Run(params, input.Select({t}));
      EXPECT_EQ(std::memcmp(alone.data(), together.data() + t * shape.hidden,
                            alone.size() * sizeof(float)),
                0);
    }
    std::vector<int64_t> reversed;
    for (int64_t t = shape.tokens; t-- > 0;) reversed.push_back(t);
    const std::vector<float> permuted = layer.Run(params, input.Select(reversed));
    for (int64_t t = 0; t < shape.tokens; ++t) {
      EXPECT_EQ(std::memcmp(permuted.data() + (shape.tokens - 1 - t) * shape.hidden,
                            together.data() + t * shape.hidden,
                            static_cast<size_t>(shape.hidden) * sizeof(float)),
                0);
    }
  }
}

TEST(MoeLayer, MarkersContributeNothingAndEveryRowIsWritten) {  // R90, R42, R45, RTE-02, RTE-05
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 7);
  TestInput input(kShape, 8);
  const MoeParams params = layer.Params(Arithmetic::kW4a16);
  const std::vector<float> all = layer.Run(params, input);
  std::fill_n(input.ids.begin() + 3, 3, -1);  // token 1: nothing
  input.ids[6] = 7;                           // token 2: the other marker
  input.ids[9] = std::numeric_limits<int32_t>::max();
  input.weights[3] = NAN;  // a marker's weight is not looked at
  const std::vector<float> y = layer.Run(params, input);
  EXPECT_TRUE(SameBits(y, Reference(layer, params, input)));
  for (int64_t n = 0; n < kShape.hidden; ++n) {
    EXPECT_EQ(y[static_cast<size_t>(n)], all[static_cast<size_t>(n)]);
    EXPECT_EQ(y[static_cast<size_t>(kShape.hidden + n)], 0);
  }
  std::fill(input.ids.begin(), input.ids.end(), -1);
  for (const float value : layer.Run(params, input)) EXPECT_EQ(value, 0);
  EXPECT_TRUE(layer.Run(params, input.Select({})).empty());
}

TEST(MoeLayer, WeightZeroContributesZeroAndDuplicatesCountTwice) {  // R46
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 9);
  for (const RoutingWeightPlacement placement :
       {RoutingWeightPlacement::kBeforeDown, RoutingWeightPlacement::kAfterDown}) {
    MoeParams params = layer.Params(Arithmetic::kW4a16);
    params.routing_weight = placement;
    TestInput input(kShape, 10);
    input.weights[1] = 0;
    TestInput without = input;
    without.ids[1] = -1;
    EXPECT_EQ(layer.Run(params, input), layer.Run(params, without));
    std::fill_n(input.ids.begin(), 3, 4);
    std::fill_n(input.weights.begin(), 3, 0.5f);
    const std::vector<float> three = layer.Run(params, input);
    input.ids[1] = input.ids[2] = -1;
    const std::vector<float> one = layer.Run(params, input);
    for (size_t n = 0; n < 416; ++n) EXPECT_EQ(three[n], one[n] + one[n] + one[n]);
  }
}

TEST(MoeLayer, TheRoutingWeightIsAppliedOnceOnEitherSide) {  // R47, RTE-04, TST-01
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 11);
  const TestInput input(kShape, 12);
  MoeParams params = layer.Params(Arithmetic::kW4a16);
  const std::vector<float> before = layer.Run(params, input);
  params.routing_weight = RoutingWeightPlacement::kAfterDown;
  const std::vector<float> after = layer.Run(params, input);
  const Agreement agreement = Compare(after, before, kShape.hidden);
  EXPECT_LT(agreement.relative_l2, 0x1p-8);  // the roundings of h to bf16 differ
  TestInput doubled = input;
  for (float& weight : doubled.weights) weight *= 2;
  const std::vector<float> twice = layer.Run(params, doubled);
  for (size_t i = 0; i < twice.size(); ++i) EXPECT_EQ(twice[i], 2 * after[i]);
}

TEST(MoeLayer, RanksAddUpToTheWholeLayer) {  // R50, R51, R54, R55
  TestShape shape = kShape;
  shape.top_k = 1;  // one slot a token: the result is the slot value
  const TestLayer layer(shape, WeightFormat::kNvfp4, 13);
  const TestInput input(shape, 14);
  for (const Arithmetic arithmetic : kProductionArithmetics) {
    const MoeParams params = layer.Params(arithmetic);
    const std::vector<float> whole = layer.Run(params, input);
    std::vector<ExpertPlacement> tables;
    for (int32_t rank = 0; rank < 8; ++rank) {  // eight ranks for seven experts: one has none
      tables.push_back(*ExpertPlacement::Balanced(7, 8, rank));
    }
    std::vector<float> sum(whole.size(), 0.0f);
    for (const ExpertPlacement& placement : tables) {
      const std::vector<float> part = layer.Run(params, input, {.placement = &placement});
      for (size_t i = 0; i < sum.size(); ++i) {
        if (!placement.ToLocal(input.ids[i / 416])) {
          EXPECT_EQ(part[i], 0);
        }
        sum[i] += part[i];
      }
    }
    EXPECT_EQ(sum, whole);
  }
  const TestLayer many(kShape, WeightFormat::kNvfp4, 15);
  const TestInput choices(kShape, 16);
  const MoeParams params = many.Params(Arithmetic::kW4a16);
  std::vector<float> sum(static_cast<size_t>(kShape.tokens * kShape.hidden), 0.0f);
  for (int32_t rank = 0; rank < 3; ++rank) {
    const ExpertPlacement scattered = *ExpertPlacement::Table({2, 0, 1, 2, 0, 0, 1}, 3, rank);
    const std::vector<float> part = many.Run(params, choices, {.placement = &scattered});
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  EXPECT_LT(Compare(sum, many.Run(params, choices), kShape.hidden).relative_l2, 1e-6);
}

TEST(MoeLayer, ANanInOneTokenChangesNoOther) {  // R18
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 17);
  const TestInput input(kShape, 18);
  for (const Arithmetic arithmetic : kProductionArithmetics) {
    const MoeParams params = layer.Params(arithmetic);
    const std::vector<float> clean = layer.Run(params, input);
    for (const float bad : {NAN, std::numeric_limits<float>::infinity()}) {
      TestInput dirty = input;
      dirty.hidden[2 * 416 + 5] = bad;
      const std::vector<float> y = layer.Run(params, dirty);
      for (size_t i = 0; i < y.size(); ++i) {
        if (i / 416 != 2) {
          EXPECT_EQ(y[i], clean[i]);
        }
      }
    }
  }
}

TEST(MoeLayer, WhatTheWorkspaceHeldBeforeChangesNothing) {  // R89, R94, TST-02
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 19);
  const TestInput input(kShape, 20);
  TestInput poison = input;
  std::fill(poison.hidden.begin(), poison.hidden.end(), NAN);
  MoeWorkspace shared(layer.Limits(8));
  for (const Arithmetic arithmetic : kProductionArithmetics) {
    const MoeParams params = layer.Params(arithmetic);
    const std::vector<float> fresh = layer.Run(params, input);
    layer.Run(layer.Params(Arithmetic::kW4a16), poison, {.workspace = &shared});
    EXPECT_TRUE(SameBits(layer.Run(params, input, {.workspace = &shared}), fresh));
    EXPECT_TRUE(SameBits(layer.Run(params, input, {.workspace = &shared}), fresh));
  }
}

TEST(MoeLayer, TheSharedExpertIsAOneExpertLayer) {  // R68, R69: same clamp, same scales
  TestShape shape = kShape;
  shape.experts = 1;
  shape.top_k = 1;
  const TestLayer layer(shape, WeightFormat::kNvfp4, 21);
  TestInput input(shape, 22);
  std::fill(input.ids.begin(), input.ids.end(), 0);
  std::fill(input.weights.begin(), input.weights.end(), 1.0f);
  for (const Arithmetic arithmetic : kProductionArithmetics) {
    const MoeParams params = layer.Params(arithmetic);
    const MoeLayer dense = layer.Layer(params);
    for (const int64_t max_tokens : {2, 64}) {
      MoeWorkspace workspace(layer.Limits(max_tokens));
      ThreadPool pool(2);
      std::vector<float> y(input.hidden.size(), NAN);
      dense.RunDense(Context(pool), input.Hidden(), {y.data(), shape.tokens, shape.hidden},
                     workspace);
      EXPECT_TRUE(SameBits(y, Reference(layer, params, input)));
    }
  }
}

TEST(MoeLayer, ScalesStayFp32AndGateAndUpKeepTheirOwn) {  // R60, R61, R62
  // Experts 0 and 1 have the same codes; only the global scale of `down` differs.
  TestShape shape = kShape;
  shape.experts = 2;
  shape.top_k = 1;
  TestLayer layer(shape, WeightFormat::kNvfp4, 23);
  layer.experts[1] = layer.experts[0];
  layer.experts[0].down.global_scale = GlobalScale(1.0f);
  layer.experts[1].down.global_scale = GlobalScale(0.0123f);
  TestInput input(shape, 24);
  const MoeParams params = layer.Params(Arithmetic::kW4a16);
  std::fill(input.ids.begin(), input.ids.end(), 0);
  const std::vector<float> unit = layer.Run(params, input);
  std::fill(input.ids.begin(), input.ids.end(), 1);
  const std::vector<float> scaled = layer.Run(params, input);
  for (size_t i = 0; i < unit.size(); ++i) EXPECT_EQ(scaled[i], unit[i] * 0.0123f);
  // A power of two moves from gate to up without a trace if nothing is clamped; 3 does not.
  MoeParams unlimited = params;
  unlimited.swiglu = {};
  const float up = layer.experts[0].up.global_scale.value();
  layer.experts[0].up.global_scale = GlobalScale(up * 4);
  std::fill(input.ids.begin(), input.ids.end(), 0);
  const std::vector<float> four = layer.Run(unlimited, input);
  layer.experts[0].up.global_scale = GlobalScale(up);
  const std::vector<float> one = layer.Run(unlimited, input);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(four[i], 4 * one[i]);
}

TEST(MoeLayer, HeadroomOfAPowerOfTwoChangesNoBit) {  // R75
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 25);
  const TestInput input(kShape, 26);
  MoeParams params = layer.Params(Arithmetic::kW4a4);
  params.gate_up_input_scale = GlobalScale(5.0f / 2688);
  params.down_input_scale = GlobalScale(150.0f / 2688);
  const std::vector<float> y = layer.Run(params, input);
  for (const int h : {1, 2}) {
    params.gate_up_input_scale = GlobalScale(std::ldexp(5.0f / 2688, h));
    EXPECT_TRUE(SameBits(layer.Run(params, input), y)) << h;
  }
}

TEST(MoeLayer, CountersAreExactAndShowAScaleThatIsTooSmall) {  // R70, R81
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 27);
  const TestInput input(kShape, 28);
  MoeParams params = layer.Params(Arithmetic::kW4a4);
  const float amax = *std::max_element(input.hidden.begin(), input.hidden.end());
  params.gate_up_input_scale = GlobalScale(amax / 2688);
  MoeCounters good, bad;
  layer.Run(params, input, {.counters = &good});
  Nvfp4BlockStats expected;
  for (size_t i = 0; i < input.hidden.size(); i += kNvfp4Block) {
    QuantizeNvfp4Block(&input.hidden[i], *params.gate_up_input_scale, &expected);
  }
  EXPECT_EQ(good.gate_up.blocks, kShape.tokens * kShape.hidden / kNvfp4Block);
  EXPECT_EQ(good.gate_up.at_max, expected.at_max);
  EXPECT_EQ(good.gate_up.clipped, expected.clipped);
  EXPECT_EQ(good.down.blocks, kShape.tokens * 3 * kShape.intermediate / kNvfp4Block);
  params.gate_up_input_scale = GlobalScale(amax / 2688 / 10.6f);
  layer.Run(params, input, {.counters = &bad});
  EXPECT_GT(bad.gate_up.clipped, bad.gate_up.blocks / 2);
  // And the result is as bad as it looks (§10: scales x 0.0935 must fail the gate).
  EXPECT_LT(Compare(layer.Run(params, input), ExactLayer(layer, input), kShape.hidden).cosine,
            0.97);
}

TEST(MoeLayer, WithoutRoundingItIsTheFp64FormulaUpToFp32) {
  for (const WeightFormat format : kAllFormats) {
    const TestLayer layer(kShape, format, 29);
    const TestInput input(kShape, 30);
    MoeParams params = layer.Params(Arithmetic::kW4a16);
    params.round_activations = false;
    const std::vector<double> exact = ExactLayer(layer, input);
    const Agreement w4a16 = Compare(layer.Run(params, input), exact, kShape.hidden);
    EXPECT_LT(w4a16.relative_l2, 1e-6) << WeightFormatName(format);
    params.arithmetic = Arithmetic::kRef;
    const Agreement ref = Compare(layer.Run(params, input), exact, kShape.hidden);
    EXPECT_LT(ref.relative_l2, 3e-7) << WeightFormatName(format);
    EXPECT_GT(layer.clamped, 0) << "the data must reach the clamp";
  }
}

// R40, R63, R87, R90: what a CPU has of graph replays. Inputs and routings change, also the number
// of tokens and of threads; the workspace stays.
TEST(MoeLayer, AThousandRunsGiveTheBitsOfFreshOnes) {
  const TestShape shape{.hidden = 32, .intermediate = 16, .experts = 5, .tokens = 6, .top_k = 2};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 35);
  std::vector<TestInput> inputs;
  for (uint32_t i = 0; i < 31; ++i) {
    inputs.emplace_back(shape, i);
    if (i % 3 == 0) inputs.back().ids[i % inputs.back().ids.size()] = -1;
  }
  ThreadPool one(1), two(2);
  for (const Arithmetic arithmetic : kProductionArithmetics) {
    const MoeParams params = layer.Params(arithmetic);
    const MoeLayer moe = layer.Layer(params);
    std::vector<std::vector<float>> expected;
    for (const TestInput& input : inputs) expected.push_back(Reference(layer, params, input));
    MoeWorkspace workspace(layer.Limits(shape.tokens));
    std::vector<float> y(static_cast<size_t>(shape.tokens * shape.hidden));
    for (size_t run = 0; run < 1000; ++run) {
      const size_t i = run % inputs.size();
      const auto tokens = static_cast<int64_t>(run % 7);
      moe.Run(Context(run % 2 == 0 ? one : two), inputs[i].Hidden().Rows(0, tokens),
              inputs[i].Routing().Rows(0, tokens), {y.data(), tokens, shape.hidden}, workspace);
      ASSERT_EQ(std::memcmp(y.data(), expected[i].data(),
                            static_cast<size_t>(tokens * shape.hidden) * sizeof(float)),
                0)
          << ArithmeticName(arithmetic) << " run " << run;
    }
  }
}

TEST(MoeLayer, RefAndW4a16AgreeWithinTheGateOfTheReferencePipeline) {  // §10: 1 - cos <= 1e-6
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 31);
  const TestInput input(kShape, 32);
  const Agreement agreement =
      Compare(layer.Run(layer.Params(Arithmetic::kW4a16), input),
              layer.Run(layer.Params(Arithmetic::kRef), input), kShape.hidden);
  EXPECT_LT(1 - agreement.cosine, 1e-6);
  EXPECT_LT(agreement.relative_l2, 1.5e-3);
}

TEST(MoeLayer, WhatDoesNotFitIsRefusedByName) {  // R26, R132, R39, R79, R80
  const TestLayer layer(kShape, WeightFormat::kBf16, 33);
  MoeParams params = layer.Params(Arithmetic::kW4a4);
  const auto create = [&](const std::vector<ExpertWeights>& experts) {
    return MoeLayer::Create(params, ExpertPlacement::Single(7), experts, "layer 3");
  };
  const auto refused = create(layer.experts);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("layer 3, expert 0, gate"), std::string::npos);
  EXPECT_NE(refused.error().message.find("BF16"), std::string::npos);
  params.arithmetic = Arithmetic::kW4a16;
  EXPECT_TRUE(create(layer.experts).has_value());
  EXPECT_FALSE(create({layer.experts.begin(), layer.experts.end() - 1}).has_value());
  params.intermediate += 32;
  EXPECT_FALSE(create(layer.experts).has_value());
  params.intermediate -= 32;
  std::vector<ExpertWeights> swapped = layer.experts;
  std::swap(swapped[2].up, swapped[2].down);
  const auto shape = create(swapped);
  ASSERT_FALSE(shape.has_value());
  EXPECT_NE(shape.error().message.find("expert 2, up"), std::string::npos);
  params.down_input_scale = GlobalScale(0.0f);
  EXPECT_FALSE(create(layer.experts).has_value());
}

TEST(StaticActivationScale, IsTheLargestOfAllExpertsTimesTheHeadroom) {  // R80: no reciprocals
  EXPECT_EQ(StaticActivationScale(std::vector<float>{1e-3f, 4e-3f, 2e-3f}, "x")->value(),
            32 * 4e-3f);
  EXPECT_EQ(StaticActivationScale(std::vector<float>{1e-3f}, "x", 0)->value(), 1e-3f);
  for (const std::vector<float>& bad :
       std::vector<std::vector<float>>{{},
                                       {0.0f},
                                       {-1.0f},
                                       {NAN},
                                       {2688 / 5.0f},
                                       {1.0f, std::numeric_limits<float>::infinity()}}) {
    EXPECT_FALSE(StaticActivationScale(bad, "layer 3, down").has_value());
  }
  EXPECT_FALSE(StaticActivationScale(std::vector<float>{1.0f}, "x", 7).has_value());
}

TEST(Arithmetic, NamesGoBothWays) {
  for (const Arithmetic a : kArithmetics) {
    EXPECT_EQ(ArithmeticFromName(ArithmeticName(a)), a);
  }
  EXPECT_EQ(ArithmeticFromName("w8a8"), std::nullopt);
}

}  // namespace
}  // namespace halfbyte
