#include "capi/capi_test_layer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "base/json.h"

namespace halfbyte {
namespace {

halfbyte_moe_matrix ToCapi(const WeightMatrix& w) {
  const auto data_bytes = static_cast<uint64_t>(w.rows * w.row_bytes());
  const int64_t scales = w.scales == nullptr ? 0 : w.scale_rows() * w.scale_columns();
  halfbyte_moe_matrix matrix{
      .data = w.data,
      .data_bytes = data_bytes,
      .scales = w.scales,
      .scale_bytes = static_cast<uint64_t>(scales * DTypeSize(w.scale_dtype)),
      .global_scale = w.global_scale.value()};
  switch (w.format) {
    case WeightFormat::kNvfp4:
      matrix.format = HALFBYTE_MOE_NVFP4;
      break;
    case WeightFormat::kMxfp4:
      matrix.format = HALFBYTE_MOE_MXFP4;
      break;
    case WeightFormat::kBf16:
      matrix.format = HALFBYTE_MOE_BF16;
      break;
    case WeightFormat::kFp8:
      matrix.format = HALFBYTE_MOE_FP8;
      matrix.scale_type = HALFBYTE_MOE_SCALE_E8M0;
      matrix.block_rows = static_cast<int32_t>(w.scale_block_rows);
      matrix.block_columns = static_cast<int32_t>(w.scale_block_columns);
      break;
    default:
      ADD_FAILURE() << "no such format in the C interface";
  }
  return matrix;
}

}  // namespace

CapiWeights::CapiWeights(WeightFormat format, const TestShape& shape, uint32_t seed)
    : source(shape, format, seed) {
  for (const ExpertWeights& expert : source.experts) {
    gate.push_back(ToCapi(expert.gate));
    up.push_back(ToCapi(expert.up));
    down.push_back(ToCapi(expert.down));
  }
  weights.experts = shape.experts;
  weights.hidden = shape.hidden;
  weights.intermediate = shape.intermediate;
  weights.top_k = shape.top_k;
  weights.matrices = gate.size();
  weights.gate = gate.data();
  weights.up = up.data();
  weights.down = down.data();
  weights.swiglu_limit = 10;
}

LayerHandle CapiWeights::Create(const halfbyte_moe_options* options) const {
  halfbyte_moe_layer* layer = nullptr;
  EXPECT_EQ(halfbyte_moe_layer_create(&weights, options, &layer), HALFBYTE_MOE_OK)
      << halfbyte_moe_last_error();
  return LayerHandle(layer);
}

LayerHandle OpenTinyLayer(int64_t layer, const halfbyte_moe_options* options) {
  halfbyte_moe_layer* handle = nullptr;
  const int code =
      halfbyte_moe_layer_open(HALFBYTE_SOURCE_DIR "/models/tiny-v4-nvfp4", layer, options, &handle);
  EXPECT_EQ(code, HALFBYTE_MOE_OK) << halfbyte_moe_last_error();
  return LayerHandle(handle);
}

WorkspaceHandle CreateWorkspace(const LayerHandle& layer, int64_t max_tokens) {
  halfbyte_moe_workspace* workspace = nullptr;
  EXPECT_EQ(halfbyte_moe_workspace_create(layer.get(), max_tokens, &workspace), HALFBYTE_MOE_OK)
      << halfbyte_moe_last_error();
  return WorkspaceHandle(workspace);
}

halfbyte_moe_options OptionsFor(const char* arithmetic, int32_t threads) {
  auto options = HALFBYTE_MOE_INIT(halfbyte_moe_options);
  options.arithmetic = arithmetic;
  options.threads = threads;
  return options;
}

ScalesFile::ScalesFile(int64_t experts)
    : path(fmt::format("{}halfbyte_scales_{}.json", testing::TempDir(), getpid())) {
  Json layers = Json::array();
  for (int64_t l = 0; l < 6; ++l) {
    layers.push_back({{"gate_up", {{"scale", GateUp(l)}}}, {"down", {{"scale", Down(l)}}}});
  }
  const Json file = {
      {"activation_scales", 1},
      {"routing_weight", "before_down"},
      {"model", {{"layers", 6}, {"experts", experts}, {"hidden", 256}, {"intermediate", 128}}},
      {"layers", layers}};
  const Status written = WriteFileAtomically(path, file.dump());
  EXPECT_TRUE(written.has_value());
}

ScalesFile::~ScalesFile() { std::filesystem::remove(path); }

halfbyte_moe_run_arguments RunArguments(const TestInput& input, std::vector<float>& out) {
  out.assign(input.hidden.size(), std::numeric_limits<float>::quiet_NaN());
  auto run = HALFBYTE_MOE_INIT(halfbyte_moe_run_arguments);
  run.tokens = input.shape.tokens;
  run.top_k = input.shape.top_k;
  run.hidden = input.hidden.data();
  run.topk_ids = input.ids.data();
  run.topk_weights = input.weights.data();
  run.out = out.data();
  run.hidden_type = HALFBYTE_MOE_F32_ROWS;
  run.out_type = HALFBYTE_MOE_F32_ROWS;
  return run;
}

std::vector<float> RunCapi(const LayerHandle& layer, const WorkspaceHandle& workspace,
                           const TestInput& input) {
  std::vector<float> out;
  const halfbyte_moe_run_arguments run = RunArguments(input, out);
  EXPECT_EQ(halfbyte_moe_run(layer.get(), workspace.get(), &run), HALFBYTE_MOE_OK)
      << halfbyte_moe_last_error();
  return out;
}

}  // namespace halfbyte
