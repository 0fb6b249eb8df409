// Calls that cannot work: each is refused with a sentence that names the cause, and nothing else
// happens.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "capi/capi_test_layer.h"

namespace halfbyte {
namespace {

void ExpectRefused(int code, const std::string& words) {
  EXPECT_EQ(code, HALFBYTE_MOE_BAD_INPUT);
  EXPECT_NE(std::strstr(halfbyte_moe_last_error(), words.c_str()), nullptr)
      << "'" << halfbyte_moe_last_error() << "' does not say '" << words << "'";
}

TEST(MoeAbiRefuses, NullPointers) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  const LayerHandle layer = weights.Create();
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  halfbyte_moe_layer* out_layer = nullptr;
  halfbyte_moe_workspace* out_workspace = nullptr;
  uint64_t bytes = 0;
  auto info = HALFBYTE_MOE_INIT(halfbyte_moe_info);
  auto counters = HALFBYTE_MOE_INIT(halfbyte_moe_counters);
  auto run = HALFBYTE_MOE_INIT(halfbyte_moe_run_arguments);
  auto route = HALFBYTE_MOE_INIT(halfbyte_moe_route_arguments);

  ExpectRefused(halfbyte_moe_layer_open(nullptr, 0, nullptr, &out_layer), "directory is NULL");
  ExpectRefused(halfbyte_moe_layer_open("x", 0, nullptr, nullptr), "out is NULL");
  ExpectRefused(halfbyte_moe_layer_create(nullptr, nullptr, &out_layer), "weights is NULL");
  ExpectRefused(halfbyte_moe_layer_create(&weights.weights, nullptr, nullptr), "out is NULL");
  ExpectRefused(halfbyte_moe_layer_describe(nullptr, &info), "layer is NULL");
  ExpectRefused(halfbyte_moe_layer_describe(layer.get(), nullptr), "info is NULL");
  ExpectRefused(halfbyte_moe_workspace_bytes(nullptr, 1, &bytes), "layer is NULL");
  ExpectRefused(halfbyte_moe_workspace_bytes(layer.get(), 1, nullptr), "bytes is NULL");
  ExpectRefused(halfbyte_moe_workspace_create(nullptr, 1, &out_workspace), "layer is NULL");
  ExpectRefused(halfbyte_moe_workspace_create(layer.get(), 1, nullptr), "out is NULL");
  ExpectRefused(halfbyte_moe_run(nullptr, workspace.get(), &run), "layer is NULL");
  ExpectRefused(halfbyte_moe_run(layer.get(), nullptr, &run), "workspace is NULL");
  ExpectRefused(halfbyte_moe_run(layer.get(), workspace.get(), nullptr), "arguments is NULL");
  ExpectRefused(halfbyte_moe_route(nullptr, workspace.get(), &route), "layer is NULL");
  ExpectRefused(halfbyte_moe_route(layer.get(), nullptr, &route), "workspace is NULL");
  ExpectRefused(halfbyte_moe_route(layer.get(), workspace.get(), nullptr), "arguments is NULL");
  ExpectRefused(halfbyte_moe_read_counters(nullptr, &counters), "layer is NULL");
  ExpectRefused(halfbyte_moe_read_counters(layer.get(), nullptr), "counters is NULL");
  EXPECT_EQ(out_layer, nullptr);
  EXPECT_EQ(out_workspace, nullptr);
  halfbyte_moe_layer_destroy(nullptr);
  halfbyte_moe_workspace_destroy(nullptr);
}

TEST(MoeAbiRefuses, StructsWithoutTheirSize) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  const LayerHandle layer = weights.Create();
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  halfbyte_moe_layer* out = nullptr;
  for (const uint64_t size : {uint64_t{0}, uint64_t{8}, uint64_t{5000}, ~uint64_t{0}}) {
    halfbyte_moe_options options{.struct_size = size};
    ExpectRefused(halfbyte_moe_layer_create(&weights.weights, &options, &out), "options: struct_s");
    halfbyte_moe_weights sized = weights.weights;
    sized.struct_size = size;
    ExpectRefused(halfbyte_moe_layer_create(&sized, nullptr, &out), "weights: struct_size");
    halfbyte_moe_run_arguments run{.struct_size = size};
    ExpectRefused(halfbyte_moe_run(layer.get(), workspace.get(), &run), "arguments: struct_size");
    halfbyte_moe_route_arguments route{.struct_size = size};
    ExpectRefused(halfbyte_moe_route(layer.get(), workspace.get(), &route), "struct_size");
    halfbyte_moe_info info{.struct_size = size};
    ExpectRefused(halfbyte_moe_layer_describe(layer.get(), &info), "info: struct_size");
    halfbyte_moe_counters counters{.struct_size = size};
    ExpectRefused(halfbyte_moe_read_counters(layer.get(), &counters), "counters: struct_size");
  }
}

TEST(MoeAbiRefuses, OptionsOutOfRange) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  const auto expect = [&](const std::function<void(halfbyte_moe_options&)>& change,
                          const std::string& words) {
    halfbyte_moe_options options = OptionsFor(nullptr);
    change(options);
    halfbyte_moe_layer* out = nullptr;
    ExpectRefused(halfbyte_moe_layer_create(&weights.weights, &options, &out), words);
    EXPECT_EQ(out, nullptr);
  };
  expect([](auto& o) { o.arithmetic = "fp8"; }, "options.arithmetic: there is no \"fp8\"");
  expect([](auto& o) { o.threads = -1; }, "options.threads: -1");
  expect([](auto& o) { o.threads = 1 << 20; }, "options.threads: 1048576");
  expect([](auto& o) { o.activation_scales = 3; }, "options.activation_scales: 3");
  expect([](auto& o) { o.headroom = 7; }, "options.headroom: 7");
  expect([](auto& o) { o.ranks = -1; }, "options.rank: 0 of -1 ranks");
  expect([](auto& o) { o.rank = 1; }, "options.rank: 1 of 0 ranks");
  expect([](auto& o) { o.device = 2; }, "options.device: 2 is none of");
  expect(
      [](auto& o) {
        o.arithmetic = "w4a4";
        o.activation_scales = HALFBYTE_MOE_SCALES_STATIC;
      },
      "weights, gate_up and down: no input_scale");
  expect([](auto& o) { o.activation_scales_file = "x"; },
         "activation_scales_file: is for \"w4a4\"");
  const auto with_file = [&](const char* file, int32_t scales, const std::string& words) {
    expect(
        [&](auto& o) {
          o.arithmetic = "w4a4";
          o.activation_scales_file = file;
          o.activation_scales = scales;
        },
        words);
  };
  const ScalesFile file;
  with_file("/no/such/file", HALFBYTE_MOE_SCALES_AUTO, "/no/such/file");
  with_file(file.path.c_str(), HALFBYTE_MOE_SCALES_STATIC, "must be HALFBYTE_MOE_SCALES_AUTO");
  with_file(file.path.c_str(), HALFBYTE_MOE_SCALES_PER_TOKEN, "must be HALFBYTE_MOE_SCALES_AUTO");
  with_file(file.path.c_str(), HALFBYTE_MOE_SCALES_AUTO, "is for the layers of a checkpoint");
}

TEST(MoeAbiRefuses, AGpuThatThisLibraryOrMachineDoesNotHave) {  // R132
  halfbyte_moe_options options = OptionsFor("w4a16");
  options.device = HALFBYTE_MOE_CUDA;
  options.device_ordinal = 1000;
  halfbyte_moe_layer* out = nullptr;
  // Before a file is looked at.
  const int code = halfbyte_moe_layer_open("/no/such/model", 0, &options, &out);
#ifdef HALFBYTE_CUDA
  ExpectRefused(code, "GPU");
#else
  ExpectRefused(code,
                "options.device: this libhalfbyte was built without CUDA; build it with cmake "
                "--preset cuda, or choose HALFBYTE_MOE_CPU");
#endif
  EXPECT_EQ(out, nullptr);
}

TEST(MoeAbiRefuses, ScalesOfAnotherModel) {
  const ScalesFile file(/*experts=*/31);
  halfbyte_moe_options options = OptionsFor("w4a4");
  options.activation_scales_file = file.path.c_str();
  halfbyte_moe_layer* out = nullptr;
  ExpectRefused(
      halfbyte_moe_layer_open(HALFBYTE_SOURCE_DIR "/models/tiny-v4-nvfp4", 0, &options, &out),
      "scales of another model");
}

TEST(MoeAbiRefuses, WeightsThatDoNotFitTogether) {
  const auto expect = [](const std::function<void(CapiWeights&)>& change, const std::string& words,
                         WeightFormat format = WeightFormat::kNvfp4) {
    CapiWeights weights(format);
    change(weights);
    halfbyte_moe_layer* out = nullptr;
    ExpectRefused(halfbyte_moe_layer_create(&weights.weights, nullptr, &out), words);
    EXPECT_EQ(out, nullptr);
  };
  expect([](auto& w) { w.weights.experts = 0; }, "weights.experts: 0");
  expect([](auto& w) { w.weights.experts = 7; }, "weights.matrices: 6 where 7");
  expect([](auto& w) { w.weights.hidden = 0; }, "weights.hidden: 0");
  expect([](auto& w) { w.weights.hidden = 72; }, "weights.hidden: 72");
  expect([](auto& w) { w.weights.hidden = std::numeric_limits<int64_t>::max(); }, "weights.hidden");
  expect([](auto& w) { w.weights.intermediate = -16; }, "weights.intermediate: -16");
  expect([](auto& w) { w.weights.top_k = 0; }, "weights.top_k: 0");
  expect([](auto& w) { w.weights.top_k = 7; }, "weights.top_k: 7");
  expect([](auto& w) { w.weights.up = nullptr; }, "gate, up or down is NULL");
  expect([](auto& w) { w.weights.swiglu_limit = -1; }, "swiglu_limit: -1");
  expect([](auto& w) { w.weights.router_score = 4; }, "router_score: 4");
  expect([](auto& w) { w.weights.router_weights = -1; }, "router_weights: -1");
  const auto groups = [](int64_t count, int64_t chosen) {
    return [=](CapiWeights& w) {
      w.weights.router_groups = count;
      w.weights.router_chosen_groups = chosen;
    };
  };
  expect(groups(4, 1), "router_groups: 6 experts do not fall into 4 equal groups");
  expect(groups(-2, 1), "router_groups");
  expect(groups(0, 1), "router_groups");
  expect(groups(3, 0), "router_chosen_groups: 0 is outside 1..3");
  expect(groups(3, 4), "router_chosen_groups: 4 is outside 1..3");
  expect(groups(6, 1), "top_k: 2 of the 1 experts in 1 groups");
  expect([](auto& w) { w.gate[2].format = 0; }, "expert 2, gate: format 0");
  expect([](auto& w) { w.up[1].data_bytes -= 1; }, "expert 1, up: 1023 bytes of data");
  expect([](auto& w) { w.down[0].scale_bytes += 1; }, "expert 0, down: 129 bytes of scales");
  expect([](auto& w) { w.down[5].data = nullptr; }, "expert 5, down: data is NULL");
  expect([](auto& w) { w.down[5].scales = nullptr; }, "expert 5, down: scales is NULL");
  expect([](auto& w) { w.down[3].global_scale = 0; }, "expert 3, down: global scale 0");
  expect([](auto& w) { w.weights.hidden = 128; }, "expert 0, gate: 1024 bytes of data");
  expect([](auto& w) { w.gate[0].scale_type = 9; }, "scale_type 9", WeightFormat::kFp8);
  expect([](auto& w) { w.gate[0].block_rows = 0; }, "blocks of [0, 64]", WeightFormat::kFp8);
  expect([](auto& w) { w.gate[0].scale_bytes = 4; }, "4 bytes of scales", WeightFormat::kBf16);
}

TEST(MoeAbiRefuses, ScaleBytesThatAreNoScalesR105R111) {
  for (const auto& [format, bad] :
       {std::pair{WeightFormat::kNvfp4, 0x7f}, std::pair{WeightFormat::kNvfp4, 0x80},
        std::pair{WeightFormat::kMxfp4, 0xff}, std::pair{WeightFormat::kFp8, 0xff}}) {
    CapiWeights weights(format);
    std::vector<std::byte> scales(weights.up[4].scale_bytes, std::byte{0x38});
    scales.back() = static_cast<std::byte>(bad);
    weights.up[4].scales = scales.data();
    halfbyte_moe_layer* out = nullptr;
    ExpectRefused(halfbyte_moe_layer_create(&weights.weights, nullptr, &out), "expert 4, up");
  }
}

TEST(MoeAbiRefuses, LayersThatAreNotThere) {
  halfbyte_moe_layer* out = nullptr;
  const char* tiny = HALFBYTE_SOURCE_DIR "/models/tiny-v4-nvfp4";
  ExpectRefused(halfbyte_moe_layer_open("/nowhere/at/all", 0, nullptr, &out), "/nowhere/at/all");
  ExpectRefused(halfbyte_moe_layer_open(HALFBYTE_SOURCE_DIR, 0, nullptr, &out),
                "no model.safetensors.index.json");
  ExpectRefused(halfbyte_moe_layer_open(tiny, -1, nullptr, &out), "layer -1");
  ExpectRefused(halfbyte_moe_layer_open(tiny, 6, nullptr, &out), "layers are 0..5");
}

TEST(MoeAbiRefuses, WorkspacesOfImpossibleSizeOrForSmallerLayers) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  const LayerHandle layer = weights.Create();
  halfbyte_moe_workspace* out = nullptr;
  for (const int64_t tokens : {int64_t{-1}, int64_t{0}, std::numeric_limits<int64_t>::max()}) {
    ExpectRefused(halfbyte_moe_workspace_create(layer.get(), tokens, &out), "max_tokens");
    uint64_t bytes = 0;
    ExpectRefused(halfbyte_moe_workspace_bytes(layer.get(), tokens, &bytes), "max_tokens");
  }
  const LayerHandle larger = OpenTinyLayer(0);
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  auto run = HALFBYTE_MOE_INIT(halfbyte_moe_run_arguments);
  ExpectRefused(halfbyte_moe_run(larger.get(), workspace.get(), &run), "the workspace is for");
}

TEST(MoeAbiRefuses, RunsWithWrongArgumentsAndLeavesOutAlone) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  const LayerHandle layer = weights.Create();
  const WorkspaceHandle workspace = CreateWorkspace(layer, kCapiShape.tokens);
  const TestInput input(kCapiShape, 3);
  const auto expect = [&](const std::function<void(halfbyte_moe_run_arguments&)>& change,
                          const std::string& words) {
    std::vector<float> out;
    halfbyte_moe_run_arguments run = RunArguments(input, out);
    change(run);
    ExpectRefused(halfbyte_moe_run(layer.get(), workspace.get(), &run), words);
    for (const float x : out) ASSERT_TRUE(std::isnan(x));
  };
  EXPECT_EQ(RunCapi(layer, workspace, input),  // as many tokens as the workspace takes
            RunCapi(layer, CreateWorkspace(layer, 99), input));
  const auto shifted = [](const void* p) { return static_cast<const char*>(p) + 1; };
  expect([](auto& r) { r.tokens = -1; }, "tokens: -1");
  expect([](auto& r) { r.tokens = kCapiShape.tokens + 1; }, "the workspace takes 0..5");
  expect([](auto& r) { r.top_k = 0; }, "top_k: 0");
  expect([](auto& r) { r.top_k = 3; }, "top_k: 3 is outside 1..2");
  expect([](auto& r) { r.hidden_type = 0; }, "hidden_type: 0");
  expect([](auto& r) { r.out_type = 9; }, "out_type: 9");
  expect([](auto& r) { r.hidden = nullptr; }, "hidden is NULL");
  expect([](auto& r) { r.out = nullptr; }, "out is NULL");
  expect([](auto& r) { r.topk_ids = nullptr; }, "topk_ids is NULL");
  expect([](auto& r) { r.topk_weights = nullptr; }, "topk_weights is NULL");
  expect([&](auto& r) { r.hidden = shifted(r.hidden); }, "hidden is not aligned");
  expect([](auto& r) { r.out = const_cast<void*>(r.hidden); }, "out overlaps hidden");
}

TEST(MoeAbiRefuses, RoutesWithWrongArguments) {
  const LayerHandle layer = OpenTinyLayer(0);  // by token id
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  const std::vector<float> logits(32);
  std::vector<int32_t> ids(4);
  std::vector<float> weights(4);
  int32_t token_id = 0;
  const auto expect = [&](const std::function<void(halfbyte_moe_route_arguments&)>& change,
                          const std::string& words) {
    auto route = HALFBYTE_MOE_INIT(halfbyte_moe_route_arguments);
    route.tokens = 1;
    route.logits = logits.data();
    route.token_ids = &token_id;
    route.topk_ids = ids.data();
    route.topk_weights = weights.data();
    change(route);
    ExpectRefused(halfbyte_moe_route(layer.get(), workspace.get(), &route), words);
  };
  expect([](auto& r) { r.tokens = -1; }, "tokens: -1");
  expect([](auto& r) { r.logits = nullptr; }, "logits is NULL");
  expect([](auto& r) { r.topk_ids = nullptr; }, "topk_ids is NULL");
  expect([](auto& r) { r.topk_weights = nullptr; }, "topk_weights is NULL");
  expect([](auto& r) { r.token_ids = nullptr; }, "token_ids is NULL");
  for (const int32_t bad : {-1, 4096, std::numeric_limits<int32_t>::max()}) {
    token_id = bad;
    expect([](auto&) {}, "token_ids[0]: " + std::to_string(bad) + " is outside 0..4095");
  }
}

}  // namespace
}  // namespace halfbyte
