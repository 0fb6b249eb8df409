// What the C interface computes. What it refuses: moe_abi_refusals_test.cc.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <halfbyte/moe.hpp>
#include <limits>
#include <thread>

#include "capi/capi_test_layer.h"
#include "capi/moe_handles.h"
#include "numerics/bf16.h"

namespace halfbyte {
namespace {

// Programs built against earlier versions rely on these.
static_assert(HALFBYTE_MOE_ABI_VERSION == 4);
static_assert(sizeof(halfbyte_moe_options) == 56 && offsetof(halfbyte_moe_options, rank) == 36 &&
              offsetof(halfbyte_moe_options, activation_scales_file) == 40 &&
              offsetof(halfbyte_moe_options, device) == 48);
static_assert(sizeof(halfbyte_moe_matrix) == 56 && offsetof(halfbyte_moe_matrix, format) == 32);
static_assert(sizeof(halfbyte_moe_weights) == 128 &&
              offsetof(halfbyte_moe_weights, router_bias) == 104 &&
              offsetof(halfbyte_moe_weights, router_groups) == 112 &&
              offsetof(halfbyte_moe_weights, router_chosen_groups) == 120);
static_assert(sizeof(halfbyte_moe_info) == 104 && offsetof(halfbyte_moe_info, threads) == 64 &&
              offsetof(halfbyte_moe_info, device) == 80 &&
              offsetof(halfbyte_moe_info, peak_device_bytes) == 96);
static_assert(sizeof(halfbyte_moe_run_arguments) == 72 &&
              offsetof(halfbyte_moe_run_arguments, out_type) == 60 &&
              offsetof(halfbyte_moe_run_arguments, stream) == 64);
static_assert(sizeof(halfbyte_moe_route_arguments) == 56 &&
              offsetof(halfbyte_moe_route_arguments, stream) == 48);
static_assert(sizeof(halfbyte_moe_stage_counters) == 56);
static_assert(sizeof(halfbyte_moe_counters) == 136 &&
              offsetof(halfbyte_moe_counters, bad_rows) == 128);

halfbyte_moe_counters CountersOf(const LayerHandle& layer) {
  auto counters = HALFBYTE_MOE_INIT(halfbyte_moe_counters);
  EXPECT_EQ(halfbyte_moe_read_counters(layer.get(), &counters), HALFBYTE_MOE_OK);
  return counters;
}

TEST(MoeAbi, TheLibraryReportsTheVersionOfItsHeader) {
  EXPECT_EQ(halfbyte_moe_abi_version(), uint32_t{HALFBYTE_MOE_ABI_VERSION});
}

TEST(MoeAbi, TensorsInEveryFormatGiveTheBitsOfTheLayerItself) {
  const TestInput input(kCapiShape, 3);
  for (const WeightFormat format :
       {WeightFormat::kNvfp4, WeightFormat::kMxfp4, WeightFormat::kBf16, WeightFormat::kFp8}) {
    const CapiWeights weights(format);
    const bool four_bit = format == WeightFormat::kNvfp4 || format == WeightFormat::kMxfp4;
    for (const Arithmetic arithmetic : kArithmetics) {
      if (IsFourBitOnly(arithmetic) && !four_bit) continue;
      SCOPED_TRACE(std::string(WeightFormatName(format)) + " " +
                   std::string(ArithmeticName(arithmetic)));
      const halfbyte_moe_options options = OptionsFor(ArithmeticName(arithmetic).data());
      const LayerHandle layer = weights.Create(&options);
      ASSERT_TRUE(layer);
      EXPECT_EQ(RunCapi(layer, CreateWorkspace(layer), input),
                weights.source.Run(weights.source.Params(arithmetic), input));
    }
  }
}

TEST(MoeAbi, Bf16RowsAreTheSameNumbersAndRoundTheSumOnce) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  const LayerHandle layer = weights.Create();
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  const TestInput input(kCapiShape, 4);
  const std::vector<float> expected = RunCapi(layer, workspace, input);
  std::vector<Bf16> hidden, out(expected.size());
  for (const float x : input.hidden) hidden.push_back(ToBf16(x));
  std::vector<float> unused;
  halfbyte_moe_run_arguments run = RunArguments(input, unused);
  run.hidden = hidden.data();
  run.out = out.data();
  run.hidden_type = run.out_type = HALFBYTE_MOE_BF16_ROWS;
  ASSERT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &run), HALFBYTE_MOE_OK);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], ToBf16(expected[i])) << i;
}

TEST(MoeAbi, IdsOutsideTheRangeMeanNoExpert) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  const LayerHandle layer = weights.Create();
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  TestInput input(kCapiShape, 5);
  const std::vector<float> before = RunCapi(layer, workspace, input);
  input.ids[0] = -1;
  input.ids[1] = static_cast<int32_t>(kCapiShape.experts);
  input.ids[2] = std::numeric_limits<int32_t>::min();
  input.ids[3] = std::numeric_limits<int32_t>::max();
  const std::vector<float> after = RunCapi(layer, workspace, input);
  const auto changed = static_cast<size_t>(2 * kCapiShape.hidden);
  for (size_t i = 0; i < changed; ++i) EXPECT_EQ(after[i], 0.0f) << i;
  for (size_t i = changed; i < after.size(); ++i) EXPECT_EQ(after[i], before[i]) << i;
}

TEST(MoeAbi, NoTokensAreDoneWithoutTouchingAPointer) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  const LayerHandle layer = weights.Create();
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  auto run = HALFBYTE_MOE_INIT(halfbyte_moe_run_arguments);
  run.top_k = 1;
  run.hidden_type = run.out_type = HALFBYTE_MOE_BF16_ROWS;
  EXPECT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &run), HALFBYTE_MOE_OK);
  auto route = HALFBYTE_MOE_INIT(halfbyte_moe_route_arguments);
  EXPECT_EQ(halfbyte_moe_route(layer.get(), workspace.get(), &route), HALFBYTE_MOE_OK);
}

TEST(MoeAbi, ALayerDescribesItself) {
  const LayerHandle layer = OpenTinyLayer(0);
  auto info = HALFBYTE_MOE_INIT(halfbyte_moe_info);
  ASSERT_EQ(halfbyte_moe_layer_describe(layer.get(), &info), HALFBYTE_MOE_OK);
  EXPECT_EQ(info.experts, 32);
  EXPECT_EQ(info.local_experts, 32);
  EXPECT_EQ(info.hidden, 256);
  EXPECT_EQ(info.intermediate, 128);
  EXPECT_EQ(info.top_k, 4);
  EXPECT_EQ(info.weight_bytes, 32 * 3 * (256 * 128 / 2 + 256 * 128 / 16));
  EXPECT_STREQ(info.arithmetic, "w4a16");
  EXPECT_GE(info.threads, 1);
  EXPECT_EQ(info.routes_by_token_id, 1);
  EXPECT_EQ(info.static_scales, 0);
}

TEST(MoeAbi, WorkspaceBytesGrowWithTheTokens) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  const LayerHandle layer = weights.Create();
  uint64_t one = 0, ten = 0;
  ASSERT_EQ(halfbyte_moe_workspace_bytes(layer.get(), 1, &one), HALFBYTE_MOE_OK);
  ASSERT_EQ(halfbyte_moe_workspace_bytes(layer.get(), 10, &ten), HALFBYTE_MOE_OK);
  EXPECT_GE(one, 2 * sizeof(float) * static_cast<size_t>(kCapiShape.hidden));
  EXPECT_GT(ten, 5 * one);
}

TEST(MoeAbi, ACheckpointLayerAgreesWithItsExactArithmetic) {
  const TestShape shape{.hidden = 256, .intermediate = 128, .experts = 32, .tokens = 7, .top_k = 4};
  const TestInput input(shape, 6);
  const halfbyte_moe_options exact = OptionsFor("ref");
  const LayerHandle reference = OpenTinyLayer(2, &exact);
  const std::vector<float> expected = RunCapi(reference, CreateWorkspace(reference), input);
  for (const auto& [arithmetic, cosine] :
       {std::pair{"w4a16", 1 - 1e-6}, std::pair{"w4a8", 1 - 1e-3}, std::pair{"w4a4", 0.98}}) {
    const halfbyte_moe_options options = OptionsFor(arithmetic);
    const LayerHandle layer = OpenTinyLayer(2, &options);
    const std::vector<float> out = RunCapi(layer, CreateWorkspace(layer), input);
    EXPECT_GE(Compare(out, expected, shape.hidden).cosine, cosine) << arithmetic;
  }
}

TEST(MoeAbi, PartialSumsOfTheRanksMakeTheWhole) {
  const TestShape shape{.hidden = 256, .intermediate = 128, .experts = 32, .tokens = 7, .top_k = 4};
  const TestInput input(shape, 7);
  halfbyte_moe_options options = OptionsFor("w4a4");
  const LayerHandle whole = OpenTinyLayer(3, &options);
  const std::vector<float> expected = RunCapi(whole, CreateWorkspace(whole), input);
  std::vector<float> sum(expected.size());
  options.ranks = 3;
  for (options.rank = 0; options.rank < options.ranks; ++options.rank) {
    const LayerHandle layer = OpenTinyLayer(3, &options);
    auto info = HALFBYTE_MOE_INIT(halfbyte_moe_info);
    ASSERT_EQ(halfbyte_moe_layer_describe(layer.get(), &info), HALFBYTE_MOE_OK);
    EXPECT_EQ(info.local_experts, options.rank < 2 ? 11 : 10);
    const std::vector<float> part = RunCapi(layer, CreateWorkspace(layer), input);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  EXPECT_GE(Compare(sum, expected, shape.hidden).worst_row_cosine, 1 - 1e-6);
}

TEST(MoeAbi, RoutesByTokenIdWhereTheCheckpointSaysSo) {
  const LayerHandle layer = OpenTinyLayer(1);
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  const std::vector<float> logits(3 * 32, 0.5f);
  const std::vector<int32_t> token_ids = {9, 4095, 9};
  std::vector<int32_t> ids(12, -7);
  std::vector<float> weights(12);
  auto route = HALFBYTE_MOE_INIT(halfbyte_moe_route_arguments);
  route.tokens = 3;
  route.logits = logits.data();
  route.token_ids = token_ids.data();
  route.topk_ids = ids.data();
  route.topk_weights = weights.data();
  ASSERT_EQ(halfbyte_moe_route(layer.get(), workspace.get(), &route), HALFBYTE_MOE_OK);
  const auto& table = layer->experts->routing().table;
  for (size_t j = 0; j < 4; ++j) {
    EXPECT_EQ(ids[j], table[9 * 4 + j]);
    EXPECT_EQ(ids[4 + j], table[4095 * 4 + j]);
    EXPECT_EQ(ids[8 + j], ids[j]);
    EXPECT_FLOAT_EQ(weights[j], 1.5f / 4);
  }
}

TEST(MoeAbi, RefusesARouterBiasThatIsNotFinite) {
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    CapiWeights weights(WeightFormat::kBf16);
    const std::vector<float> bias = {0, 0, 0, wrong, 0, 3};
    weights.weights.router_bias = bias.data();
    halfbyte_moe_layer* layer = nullptr;
    EXPECT_EQ(halfbyte_moe_layer_create(&weights.weights, nullptr, &layer), HALFBYTE_MOE_BAD_INPUT);
    EXPECT_NE(std::string(halfbyte_moe_last_error()).find("router_bias: "), std::string::npos);
    EXPECT_NE(std::string(halfbyte_moe_last_error()).find("expert 3"), std::string::npos);
  }
}

TEST(MoeAbi, RoutesByScoreAndCountsBadRows) {
  CapiWeights weights(WeightFormat::kBf16);
  const std::vector<float> bias = {0, 0, 0, 0, 0, 3};
  weights.weights.router_score = HALFBYTE_MOE_IDENTITY;
  weights.weights.router_weights = HALFBYTE_MOE_KEEP_SCORES;
  weights.weights.routed_scaling_factor = 2;
  weights.weights.router_bias = bias.data();
  const LayerHandle layer = weights.Create();
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {5, 1,    4, 2, 0, 1.5f,  // 5 wins by bias only over 2
                                     3, kNan, 4, 2, 0, 0};
  std::vector<int32_t> ids(4);
  std::vector<float> out(4);
  auto route = HALFBYTE_MOE_INIT(halfbyte_moe_route_arguments);
  route.tokens = 2;
  route.logits = logits.data();
  route.topk_ids = ids.data();
  route.topk_weights = out.data();
  ASSERT_EQ(halfbyte_moe_route(layer.get(), workspace.get(), &route), HALFBYTE_MOE_OK);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 5, 2, 0}));
  EXPECT_EQ(out, (std::vector<float>{10, 3, 8, 6}));
  EXPECT_EQ(CountersOf(layer).routed_rows, 2);
  EXPECT_EQ(CountersOf(layer).bad_rows, 1);
}

TEST(MoeAbi, RoutesWithinTheBestGroups) {
  CapiWeights weights(WeightFormat::kBf16);
  weights.weights.router_score = HALFBYTE_MOE_IDENTITY;
  weights.weights.router_weights = HALFBYTE_MOE_KEEP_SCORES;
  weights.weights.router_groups = 3;
  weights.weights.router_chosen_groups = 1;
  const LayerHandle layer = weights.Create();
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  const std::vector<float> logits = {9, 0, 5, 6, 7, 1};  // sums of the groups: 9, 11, 8
  std::vector<int32_t> ids(2);
  std::vector<float> out(2);
  auto route = HALFBYTE_MOE_INIT(halfbyte_moe_route_arguments);
  route.tokens = 1;
  route.logits = logits.data();
  route.topk_ids = ids.data();
  route.topk_weights = out.data();
  ASSERT_EQ(halfbyte_moe_route(layer.get(), workspace.get(), &route), HALFBYTE_MOE_OK);
  EXPECT_EQ(ids, (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(out, (std::vector<float>{6, 5}));
}

TEST(MoeAbi, ThreadsShareALayerEachWithItsOwnWorkspace) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  const halfbyte_moe_options options = OptionsFor("w4a4");
  const LayerHandle layer = weights.Create(&options);
  const TestInput input(kCapiShape, 8);
  const std::vector<float> expected = RunCapi(layer, CreateWorkspace(layer), input);
  const int64_t blocks = CountersOf(layer).gate_up.blocks;
  EXPECT_GT(blocks, 0);
  constexpr int kThreads = 3, kRuns = 10;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const WorkspaceHandle workspace = CreateWorkspace(layer);
      for (int run = 0; run < kRuns; ++run) wrong += RunCapi(layer, workspace, input) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(CountersOf(layer).gate_up.blocks, blocks * (1 + kThreads * kRuns));
}

TEST(MoeAbi, ASecondUseOfAWorkspaceAtTheSameTimeIsRefusedR94) {  // R94
  const CapiWeights weights(WeightFormat::kNvfp4);
  const LayerHandle layer = weights.Create();
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  const TestInput input(kCapiShape, 9);
  std::vector<float> out;
  const halfbyte_moe_run_arguments run = RunArguments(input, out);
  workspace->in_use = true;  // as if another thread were inside
  EXPECT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &run), HALFBYTE_MOE_BUSY);
  EXPECT_NE(std::strstr(halfbyte_moe_last_error(), "in use"), nullptr);
  auto route = HALFBYTE_MOE_INIT(halfbyte_moe_route_arguments);
  EXPECT_EQ(halfbyte_moe_route(layer.get(), workspace.get(), &route), HALFBYTE_MOE_BUSY);
  for (const float x : out) EXPECT_TRUE(std::isnan(x));
  workspace->in_use = false;
  EXPECT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &run), HALFBYTE_MOE_OK);
}

TEST(MoeAbi, CallsThatMeetOnAWorkspaceAreBusyOrRightR94) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  const LayerHandle layer = weights.Create();
  const WorkspaceHandle workspace = CreateWorkspace(layer);
  const TestInput input(kCapiShape, 10);
  const std::vector<float> expected = RunCapi(layer, workspace, input);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 20; ++n) {
        std::vector<float> out;
        const halfbyte_moe_run_arguments run = RunArguments(input, out);
        const int code = halfbyte_moe_run(layer.get(), workspace.get(), &run);
        wrong += code == HALFBYTE_MOE_OK ? out != expected : code != HALFBYTE_MOE_BUSY;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(MoeAbi, TwoLayersOnOneWorkspaceEqualPrivateWorkspacesR94) {  // R94
  const CapiWeights first_weights(WeightFormat::kNvfp4, kCapiShape, 1);
  const CapiWeights second_weights(WeightFormat::kNvfp4, kCapiShape, 2);
  const LayerHandle first = first_weights.Create();
  const LayerHandle second = second_weights.Create();
  const WorkspaceHandle shared = CreateWorkspace(first);
  const TestInput input(kCapiShape, 11);
  const std::vector<float> one = RunCapi(first, shared, input);
  const std::vector<float> two = RunCapi(second, shared, input);
  EXPECT_EQ(one, RunCapi(first, CreateWorkspace(first), input));
  EXPECT_EQ(two, RunCapi(second, CreateWorkspace(second), input));
  EXPECT_NE(one, two);
}

TEST(MoeAbi, HeadroomMultipliesAStaticScale) {
  const TestInput input(kCapiShape, 12);
  const auto run = [&](float scale, int32_t headroom, int32_t policy) {
    CapiWeights weights(WeightFormat::kNvfp4);
    weights.weights.gate_up_input_scale = scale;
    weights.weights.down_input_scale = scale;
    halfbyte_moe_options options = OptionsFor("w4a4");
    options.headroom = headroom;
    options.activation_scales = policy;
    const LayerHandle layer = weights.Create(&options);
    return RunCapi(layer, CreateWorkspace(layer), input);
  };
  const std::vector<float> plain =
      run(0.004f, HALFBYTE_MOE_HEADROOM_NONE, HALFBYTE_MOE_SCALES_STATIC);
  EXPECT_EQ(run(0.001f, 2, HALFBYTE_MOE_SCALES_AUTO), plain);
  EXPECT_EQ(run(0.004f / 32, HALFBYTE_MOE_HEADROOM_DEFAULT, HALFBYTE_MOE_SCALES_STATIC), plain);
  const std::vector<float> per_token = run(0.004f, 0, HALFBYTE_MOE_SCALES_PER_TOKEN);
  EXPECT_NE(per_token, plain);
  EXPECT_EQ(per_token, run(0, 0, HALFBYTE_MOE_SCALES_AUTO));
}

TEST(MoeAbi, ScalesOfAFileReplaceThoseOfTheCheckpointR75) {
  const ScalesFile file;
  for (const auto& [headroom, factor] : std::vector<std::pair<int32_t, float>>{
           {HALFBYTE_MOE_HEADROOM_DEFAULT, 32.0f}, {HALFBYTE_MOE_HEADROOM_NONE, 1.0f}, {2, 4.0f}}) {
    halfbyte_moe_options options = OptionsFor("w4a4");
    options.activation_scales_file = file.path.c_str();
    options.headroom = headroom;
    for (const int64_t l : {0, 5}) {
      const LayerHandle layer = OpenTinyLayer(l, &options);
      ASSERT_TRUE(layer);
      const MoeParams& params = layer->experts->params();
      EXPECT_EQ(params.gate_up_input_scale->value(), file.GateUp(l) * factor);
      EXPECT_EQ(params.down_input_scale->value(), file.Down(l) * factor);
      auto info = HALFBYTE_MOE_INIT(halfbyte_moe_info);
      ASSERT_EQ(halfbyte_moe_layer_describe(layer.get(), &info), HALFBYTE_MOE_OK);
      EXPECT_EQ(info.static_scales, 1);
    }
  }
}

TEST(MoeAbi, AProgramOfVersion1IsServedWithoutTheFieldsOfVersion2) {
  halfbyte_moe_options options = OptionsFor("w4a4");
  options.struct_size = 40;
  options.activation_scales_file = "/beyond/its/struct";
  EXPECT_TRUE(OpenTinyLayer(0, &options));
  CapiWeights weights(WeightFormat::kNvfp4);
  weights.weights.struct_size = 112;
  weights.weights.router_groups = -7;
  EXPECT_TRUE(weights.Create());
}

TEST(MoeAbi, AProgramOfVersion2IsServedWithoutTheFieldsOfVersion3) {
  const TestInput input(kCapiShape, 14);
  const CapiWeights weights(WeightFormat::kNvfp4);
  halfbyte_moe_options options = OptionsFor("w4a16");
  options.struct_size = 48;
  options.device = 77;  // beyond its struct
  const LayerHandle layer = weights.Create(&options);
  ASSERT_TRUE(layer);
  std::vector<float> out;
  halfbyte_moe_run_arguments run = RunArguments(input, out);
  run.struct_size = 64;
  EXPECT_EQ(halfbyte_moe_run(layer.get(), CreateWorkspace(layer).get(), &run), HALFBYTE_MOE_OK);
  EXPECT_EQ(out, RunCapi(layer, CreateWorkspace(layer), input));
  halfbyte_moe_info info{.struct_size = 80, .device_bytes = -5};
  ASSERT_EQ(halfbyte_moe_layer_describe(layer.get(), &info), HALFBYTE_MOE_OK);
  EXPECT_EQ(info.hidden, kCapiShape.hidden);
  EXPECT_EQ(info.device_bytes, -5);  // not its program's
}

TEST(MoeAbi, AnOlderOrNewerProgramIsServedAsFarAsItsFieldsAreKnown) {
  struct Newer {
    halfbyte_moe_options known;
    int64_t later;
  };
  const CapiWeights weights(WeightFormat::kNvfp4);
  Newer newer{OptionsFor("w4a16"), 0};
  newer.known.struct_size = sizeof(newer);
  EXPECT_TRUE(weights.Create(&newer.known));
  newer.later = 1;
  halfbyte_moe_layer* layer = nullptr;
  EXPECT_EQ(halfbyte_moe_layer_create(&weights.weights, &newer.known, &layer),
            HALFBYTE_MOE_BAD_INPUT);
  EXPECT_NE(std::strstr(halfbyte_moe_last_error(), "install a newer"), nullptr);

  struct NewerInfo {
    halfbyte_moe_info known;
    int64_t later;
  };
  NewerInfo info{};
  info.known.struct_size = sizeof(info);
  info.later = 77;
  ASSERT_EQ(halfbyte_moe_layer_describe(weights.Create().get(), &info.known), HALFBYTE_MOE_OK);
  EXPECT_EQ(info.later, 0);
  EXPECT_EQ(info.known.hidden, kCapiShape.hidden);
}

TEST(MoeAbi, ErrorTextBelongsToItsThread) {
  EXPECT_NE(halfbyte_moe_workspace_create(nullptr, 1, nullptr), HALFBYTE_MOE_OK);
  const std::string here = halfbyte_moe_last_error();
  std::string elsewhere = "?";
  std::thread([&] { elsewhere = halfbyte_moe_last_error(); }).join();
  EXPECT_EQ(elsewhere, "");
  EXPECT_EQ(here, "out is NULL");
}

TEST(MoeHpp, RunsAndRoutesLikeTheCFunctions) {
  const CapiWeights weights(WeightFormat::kNvfp4);
  moe::Weights given;
  static_cast<halfbyte_moe_weights&>(given) = weights.weights;
  const moe::Layer layer = moe::Layer::Create(given);
  moe::Workspace workspace(layer, 8);
  const TestInput input(kCapiShape, 13);
  std::vector<float> out(input.hidden.size());
  layer.Run(workspace,
            {input.shape.tokens, input.shape.top_k, input.ids.data(), input.weights.data()},
            input.hidden.data(), out.data());
  const LayerHandle same = weights.Create();
  EXPECT_EQ(out, RunCapi(same, CreateWorkspace(same), input));
  const std::vector<float> logits(6, 1.0f);
  std::vector<int32_t> ids(2);
  std::vector<float> chosen(2);
  layer.Route(workspace, 1, logits.data(), nullptr, ids.data(), chosen.data());
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(layer.Counters().routed_rows, 1);
  EXPECT_GT(layer.WorkspaceBytes(8), 0u);
}

TEST(MoeHpp, ThrowsWhatTheCFunctionSays) {
  try {
    moe::Layer::Open("/nowhere", 0);
    FAIL() << "opened";
  } catch (const moe::Error& error) {
    EXPECT_EQ(error.code(), HALFBYTE_MOE_BAD_INPUT);
    EXPECT_NE(std::strstr(error.what(), "/nowhere"), nullptr);
  }
}

}  // namespace
}  // namespace halfbyte
