// The C interface on a GPU: what it computes, refuses and reports there.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <halfbyte/moe.hpp>
#include <optional>
#include <thread>

#include "capi/capi_test_layer.h"
#include "device/cuda/faulty_kernel.h"
#include "device/cuda/gpu_test.h"
#include "moe/cuda/cuda_moe_test_layer.h"

namespace halfbyte {
namespace {

constexpr TestShape kShape{
    .hidden = 256, .intermediate = 128, .experts = 12, .tokens = 50, .top_k = 3};

class MoeAbiCuda : public CudaMoeTest {
 protected:
  static halfbyte_moe_options OnGpu(const char* arithmetic, int32_t ordinal = 0) {
    halfbyte_moe_options options = OptionsFor(arithmetic);
    options.device = HALFBYTE_MOE_CUDA;
    options.device_ordinal = ordinal;
    return options;
  }
  static LayerHandle Create(const CapiWeights& weights, const char* arithmetic) {
    const halfbyte_moe_options options = OnGpu(arithmetic);
    return weights.Create(&options);
  }
  halfbyte_moe_run_arguments Arguments(const DeviceCall& call) const {
    auto run = HALFBYTE_MOE_INIT(halfbyte_moe_run_arguments);
    run.tokens = call.call.tokens;
    run.top_k = call.call.top_k;
    run.hidden = call.call.hidden;
    run.topk_ids = call.call.topk_ids;
    run.topk_weights = call.call.topk_weights;
    run.out = call.call.out;
    run.hidden_type = HALFBYTE_MOE_BF16_ROWS;
    run.out_type =
        call.call.output == CudaMoeOutput::kF32 ? HALFBYTE_MOE_F32_ROWS : HALFBYTE_MOE_BF16_ROWS;
    run.stream = stream.get();
    return run;
  }
  std::vector<float> Run(const LayerHandle& layer, const WorkspaceHandle& workspace,
                         const TestInput& input, CudaMoeOutput output = CudaMoeOutput::kF32) {
    DeviceCall call(input, output);
    const halfbyte_moe_run_arguments run = Arguments(call);
    EXPECT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &run), HALFBYTE_MOE_OK)
        << halfbyte_moe_last_error();
    EXPECT_TRUE(Finish(cudaSuccess));
    return call.ReadOut();
  }
  static halfbyte_moe_counters CountersOf(const LayerHandle& layer) {
    auto counters = HALFBYTE_MOE_INIT(halfbyte_moe_counters);
    EXPECT_EQ(halfbyte_moe_read_counters(layer.get(), &counters), HALFBYTE_MOE_OK);
    return counters;
  }
};

TEST_F(MoeAbiCuda, GivesTheBitsOfTheLayerItself) {
  const CapiWeights weights(WeightFormat::kNvfp4, kShape);
  const TestInput input(kShape, 3);
  for (const Arithmetic arithmetic : {Arithmetic::kW4a16, Arithmetic::kW4a4}) {
    const LayerHandle layer = Create(weights, ArithmeticName(arithmetic).data());
    const WorkspaceHandle workspace = CreateWorkspace(layer, 64);
    const CudaMoeLayer itself = Layer(weights.source, weights.source.Params(arithmetic));
    for (const CudaMoeOutput output : {CudaMoeOutput::kF32, CudaMoeOutput::kBf16}) {
      EXPECT_TRUE(
          SameBits(Run(layer, workspace, input, output), CudaMoeTest::Run(itself, input, output)));
    }
  }
}

TEST_F(MoeAbiCuda, StaticScalesAndRanksAreThoseOfTheCpu) {
  CapiWeights weights(WeightFormat::kNvfp4, kShape);
  weights.weights.gate_up_input_scale = 0.002f;
  weights.weights.down_input_scale = 0.01f;
  const TestInput input(kShape, 4);
  halfbyte_moe_options options = OptionsFor("w4a4");
  const LayerHandle on_cpu = weights.Create(&options);
  const std::vector<float> want = RunCapi(on_cpu, CreateWorkspace(on_cpu, 64), input);
  std::vector<float> sum(want.size());
  options = OnGpu("w4a4");
  options.ranks = 3;
  for (options.rank = 0; options.rank < 3; ++options.rank) {
    CapiWeights part = weights;
    const auto first = static_cast<size_t>(4 * options.rank);
    part.weights.matrices = 4;
    part.weights.gate = &weights.gate[first];
    part.weights.up = &weights.up[first];
    part.weights.down = &weights.down[first];
    const LayerHandle layer = part.Create(&options);
    const std::vector<float> rows = Run(layer, CreateWorkspace(layer, 64), input);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += rows[i];
  }
  ExpectAgreement(sum, want, weights.source.Params(Arithmetic::kW4a4));
}

TEST_F(MoeAbiCuda, CapturedCallsGiveTheBitsOfEagerOnesAndCount) {  // R87
  const CapiWeights weights(WeightFormat::kNvfp4, kShape);
  const LayerHandle layer = Create(weights, "w4a4");
  const WorkspaceHandle workspace = CreateWorkspace(layer, 64);
  const TestInput first(kShape, 5), second(kShape, 6);
  const std::vector<float> eager = Run(layer, workspace, second);
  const int64_t blocks = CountersOf(layer).gate_up.blocks;
  EXPECT_EQ(blocks, kShape.tokens * kShape.hidden / 16);
  DeviceCall call(first);
  const halfbyte_moe_run_arguments run = Arguments(call);
  const auto graph = CudaGraph::Capture(stream, [&]() -> Status {
    if (halfbyte_moe_run(layer.get(), workspace.get(), &run) == HALFBYTE_MOE_OK) return {};
    return MakeError("{}", halfbyte_moe_last_error());
  });
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  EXPECT_EQ(CountersOf(layer).gate_up.blocks, blocks);
  call.Write(second);
  for (int64_t replay = 1; replay <= 2; ++replay) {
    call.out.Poison();
    ASSERT_TRUE(Finish(graph->Launch(stream)));
    EXPECT_TRUE(SameBits(call.ReadOut(), eager));
    EXPECT_EQ(CountersOf(layer).gate_up.blocks, (1 + replay) * blocks);
  }
}

TEST_F(MoeAbiCuda, RoutesAsTheCpuDoesAndCountsRows) {
  CapiWeights weights(WeightFormat::kNvfp4, kShape);
  std::vector<float> bias(12), logits(50 * 12);
  for (size_t i = 0; i < 12; ++i) bias[i] = 0.01f * static_cast<float>(i * 5 % 12);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 37 % 101) / 25 - 2;
  logits[30] = std::numeric_limits<float>::quiet_NaN();
  weights.weights.router_bias = bias.data();
  weights.weights.routed_scaling_factor = 1.5f;
  const LayerHandle layer = Create(weights, "w4a16"), on_cpu = weights.Create();
  std::vector<int32_t> want_ids(150);
  std::vector<float> want(150);
  auto route = HALFBYTE_MOE_INIT(halfbyte_moe_route_arguments);
  route.tokens = 50;
  route.logits = logits.data();
  route.topk_ids = want_ids.data();
  route.topk_weights = want.data();
  ASSERT_EQ(halfbyte_moe_route(on_cpu.get(), CreateWorkspace(on_cpu).get(), &route), 0);
  DeviceArray<float> d_logits(logits), d_weights(150);
  DeviceArray<int32_t> d_ids(150);
  route.logits = d_logits.data();
  route.topk_ids = d_ids.data();
  route.topk_weights = d_weights.data();
  route.stream = stream.get();
  ASSERT_EQ(halfbyte_moe_route(layer.get(), CreateWorkspace(layer).get(), &route), 0)
      << halfbyte_moe_last_error();
  ASSERT_TRUE(Finish(cudaSuccess));
  EXPECT_EQ(d_ids.Read(), want_ids);
  const std::vector<float> got = d_weights.Read();
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5 * want[i]) << i;
  EXPECT_EQ(CountersOf(layer).routed_rows, 50);
  EXPECT_EQ(CountersOf(layer).bad_rows, 1);
}

TEST_F(MoeAbiCuda, RefusesBeforeAnythingIsLaunched) {  // R93, R132
  const CapiWeights weights(WeightFormat::kNvfp4, kShape);
  const LayerHandle layer = Create(weights, "w4a16"), on_cpu = weights.Create();
  const WorkspaceHandle workspace = CreateWorkspace(layer, 50);
  const TestInput input(kShape, 7);
  DeviceCall call(input);
  const auto expect = [&](const halfbyte_moe_workspace* where, auto&& change, const char* words) {
    halfbyte_moe_run_arguments run = Arguments(call);
    change(run);
    EXPECT_EQ(halfbyte_moe_run(layer.get(), const_cast<halfbyte_moe_workspace*>(where), &run),
              HALFBYTE_MOE_BAD_INPUT);
    EXPECT_NE(std::strstr(halfbyte_moe_last_error(), words), nullptr) << halfbyte_moe_last_error();
  };
  const auto nothing = [](auto&) {};
  const WorkspaceHandle of_cpu = CreateWorkspace(on_cpu, 50), small = CreateWorkspace(layer, 49);
  expect(of_cpu.get(), nothing, "the layer is on GPU 0, but the workspace on the CPU");
  expect(small.get(), nothing, "tokens: 50, but the workspace takes 0..49");
  const auto with = [&](auto&& change, const char* words) {
    expect(workspace.get(), change, words);
  };
  std::vector<float> host(input.hidden.size());
  with([&](auto& run) { run.hidden = host.data(); }, "hidden is host memory");
  with([&](auto& run) { run.out = host.data(); }, "out is host memory");
  with([&](auto& run) { run.topk_ids = input.ids.data(); }, "topk_ids is host memory");
  with([&](auto& run) { run.topk_weights = input.weights.data(); }, "topk_weights is host memory");
  with([](auto& run) { run.hidden = static_cast<const char*>(run.hidden) + 2; }, "multiple of 16");
  with([](auto& run) { run.hidden_type = HALFBYTE_MOE_F32_ROWS; }, "hidden_type: a GPU takes");
  EXPECT_TRUE(Finish(cudaGetLastError()));
  for (const uint16_t x : call.out.Read()) ASSERT_EQ(x, 0xffff);
}

TEST_F(MoeAbiCuda, RefusesLayersAndDevicesItDoesNotHave) {  // R132
  const CapiWeights weights(WeightFormat::kNvfp4, kShape), bf16(WeightFormat::kBf16, kShape);
  const auto expect = [](const CapiWeights& from, halfbyte_moe_options options, const char* words) {
    halfbyte_moe_layer* out = nullptr;
    EXPECT_EQ(halfbyte_moe_layer_create(&from.weights, &options, &out), HALFBYTE_MOE_BAD_INPUT);
    EXPECT_NE(std::strstr(halfbyte_moe_last_error(), words), nullptr) << halfbyte_moe_last_error();
  };
  expect(weights, OnGpu("w4a16", 64), "there is no GPU 64: this machine has");
  expect(weights, OnGpu("w4a16", -1), "there is no GPU -1");
  expect(weights, OnGpu("w4a8"), "a GPU computes w4a16 and w4a4, not w4a8");
  expect(bf16, OnGpu("w4a16"), "convert the checkpoint to NVFP4");
  const CapiWeights wide(WeightFormat::kNvfp4, {2048, 16, 4, 0, 3});
  const LayerHandle layer = Create(wide, "w4a16");
  halfbyte_moe_workspace* none = nullptr;
  EXPECT_EQ(halfbyte_moe_workspace_create(layer.get(), 1 << 24, &none), HALFBYTE_MOE_OUT_OF_MEMORY);
  EXPECT_NE(std::strstr(halfbyte_moe_last_error(), "of GPU memory are needed"), nullptr)
      << halfbyte_moe_last_error();
}

TEST_F(MoeAbiCuda, WhatOthersDidWrongBeforeIsNoFaultOfTheCall) {
  const CapiWeights weights(WeightFormat::kNvfp4, kShape);
  const LayerHandle layer = Create(weights, "w4a16");
  const WorkspaceHandle workspace = CreateWorkspace(layer, 64);
  const TestInput input(kShape, 11);
  const std::vector<float> want = Run(layer, workspace, input);
  void* none = nullptr;
  ASSERT_EQ(cudaMalloc(&none, size_t{1} << 60), cudaErrorMemoryAllocation);
  EXPECT_TRUE(SameBits(Run(layer, workspace, input), want));
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);  // still theirs to see
}

// In a process of its own, whose GPU is of no use afterwards.
TEST_F(MoeAbiCuda, AKernelThatFailedEarlierIsNotAnArgumentsFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // Without the check, or the launch itself would tell; the tests after this one may want it.
  const char* const check = std::getenv("HALFBYTE_CUDA_CHECK");
  const std::string checked = check != nullptr ? check : "";
  ::unsetenv("HALFBYTE_CUDA_CHECK");
  const auto run_after_fault = [&] {
    const CapiWeights weights(WeightFormat::kNvfp4, kShape);
    const LayerHandle layer = Create(weights, "w4a16");
    const WorkspaceHandle workspace = CreateWorkspace(layer, 64);
    DeviceCall call(TestInput(kShape, 12));
    const halfbyte_moe_run_arguments run = Arguments(call);
    EXPECT_EQ(LaunchFaultyKernel(stream.get()), cudaSuccess);
    cudaStreamSynchronize(stream.get());
    const int code = halfbyte_moe_run(layer.get(), workspace.get(), &run);
    std::fprintf(stderr, "%s\n", halfbyte_moe_last_error());
    halfbyte_moe_layer* other = nullptr;
    const halfbyte_moe_options options = OnGpu("w4a16");
    const int made = halfbyte_moe_layer_create(&weights.weights, &options, &other);
    std::_Exit(code == HALFBYTE_MOE_DEVICE_FAILED && made == HALFBYTE_MOE_DEVICE_FAILED ? 0 : 1);
  };
  EXPECT_EXIT(run_after_fault(), testing::ExitedWithCode(0),
              "before this call.*illegal memory access");
  if (!checked.empty()) ::setenv("HALFBYTE_CUDA_CHECK", checked.c_str(), 1);
}

TEST_F(MoeAbiCuda, ASecondStreamOnAWorkspaceAtWorkIsRefused) {  // R94
  if (std::getenv("HALFBYTE_CUDA_CHECK") != nullptr) GTEST_SKIP() << "no call leaves work behind";
  const CapiWeights weights(WeightFormat::kNvfp4, kShape);
  const LayerHandle layer = Create(weights, "w4a16");
  const WorkspaceHandle workspace = CreateWorkspace(layer, 64);
  const TestInput input(kShape, 8);
  const std::vector<float> want = Run(layer, workspace, input);
  const auto other = CudaStream::Create();
  ASSERT_TRUE(other.has_value());
  DeviceCall call(input), elsewhere(input);
  halfbyte_moe_run_arguments run = Arguments(call), late = Arguments(elsewhere);
  late.stream = other->get();
  std::atomic<bool> go = false;
  const auto wait = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  ASSERT_EQ(cudaLaunchHostFunc(stream.get(), wait, &go), cudaSuccess);  // the stream is at work
  EXPECT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &run), HALFBYTE_MOE_OK);
  EXPECT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &late), HALFBYTE_MOE_BUSY);
  EXPECT_NE(std::strstr(halfbyte_moe_last_error(), "in another stream"), nullptr);
  EXPECT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &run), HALFBYTE_MOE_OK);  // the same one
  go = true;
  ASSERT_TRUE(Finish(cudaSuccess));
  EXPECT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &late), HALFBYTE_MOE_OK);
  ASSERT_TRUE(other->Synchronize().has_value());
  EXPECT_TRUE(SameBits(call.ReadOut(), want));
  EXPECT_TRUE(SameBits(elsewhere.ReadOut(), want));
}

TEST_F(MoeAbiCuda, ALayerReportsTheMemoryItTook) {  // R100
  const CapiWeights weights(WeightFormat::kNvfp4, {512, 512, 40, 0, 2});
  const LayerHandle layer = Create(weights, "w4a16");
  auto info = HALFBYTE_MOE_INIT(halfbyte_moe_info);
  ASSERT_EQ(halfbyte_moe_layer_describe(layer.get(), &info), HALFBYTE_MOE_OK);
  EXPECT_EQ(info.device, HALFBYTE_MOE_CUDA);
  EXPECT_EQ(info.threads, 0);
  const int64_t expert = 3 * 512 * 512 * 9 / 16;
  EXPECT_EQ(info.weight_bytes, 40 * expert);
  EXPECT_GE(info.device_bytes, 40 * expert);
  EXPECT_LE(info.peak_device_bytes, 41 * expert + (1 << 16));
  EXPECT_GT(info.peak_device_bytes, info.device_bytes);
}

TEST_F(MoeAbiCuda, LayersOnSeveralGpusKeepTheirDevice) {  // R97
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "needs two GPUs";
  const CapiWeights weights(WeightFormat::kNvfp4, kShape);
  const TestInput input(kShape, 9);
  const LayerHandle first = Create(weights, "w4a4");
  const std::vector<float> want = Run(first, CreateWorkspace(first, 64), input);
  for (int32_t gpu = 1; gpu < count; ++gpu) {
    const halfbyte_moe_options options = OnGpu("w4a4", gpu);
    const LayerHandle layer = weights.Create(&options);
    const WorkspaceHandle workspace = CreateWorkspace(layer, 64);
    int current = -1;
    ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, 0);
    DeviceCall far(input);  // on GPU 0
    halfbyte_moe_run_arguments run = Arguments(far);
    EXPECT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &run), HALFBYTE_MOE_BAD_INPUT);
    EXPECT_NE(std::strstr(halfbyte_moe_last_error(), "hidden is memory of GPU 0"), nullptr);
    ASSERT_EQ(cudaSetDevice(gpu), cudaSuccess);
    DeviceCall call(input);
    run = Arguments(call);
    const auto own = CudaStream::Create();
    ASSERT_TRUE(own.has_value());
    run.stream = own->get();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);  // the call finds its device by itself
    ASSERT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &run), HALFBYTE_MOE_OK)
        << halfbyte_moe_last_error();
    ASSERT_TRUE(own->Synchronize().has_value());
    EXPECT_TRUE(SameBits(call.ReadOut(), want)) << "GPU " << gpu;
  }
}

TEST_F(MoeAbiCuda, TheCppHeaderPassesTheStream) {
  const CapiWeights weights(WeightFormat::kNvfp4, kShape);
  moe::Weights given;
  static_cast<halfbyte_moe_weights&>(given) = weights.weights;
  moe::Options options;
  options.device = HALFBYTE_MOE_CUDA;
  const moe::Layer layer = moe::Layer::Create(given, options);
  moe::Workspace workspace(layer, 64);
  const TestInput input(kShape, 10);
  DeviceCall call(input);
  layer.Run(workspace, {50, 3, call.ids.data(), call.weights.data()},
            reinterpret_cast<const moe::Bf16*>(call.hidden.data()),
            reinterpret_cast<float*>(call.out.data()), stream.get());
  ASSERT_TRUE(Finish(cudaSuccess));
  const LayerHandle same = Create(weights, "w4a16");
  EXPECT_TRUE(SameBits(call.ReadOut(), Run(same, CreateWorkspace(same, 64), input)));
}

}  // namespace
}  // namespace halfbyte
