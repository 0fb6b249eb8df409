#include <gtest/gtest.h>

#include <vector>

#include "moe/cuda/cuda_moe_test_layer.h"

namespace halfbyte {
namespace {

using CudaMoeBits = CudaMoeTest;

TEST_F(CudaMoeBits, ATokensRowDoesNotDependOnItsNeighbours) {  // R49, R67, R76
  // From one token to thousands: every variant and tile class.
  const TestLayer layer({512, 256, 8, 0, 3}, WeightFormat::kNvfp4, 1);
  TestShape shape = layer.shape;
  shape.tokens = 2048;
  const TestInput all(shape, 2);
  for (const MoeParams& params : AllParams(layer)) {
    const CudaMoeLayer on_gpu = Layer(layer, params);
    TestWorkspace own(layer.Limits(2048));
    const std::vector<float> together = Run(on_gpu, all, own.workspace);
    for (const int64_t count : {1, 5, 20, 64, 150, 300, 1000}) {
      std::vector<int64_t> chosen;  // backwards, so that neighbours and order change
      for (int64_t i = 0; i < count; ++i) chosen.push_back(2047 - i * 2047 / count);
      const std::vector<float> few = Run(on_gpu, all.Select(chosen), own.workspace);
      for (int64_t i = 0; i < count; ++i) {
        const auto row = [](const std::vector<float>& rows, int64_t r) {
          return std::vector<float>(rows.begin() + r * 512, rows.begin() + (r + 1) * 512);
        };
        ASSERT_TRUE(SameBits(row(few, i), row(together, chosen[static_cast<size_t>(i)])))
            << count << " tokens, row " << i;
      }
    }
  }
}

TEST_F(CudaMoeBits, AThousandReplaysGiveTheBitsOfEagerRuns) {  // R40, R87, R89, R91
  const TestShape shape{256, 128, 16, 40, 4};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 3);
  std::vector<TestInput> inputs;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    inputs.emplace_back(shape, seed);
    if (seed % 4 == 1) {
      for (size_t s = seed; s < inputs.back().ids.size(); ++s) inputs.back().ids[s] = -1;
    }
    if (seed % 4 == 2) {
      for (int32_t& id : inputs.back().ids) id = static_cast<int32_t>(seed) % 16;
    }
  }
  for (const MoeParams& params : AllParams(layer)) {
    const CudaMoeLayer on_gpu = Layer(layer, params);
    std::vector<std::vector<float>> eager;
    for (const TestInput& input : inputs) eager.push_back(Run(on_gpu, input));
    DeviceCall call(inputs[0]);
    TestWorkspace own(layer.Limits(64));
    const auto graph = CudaGraph::Capture(
        stream, [&] { return on_gpu.Run(stream.get(), call.call, own.workspace); });
    ASSERT_TRUE(graph.has_value()) << graph.error().message;
    for (size_t i = 0; i < 1000; ++i) {
      const size_t which = i * 7 % inputs.size();
      call.Write(inputs[which]);
      call.out.Poison();
      if (i % 3 == 0) own.memory.Poison();
      ASSERT_TRUE(Finish(graph->Launch(stream)));
      ASSERT_TRUE(SameBits(call.ReadOut(), eager[which])) << "replay " << i;
    }
    own.memory.Read();  // its guards
  }
}

TEST_F(CudaMoeBits, RanksComputeTheirExpertsAndNothingElse) {  // R50, R51, R54, R55
  const TestShape shape{256, 128, 13, 100, 1};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 4);
  const TestInput input(shape, 5);
  for (const MoeParams& params : AllParams(layer)) {
    // One choice each: a token's row comes from one rank, all others write zeros.
    const std::vector<float> alone = Run(Layer(layer, params), input);
    std::vector<float> sum(alone.size());
    for (int32_t rank = 0; rank < 4; ++rank) {
      const auto placement = ExpertPlacement::Balanced(13, 4, rank);
      ASSERT_TRUE(placement.has_value());
      const std::vector<float> part = Run(Layer(layer, params, &*placement), input);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    EXPECT_EQ(sum, alone);
  }
}

TEST_F(CudaMoeBits, ARankWithoutExpertsWritesZeros) {  // R51
  const TestShape shape{64, 32, 3, 20, 2};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 10);
  const auto placement = ExpertPlacement::Balanced(3, 4, 3);
  ASSERT_TRUE(placement.has_value());
  ASSERT_EQ(placement->local_experts(), 0);
  for (const MoeParams& params : AllParams(layer)) {
    EXPECT_EQ(Run(Layer(layer, params, &*placement), TestInput(shape, 11)),
              std::vector<float>(20 * 64));
  }
}

TEST_F(CudaMoeBits, OffsetsOfMoreThan31BitsAreComputedInMore) {  // R48
  const TestShape few{4096, 16, 2, 64, 8}, many{4096, 16, 2, 70000, 8};
  ASSERT_GT(many.tokens * many.top_k * many.hidden, int64_t{1} << 31);
  const TestLayer layer(few, WeightFormat::kNvfp4, 12);
  TestInput input({few.hidden, few.intermediate, 8, few.tokens, few.top_k}, 13);
  input.shape = few;
  for (int32_t& id : input.ids) id %= 2;
  std::vector<int64_t> again;  // the same tokens over and over
  for (int64_t t = 0; t < many.tokens; ++t) again.push_back(t % few.tokens);
  for (const MoeParams& params : AllParams(layer)) {
    const CudaMoeLayer on_gpu = Layer(layer, params);
    const std::vector<float> once = Run(on_gpu, input);
    DeviceCall call(input.Select(again));
    const auto workspace =
        CudaMoeWorkspace::Create(Sm90MoeKernels(), {many.tokens, 8, 2, 4096, 16});
    ASSERT_TRUE(workspace.has_value()) << workspace.error().message;
    ASSERT_TRUE(Finish(on_gpu.Run(stream.get(), call.call, *workspace)));
    const std::vector<float> out = call.ReadOut();
    for (size_t t = 0; t < again.size(); ++t) {
      ASSERT_EQ(std::memcmp(&out[t * 4096], &once[t % 64 * 4096], 4096 * sizeof(float)), 0) << t;
    }
  }
}

TEST_F(CudaMoeBits, LayersShareAWorkspace) {  // R94
  const TestShape wide{512, 256, 8, 60, 3}, narrow{128, 64, 5, 60, 2};
  const TestLayer first(wide, WeightFormat::kNvfp4, 6), second(narrow, WeightFormat::kNvfp4, 7);
  const TestInput wide_input(wide, 8), narrow_input(narrow, 9);
  const CudaMoeLayer a = Layer(first, first.Params(Arithmetic::kW4a16));
  const CudaMoeLayer b = Layer(second, second.Params(Arithmetic::kW4a4));
  const std::vector<float> a_alone = Run(a, wide_input), b_alone = Run(b, narrow_input);
  TestWorkspace shared({100, 3, 8, 512, 256});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(SameBits(Run(a, wide_input, shared.workspace), a_alone));
    EXPECT_TRUE(SameBits(Run(b, narrow_input, shared.workspace), b_alone));
  }
}

}  // namespace
}  // namespace halfbyte
