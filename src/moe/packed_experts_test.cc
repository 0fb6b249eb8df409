#include "moe/packed_experts.h"

#include <gtest/gtest.h>

#include <cstring>

#include "moe/moe_layer.h"
#include "moe/moe_test_layer.h"

namespace halfbyte {
namespace {

constexpr TestShape kSmallShape{
    .hidden = 96, .intermediate = 64, .experts = 5, .tokens = 7, .top_k = 2};

std::vector<float> Output(const MoeLayer& layer, const TestLayer& test, const TestInput& input) {
  ThreadPool pool(2);
  MoeWorkspace workspace(test.Limits(kSmallShape.tokens));
  std::vector<float> y(input.hidden.size(), NAN);
  layer.Run(Context(pool), input.Hidden(), input.Routing(),
            {y.data(), kSmallShape.tokens, kSmallShape.hidden}, workspace);
  return y;
}

TEST(PackedExperts, NothingReadsTheStoredBytesOnceTheyAreReleased) {  // R101
  for (const auto& [format, arithmetic] : {std::pair{WeightFormat::kNvfp4, Arithmetic::kW4a4},
                                           std::pair{WeightFormat::kNvfp4, Arithmetic::kW4a8},
                                           std::pair{WeightFormat::kNvfp4, Arithmetic::kW4a16},
                                           std::pair{WeightFormat::kFp8, Arithmetic::kW4a16},
                                           std::pair{WeightFormat::kBf16, Arithmetic::kW4a16}}) {
    TestLayer test(kSmallShape, format, 1);
    const TestInput input(kSmallShape, 2);
    const MoeParams params = test.Params(arithmetic);
    const std::vector<float> expected = test.Run(params, input);
    std::vector<int32_t> released;
    ThreadPool pool(3);
    const auto layer = MoeLayer::Create(
        params, ExpertPlacement::Single(5), test.experts, "layer 3",
        {.pool = &pool, .release = [&](LocalExpert e) {
           released.push_back(Index(e));
           for (size_t part = 0; part < 3; ++part) {
             std::vector<std::byte>& bytes = test.storage[3 * static_cast<size_t>(Index(e)) + part];
             std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
           }
         }});
    ASSERT_TRUE(layer.has_value()) << layer.error().message;
    EXPECT_EQ(released, (std::vector<int32_t>{0, 1, 2, 3, 4}));
    EXPECT_EQ(Output(*layer, test, input), expected);
  }
}

TEST(PackedExperts, TheFp32OracleAndRefKeepTheStoredBytes) {
  const TestLayer test(kSmallShape, WeightFormat::kMxfp4, 3);
  MoeParams params = test.Params(Arithmetic::kRef);
  const MoePacking refuse{.release = [](LocalExpert) { FAIL() << "not packed"; }};
  EXPECT_TRUE(MoeLayer::Create(params, ExpertPlacement::Single(5), test.experts, "x", refuse));
  params = test.Params(Arithmetic::kW4a16);
  params.round_activations = false;
  EXPECT_TRUE(MoeLayer::Create(params, ExpertPlacement::Single(5), test.experts, "x", refuse));
}

TEST(PackedExperts, ExpertsOfDifferentFormatsKeepTheStoredBytes) {
  TestLayer test(kSmallShape, WeightFormat::kBf16, 7);
  const TestLayer fp8(kSmallShape, WeightFormat::kFp8, 7);
  for (size_t e = 0; e < test.experts.size(); ++e) test.experts[e].down = fp8.experts[e].down;
  const TestInput input(kSmallShape, 8);
  const MoeParams params = test.Params(Arithmetic::kW4a16);
  EXPECT_EQ(test.Layer(params).products().packed_expert(LocalExpert{0}), nullptr);
  EXPECT_LT(
      Compare(test.Run(params, input), ExactLayer(test, input), kSmallShape.hidden).relative_l2,
      0x1p-7);
}

TEST(PackedExperts, AnMxfp4LayerOfTooWideARangeRunsFromItsStoredBytes) {
  TestLayer test(kSmallShape, WeightFormat::kMxfp4, 4);
  const TestInput input(kSmallShape, 5);
  const MoeParams params = test.Params(Arithmetic::kW4a16);
  // The first block of expert 4's down: from its scale to nearly nothing.
  std::vector<std::byte>& bytes = test.storage.back();
  bytes[static_cast<size_t>(kSmallShape.hidden * kSmallShape.intermediate / 2)] = std::byte{60};
  const std::vector<float> y = test.Run(params, input);
  std::vector<double> exact = ExactLayer(test, input);
  EXPECT_LT(Compare(y, exact, kSmallShape.hidden).relative_l2, 0x1p-7);
  const auto w4a8 = MoeLayer::Create(test.Params(Arithmetic::kW4a8), ExpertPlacement::Single(5),
                                     test.experts, "layer 3");
  ASSERT_FALSE(w4a8.has_value());
  EXPECT_NE(w4a8.error().message.find("layer 3"), std::string::npos) << w4a8.error().message;
}

TEST(PackedExperts, ABadScaleByteNamesLayerExpertAndPart) {  // R105
  TestLayer test(kSmallShape, WeightFormat::kNvfp4, 6);
  test.storage[3 * 2 + 1][static_cast<size_t>(kSmallShape.hidden * kSmallShape.intermediate / 2 +
                                              6 * 7 + 3)] = std::byte{0x7f};
  const auto layer = MoeLayer::Create(test.Params(Arithmetic::kW4a16), ExpertPlacement::Single(5),
                                      test.experts, "layer 3");
  ASSERT_FALSE(layer.has_value());
  EXPECT_NE(layer.error().message.find("layer 3, expert 2, up"), std::string::npos)
      << layer.error().message;
  EXPECT_NE(layer.error().message.find("[7, 3]"), std::string::npos) << layer.error().message;
}

}  // namespace
}  // namespace halfbyte
