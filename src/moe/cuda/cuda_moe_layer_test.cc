#include "moe/cuda/cuda_moe_layer.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kernels/sm90_moe/reference/reference_gemm.h"
#include "moe/cuda/cuda_moe_test_layer.h"

namespace halfbyte {
namespace {

using CudaMoeLayerTest = CudaMoeTest;

TEST_F(CudaMoeLayerTest, AgreesWithTheCpuForEveryNumberOfTokens) {
  const TestLayer layer({256, 128, 16, 0, 4}, WeightFormat::kNvfp4, 1);
  for (const MoeParams& params : AllParams(layer)) {
    const CudaMoeLayer on_gpu = Layer(layer, params);
    for (const int64_t tokens : {1, 2, 3, 7, 8, 63, 64, 65, 127, 128, 129, 511, 2048, 8192}) {
      SCOPED_TRACE(tokens);
      TestShape shape = layer.shape;
      shape.tokens = tokens;
      const TestInput input(shape, static_cast<uint32_t>(tokens));
      ExpectAgreement(Run(on_gpu, input), RunOnCpu(layer, params, input), params);
      if (HasFailure()) return;
    }
  }
}

TEST_F(CudaMoeLayerTest, AgreesWithTheCpuForEveryShape) {  // R56, R66
  const TestShape shapes[] = {{16, 16, 1, 3, 1},      {64, 48, 2, 9, 2},     {272, 80, 5, 33, 3},
                              {512, 512, 8, 70, 2},   {2880, 2880, 2, 9, 2}, {1024, 720, 6, 20, 2},
                              {128, 64, 256, 100, 6}, {128, 64, 384, 40, 8}, {4096, 2048, 2, 5, 2},
                              {144, 1040, 3, 300, 1}};
  uint32_t seed = 10;
  for (const TestShape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.hidden << " " << shape.intermediate);
    const TestLayer layer(shape, WeightFormat::kNvfp4, ++seed);
    const TestInput input(shape, seed);
    for (const MoeParams& params : AllParams(layer)) Compare(layer, params, input);
    if (HasFailure()) return;
  }
}

// Small enough for a sanitizer (scripts/hopper_run.sh), with several blocks of K in either product.
TEST_F(CudaMoeLayerTest, AgreesWithTheCpuInEveryVariant) {
  const TestLayer layer({1040, 528, 4, 0, 2}, WeightFormat::kNvfp4, 20);
  std::set<std::string> seen;
  for (const MoeParams& params : AllParams(layer)) {
    const CudaMoeLayer on_gpu = Layer(layer, params);
    for (const int64_t tokens : {1, 9, 40, 100, 200, 300}) {
      TestShape shape = layer.shape;
      shape.tokens = tokens;
      const TestInput input(shape, static_cast<uint32_t>(tokens));
      seen.insert(on_gpu.TilingFor(tokens, shape.top_k).name);
      ExpectAgreement(Run(on_gpu, input), RunOnCpu(layer, params, input), params);
    }
  }
  EXPECT_EQ(seen.size(), std::size(sm90::kGemmVariants));
}

TEST_F(CudaMoeLayerTest, AgreesWithTheCpuForAdversarialRoutings) {  // R37, R42, R45, R46, R89
  const TestShape shape{256, 128, 12, 300, 4};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 2);
  const auto ids_of = [&](auto&& id) {
    TestInput input(shape, 3);
    for (size_t s = 0; s < input.ids.size(); ++s) {
      input.ids[s] = id(static_cast<int32_t>(s), input.ids[s]);
    }
    return input;
  };
  const TestInput inputs[] = {
      ids_of([](int32_t, int32_t) { return 7; }),                          // all to one, four times
      ids_of([](int32_t, int32_t) { return -1; }),                         // nobody
      ids_of([](int32_t s, int32_t id) { return s % 3 == 0 ? -1 : id; }),  // some nobody
      ids_of([](int32_t s, int32_t id) { return s / 4 % 5 == 1 ? -1 : id; }),  // padding tokens
      ids_of(
          [](int32_t s, int32_t) { return s < 129 ? 3 : 12 + s; }),    // 129 rows, the rest unknown
      ids_of([](int32_t s, int32_t) { return s % 4 == 0 ? 11 : 0; }),  // two experts
  };
  for (const MoeParams& params : AllParams(layer)) {
    for (const TestInput& input : inputs) {
      Compare(layer, params, input);
      if (HasFailure()) return;
    }
  }
  TestInput weightless(shape, 4);
  for (float& weight : weightless.weights) weight = 0;
  const std::vector<float> out = Run(Layer(layer, layer.Params(Arithmetic::kW4a16)), weightless);
  for (const float x : out) ASSERT_EQ(x, 0);
}

TEST_F(CudaMoeLayerTest, NoTokensIsAValidCall) {  // R45
  const TestLayer layer({64, 64, 4, 0, 2}, WeightFormat::kNvfp4, 5);
  EXPECT_TRUE(Run(Layer(layer, layer.Params(Arithmetic::kW4a16)), TestInput({64, 64, 4, 0, 2}, 1),
                  TestWorkspace({1, 2, 4, 64, 64}).workspace)
                  .empty());
}

TEST_F(CudaMoeLayerTest, ZeroAndSubnormalBlocksAreExact) {  // R18, R106
  const TestShape shape{128, 64, 3, 20, 2};
  TestLayer layer(shape, WeightFormat::kNvfp4, 6);
  std::mt19937 random(7);
  for (const ExpertWeights& expert : layer.experts) {
    for (const WeightMatrix* w : {&expert.gate, &expert.up, &expert.down}) {
      auto* scales = const_cast<std::byte*>(w->scales);  // in layer.storage
      for (int64_t i = 0; i < w->rows * w->columns / 16; ++i) {
        if (random() % 4 == 0) scales[i] = static_cast<std::byte>(random() % 9);  // 0: zero block
      }
    }
  }
  TestInput input(shape, 8);
  std::fill_n(input.hidden.begin(), 128, 0.0f);
  for (size_t i = 256; i < 256 + 64; ++i) input.hidden[i] *= 0x1p-30f;
  for (const MoeParams& params : AllParams(layer)) Compare(layer, params, input);
}

TEST_F(CudaMoeLayerTest, Mxfp4BecomesNvfp4WithoutLoss) {  // R108
  const TestShape shape{256, 96, 4, 40, 2};
  const TestLayer layer(shape, WeightFormat::kMxfp4, 9);
  for (const MoeParams& params : AllParams(layer)) Compare(layer, params, TestInput(shape, 10));
}

TEST_F(CudaMoeLayerTest, TheActivationAndTheWeightsPlaceAreParameters) {  // R47, R84
  const TestShape shape{256, 128, 6, 50, 3};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 11, 20);  // wide: the clamp is at work
  const TestInput input(shape, 12);
  for (MoeParams params : AllParams(layer)) {
    params.routing_weight = RoutingWeightPlacement::kAfterDown;
    params.output_scale = 2.5f;
    Compare(layer, params, input);
    params.swiglu = {};
    Compare(layer, params, input);
    params.swiglu = {.limit = 7, .alpha = 1.702f, .add = 1};
    Compare(layer, params, input);
  }
}

// The judge: scalar products (reference_gemm.h).
class ReferenceProducts : public Sm90MoeKernels {
  cudaError_t LaunchGateUp(const sm90::GateUpArguments& arguments, sm90::GemmVariant,
                           cudaStream_t stream) const override {
    return sm90::LaunchReferenceGateUp(arguments, stream);
  }
  cudaError_t LaunchDown(const sm90::DownArguments& arguments, sm90::GemmVariant,
                         cudaStream_t stream) const override {
    return sm90::LaunchReferenceDown(arguments, stream);
  }
  bool epilogue_requantizes() const override { return false; }
};

TEST_F(CudaMoeLayerTest, TheProductsOfTheTensorCoreAreThoseOfTheReference) {
  const TestShape shape{512, 256, 8, 200, 3};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 13);
  const TestInput input(shape, 14);
  for (const MoeParams& params : AllParams(layer)) {
    const std::vector<float> fast = Run(Layer(layer, params), input);
    const ReferenceProducts reference;
    ExpectAgreement(fast, Run(Layer(layer, params, nullptr, &reference), input), params);
  }
}

TEST_F(CudaMoeLayerTest, Bf16OutputIsTheSumRoundedOnce) {
  const TestShape shape{128, 64, 4, 30, 2};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 15);
  const TestInput input(shape, 16);
  const CudaMoeLayer on_gpu = Layer(layer, layer.Params(Arithmetic::kW4a16));
  std::vector<float> sums = Run(on_gpu, input);
  for (float& x : sums) x = RoundToBf16(x);
  EXPECT_TRUE(SameBits(Run(on_gpu, input, CudaMoeOutput::kBf16), sums));
}

TEST_F(CudaMoeLayerTest, CountersAreThoseOfTheCpu) {  // R81
  const TestShape shape{256, 128, 6, 500, 3};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 17);
  const TestInput input(shape, 18);
  const std::vector<MoeParams> all = AllParams(layer);
  for (const MoeParams& params : {all[1], all[2]}) {
    MoeCounters want;
    layer.Run(params, input, {.max_tokens = 512, .counters = &want});
    DeviceArray<CudaMoeCounters> counters(std::vector<CudaMoeCounters>(1));
    DeviceCall call(input);
    call.call.counters = counters.data();
    const CudaMoeLayer on_gpu = Layer(layer, params);
    TestWorkspace own(layer.Limits(500));
    ASSERT_TRUE(Finish(on_gpu.Run(stream.get(), call.call, own.workspace)));
    const CudaMoeCounters got = counters.Read()[0];
    EXPECT_EQ(static_cast<int64_t>(got.gate_up.blocks), want.gate_up.blocks);
    EXPECT_EQ(static_cast<int64_t>(got.gate_up.at_max), want.gate_up.at_max);
    EXPECT_EQ(static_cast<int64_t>(got.gate_up.clipped), want.gate_up.clipped);
    EXPECT_EQ(static_cast<int64_t>(got.gate_up.flushed), want.gate_up.flushed);
    EXPECT_EQ(static_cast<int64_t>(got.gate_up.zero), want.gate_up.zero);
    EXPECT_EQ(std::bit_cast<float>(got.gate_up.amax_bits), want.gate_up.amax);
    // h may differ in the last bit of a few values.
    EXPECT_EQ(static_cast<int64_t>(got.down.blocks), want.down.blocks);
    EXPECT_EQ(got.down.non_finite, 0u);
    EXPECT_NEAR(std::bit_cast<float>(got.down.amax_bits), want.down.amax, want.down.amax / 128);
    EXPECT_NEAR(static_cast<double>(got.down.at_max), static_cast<double>(want.down.at_max),
                1 + 0.01 * static_cast<double>(want.down.at_max));
  }
}

TEST_F(CudaMoeLayerTest, LoadingTakesTheExpertsAndOneMore) {  // R100
  const TestLayer layer({512, 512, 40, 0, 2}, WeightFormat::kNvfp4, 19, 1);
  const CudaMoeLayer on_gpu = Layer(layer, layer.Params(Arithmetic::kW4a16));
  EXPECT_EQ(on_gpu.expert_bytes(), 3 * 512 * 512 * 9 / 16);  // packing adds nothing here
  EXPECT_GE(on_gpu.device_bytes(), 40 * on_gpu.expert_bytes());
  EXPECT_LT(on_gpu.device_bytes(), 41 * on_gpu.expert_bytes());
  EXPECT_LE(on_gpu.peak_device_bytes(), on_gpu.device_bytes() + on_gpu.expert_bytes());
}

}  // namespace
}  // namespace halfbyte
