#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "moe/cuda/cuda_moe_test_layer.h"

namespace halfbyte {
namespace {

using CudaMoeRefusals = CudaMoeTest;

const TestShape kShape{64, 32, 4, 10, 2};

std::string MessageOf(const Status& status) { return status ? "" : status.error().message; }

TEST_F(CudaMoeRefusals, CallsThatDoNotFitTheWorkspace) {  // R93
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 1);
  const CudaMoeLayer on_gpu = Layer(layer, layer.Params(Arithmetic::kW4a16));
  DeviceCall call(TestInput(kShape, 2));
  const auto run = [&](const MoeLimits& limits) {
    TestWorkspace own(limits);
    return MessageOf(on_gpu.Run(stream.get(), call.call, own.workspace));
  };
  EXPECT_EQ(run(layer.Limits(10)), "");
  EXPECT_EQ(run(layer.Limits(9)),
            "MoE layer: 10 tokens with 2 experts each; the workspace was made for at most 9 tokens "
            "and 2 experts");
  EXPECT_NE(run({10, 1, 4, 64, 32}), "");
  EXPECT_NE(run({10, 2, 3, 64, 32}), "");
  EXPECT_NE(run({10, 2, 4, 48, 32}), "");
  EXPECT_NE(run({10, 2, 4, 64, 16}), "");
}

TEST_F(CudaMoeRefusals, PointersThatAreNullOrNotAligned) {
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 3);
  const CudaMoeLayer on_gpu = Layer(layer, layer.Params(Arithmetic::kW4a16));
  DeviceCall good(TestInput(kShape, 4));
  TestWorkspace own(layer.Limits(10));
  const auto run = [&](auto&& change) {
    CudaMoeCall call = good.call;
    change(call);
    return MessageOf(on_gpu.Run(stream.get(), call, own.workspace));
  };
  EXPECT_EQ(run([](CudaMoeCall& call) { call.hidden = nullptr; }), "MoE layer: hidden is null");
  EXPECT_NE(run([](CudaMoeCall& call) { ++call.hidden; }).find("no multiple of 16"),
            std::string::npos);
  EXPECT_NE(run([](CudaMoeCall& call) { call.topk_ids = nullptr; }), "");
  EXPECT_NE(run([](CudaMoeCall& call) { call.topk_weights = nullptr; }), "");
  EXPECT_NE(run([](CudaMoeCall& call) { call.out = static_cast<char*>(call.out) + 8; }), "");
  EXPECT_TRUE(Finish(cudaGetLastError()));  // nothing was launched
  const std::vector<uint16_t> untouched = good.out.Read();
  for (const uint16_t x : untouched) ASSERT_EQ(x, 0xffff);
}

TEST_F(CudaMoeRefusals, WorkspacesThatAreTooSmallOrNotAligned) {  // R93
  const Sm90MoeKernels kernels;
  const MoeLimits limits{10, 2, 4, 64, 32};
  const int64_t bytes = CudaMoeWorkspace::Bytes(kernels, limits);
  DeviceArray<std::byte> memory(static_cast<size_t>(bytes) + 256);
  EXPECT_TRUE(CudaMoeWorkspace::In(kernels, memory.data(), bytes, limits).has_value());
  EXPECT_FALSE(CudaMoeWorkspace::In(kernels, memory.data(), bytes - 1, limits).has_value());
  EXPECT_FALSE(CudaMoeWorkspace::In(kernels, memory.data() + 16, bytes, limits).has_value());
  const auto huge = CudaMoeWorkspace::Create(kernels, {int64_t{1} << 22, 8, 256, 4096, 2048});
  ASSERT_FALSE(huge.has_value());
  EXPECT_NE(huge.error().message.find("are free"), std::string::npos);
  const auto endless =
      CudaMoeWorkspace::In(kernels, memory.data(), bytes, {int64_t{1} << 27, 2, 4, 64, 32});
  ASSERT_FALSE(endless.has_value());
  EXPECT_NE(endless.error().message.find("rows are possible"), std::string::npos);
}

TEST_F(CudaMoeRefusals, LayersThatTheDeviceDoesNotCompute) {  // R105, R132
  const TestLayer layer(kShape, WeightFormat::kNvfp4, 5);
  const TestLayer bf16(kShape, WeightFormat::kBf16, 5);
  const auto create = [&](const TestLayer& weights, const MoeParams& params) {
    auto made = CudaMoeLayer::Create(device, params, ExpertPlacement::Single(4), weights.experts,
                                     "layer 3");
    return made ? std::string() : made.error().message;
  };
  EXPECT_EQ(create(layer, layer.Params(Arithmetic::kW4a16)), "");
  EXPECT_EQ(create(layer, layer.Params(Arithmetic::kRef)),
            "layer 3: a GPU computes w4a16 and w4a4, not ref");
  EXPECT_EQ(create(bf16, layer.Params(Arithmetic::kW4a16)).find("layer 3, expert 0, gate: "), 0u);
  MoeParams params = layer.Params(Arithmetic::kW4a16);
  params.round_activations = false;
  EXPECT_NE(create(layer, params), "");
  params = layer.Params(Arithmetic::kW4a16);
  params.intermediate = 48;
  EXPECT_NE(create(layer, params).find("shape [32, 64]"), std::string::npos);
  params.intermediate = 24;
  EXPECT_NE(create(layer, params), "");
  params = layer.Params(Arithmetic::kW4a4);
  params.down_input_scale = GlobalScale(0);
  EXPECT_NE(create(layer, params), "");
  const_cast<std::byte*>(layer.experts[2].up.scales)[5] = std::byte{0x7f};
  EXPECT_EQ(create(layer, layer.Params(Arithmetic::kW4a16)).find("layer 3, expert 2, up"), 0u);
}

}  // namespace
}  // namespace halfbyte
