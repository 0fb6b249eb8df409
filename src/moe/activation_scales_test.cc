#include "moe/activation_scales.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "moe/moe_test_layer.h"

namespace halfbyte {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr TestShape kRecordedShape{
    .hidden = 416, .intermediate = 352, .experts = 7, .tokens = 5, .top_k = 3};
constexpr MoeModelShape kModel{.layers = 2, .experts = 7, .hidden = 416, .intermediate = 352};

// What a recorder sees while the layer runs the input, in pieces of 3 tokens.
LayerMeasurement Record(const TestLayer& layer, const MoeParams& params, const TestInput& input,
                        const StageScales& checkpoint = {},
                        const ExpertPlacement* placement = nullptr) {
  MoeLayer moe = layer.Layer(params, placement);
  ActivationRecorder recorder(moe, checkpoint);
  moe.set_observer(&recorder);
  ThreadPool pool(1);
  MoeLimits limits = layer.Limits(3);
  MoeWorkspace workspace(limits);
  std::vector<float> out(input.hidden.size());
  moe.Run(Context(pool), input.Hidden(), input.Routing(),
          {out.data(), input.shape.tokens, input.shape.hidden}, workspace);
  return recorder.measurement();
}

LayerMeasurement Record(const TestLayer& layer, const TestInput& input) {
  return Record(layer, layer.Params(Arithmetic::kW4a16), input);
}

float Amax(const std::vector<float>& x) {
  float amax = 0;
  for (const float value : x) amax = std::max(amax, std::abs(value));
  return amax;
}

TEST(ActivationRecorder, SeesWhatFlowsIntoBothStages) {
  const TestLayer layer(kRecordedShape, WeightFormat::kNvfp4, 1);
  const TestInput input(kRecordedShape, 2);
  const LayerMeasurement m = Record(layer, input);
  EXPECT_EQ(m.gate_up.rows, 5);
  EXPECT_EQ(m.gate_up.blocks, 5 * 416 / 16);
  EXPECT_EQ(m.gate_up.amax, Amax(input.hidden));
  EXPECT_EQ(m.down.rows, 15);
  EXPECT_EQ(m.down.blocks, 15 * 352 / 16);
  EXPECT_GT(m.down.amax, 0);
  EXPECT_EQ(m.rows_beyond_clamp, 0);
  int64_t rows = 0, binades = 0;
  for (const int64_t count : m.rows_of_expert) rows += count;
  for (const int64_t count : m.gate_up.binades) binades += count;
  EXPECT_EQ(rows, 15);
  EXPECT_EQ(binades, m.gate_up.blocks);
  // Under its own scale a stage clips nothing, and the result stays near: the layer agrees.
  MoeParams params = layer.Params(Arithmetic::kW4a4);
  params.gate_up_input_scale = *m.gate_up.Scale("gate_up");
  params.down_input_scale = *m.down.Scale("down");
  MoeCounters counters;
  layer.Run(params, input, {.counters = &counters});
  EXPECT_EQ(counters.gate_up.clipped, 0);
  EXPECT_EQ(counters.gate_up.amax, m.gate_up.amax);
}

TEST(ActivationRecorder, CountsExpertsWithoutATokenAndLooksAtTokensOfItsExpertsOnly) {  // R74
  const TestLayer layer(kRecordedShape, WeightFormat::kNvfp4, 3);
  TestInput input(kRecordedShape, 4);
  for (size_t s = 0; s < input.ids.size(); ++s) input.ids[s] = s % 3 == 0 ? 4 : s % 3 == 1 ? 6 : -1;
  std::fill_n(input.ids.begin() + 6, 3, -1);  // token 2: nowhere; it holds the largest value
  input.hidden[2 * 416] = 1000;
  const LayerMeasurement m = Record(layer, input);
  EXPECT_EQ(m.rows_of_expert, (std::vector<int64_t>{0, 0, 0, 0, 4, 0, 4}));
  EXPECT_EQ(m.experts_without_rows(), 5);
  EXPECT_EQ(m.gate_up.rows, 4);
  EXPECT_LT(m.gate_up.amax, 1000);
}

TEST(ActivationRecorder, GlobalIdsArriveAtEachRanksOwnExperts) {  // R53
  const TestShape shape{
      .hidden = 32, .intermediate = 16, .experts = 384, .tokens = 512, .top_k = 3};
  const TestLayer layer(shape, WeightFormat::kNvfp4, 5);
  const TestInput input(shape, 6);
  const LayerMeasurement whole = Record(layer, input);
  LayerMeasurement sum;
  sum.rows_of_expert.resize(384);
  for (int32_t rank = 0; rank < 8; ++rank) {
    const ExpertPlacement placement = *ExpertPlacement::Balanced(384, 8, rank);
    const LayerMeasurement part =
        Record(layer, layer.Params(Arithmetic::kW4a16), input, {}, &placement);
    EXPECT_TRUE(part.down.Scale("down").has_value()) << rank;
    for (int32_t e = 0; e < 384; ++e) {
      if (e / 48 != rank) {
        EXPECT_EQ(part.rows_of_expert[static_cast<size_t>(e)], 0);
      }
    }
    sum += part;
  }
  EXPECT_EQ(sum.gate_up.amax, whole.gate_up.amax);
  EXPECT_EQ(sum.gate_up.rows, whole.gate_up.rows);  // each token once
  EXPECT_EQ(sum.gate_up.binades, whole.gate_up.binades);
  EXPECT_EQ(sum.down.amax, whole.down.amax);
  EXPECT_EQ(sum.down.binades, whole.down.binades);
  EXPECT_EQ(sum.rows_of_expert, whole.rows_of_expert);
}

TEST(ActivationRecorder, EachLayerHasScalesOfItsOwn) {  // R73
  const TestLayer first(kRecordedShape, WeightFormat::kNvfp4, 7, 1),
      second(kRecordedShape, WeightFormat::kNvfp4, 8);
  const TestInput input(kRecordedShape, 9);
  const GlobalScale one = *Record(first, input).down.Scale("down");
  const GlobalScale two = *Record(second, input).down.Scale("down");
  EXPECT_GT(two.value(), 2 * one.value());
}

TEST(ActivationRecorder, JudgesTheCheckpointsScaleAsTheQuantizerDoes) {  // R70, R81
  const TestLayer layer(kRecordedShape, WeightFormat::kNvfp4, 10);
  const TestInput input(kRecordedShape, 11);
  MoeParams params = layer.Params(Arithmetic::kW4a4);
  params.gate_up_input_scale = GlobalScale(Amax(input.hidden) / 2688 / 10.6f);
  MoeCounters counters;
  layer.Run(params, input, {.counters = &counters});
  const LayerMeasurement m = Record(layer, layer.Params(Arithmetic::kW4a16), input,
                                    {.gate_up = params.gate_up_input_scale, .down = {}});
  EXPECT_EQ(m.gate_up.under_checkpoint.blocks, counters.gate_up.blocks);
  EXPECT_EQ(m.gate_up.under_checkpoint.clipped, counters.gate_up.clipped);
  EXPECT_EQ(m.gate_up.under_checkpoint.at_max, counters.gate_up.at_max);
  EXPECT_EQ(m.gate_up.under_checkpoint.flushed, counters.gate_up.flushed);
  EXPECT_EQ(m.down.under_checkpoint.blocks, 0);
  ActivationMeasurement all{.shape = kModel, .layers = {m}};
  all.shape.layers = 1;
  const auto findings = JudgeMeasurement(all);
  ASSERT_FALSE(findings.empty());
  EXPECT_TRUE(findings[0].failed);
  EXPECT_NE(findings[0].text.find("layer 0, gate_up: "), std::string::npos);
}

TEST(JudgeMeasurement, OneInAThousandWarnsAndOneInAHundredFails) {
  for (const auto& [clipped, findings, failed] :
       {std::tuple{0, 0, false}, {10, 0, false}, {11, 1, false}, {100, 1, false}, {101, 1, true}}) {
    ActivationMeasurement measurement{.layers = {LayerMeasurement{}}};
    measurement.layers[0].down.under_checkpoint = {.blocks = 10000, .clipped = clipped};
    const auto found = JudgeMeasurement(measurement);
    ASSERT_EQ(std::ssize(found), findings) << clipped;
    if (findings > 0) {
      EXPECT_EQ(found[0].failed, failed) << clipped;
    }
  }
}

TEST(StageMeasurement, PercentilesAreUpperEdgesOfBinades) {
  StageMeasurement stage;
  std::vector<float> row(16 * 100, 0.0f);
  for (size_t b = 0; b < 100; ++b) row[16 * b + 3] = b < 50 ? 1.5f : b < 99 ? -3.0f : 100.0f;
  stage.AddRow(row.data(), std::ssize(row), std::nullopt);
  EXPECT_EQ(stage.BlockAmaxPercentile(0.5), 2);
  EXPECT_EQ(stage.BlockAmaxPercentile(0.51), 4);
  EXPECT_EQ(stage.BlockAmaxPercentile(0.99), 4);
  EXPECT_EQ(stage.BlockAmaxPercentile(0.999), 128);
  EXPECT_EQ(StageMeasurement().BlockAmaxPercentile(0.5), 0);
}

TEST(StageMeasurement, RefusesSamplesThatAreEmptyZeroOrNotFinite) {  // R77
  const auto message = [](const StageMeasurement& stage) {
    const auto scale = stage.Scale("layer 3, down");
    return scale ? "accepted" : scale.error().message;
  };
  EXPECT_NE(message({}).find("layer 3, down: no token"), std::string::npos);
  StageMeasurement stage;
  std::vector<float> row(32, 0.0f);
  stage.AddRow(row.data(), 32, std::nullopt);
  EXPECT_NE(message(stage).find("zero"), std::string::npos);
  row[3] = 1;
  stage.AddRow(row.data(), 32, std::nullopt);
  EXPECT_EQ(message(stage), "accepted");
  for (const float bad : {NAN, kInf, -kInf}) {
    StageMeasurement dirty = stage;
    row[20] = bad;
    dirty.AddRow(row.data(), 32, std::nullopt);
    EXPECT_NE(message(dirty).find("1 values are NaN or infinite"), std::string::npos);
    EXPECT_EQ(dirty.amax, 1);
  }
}

TEST(ActivationRecorder, AMissingClampIsReported) {  // R78
  const TestLayer layer(kRecordedShape, WeightFormat::kNvfp4, 12, 9);
  const TestInput input(kRecordedShape, 13);
  MoeParams params = layer.Params(Arithmetic::kW4a16);
  EXPECT_EQ(Record(layer, params, input).rows_beyond_clamp, 0);
  // What an unclamped layer computes, shown to the recorder of one that should clamp.
  const MoeLayer clamped = layer.Layer(params);
  ActivationRecorder recorder(clamped, {});
  params.swiglu.limit = kInf;
  MoeLayer unclamped = layer.Layer(params);
  unclamped.set_observer(&recorder);
  ThreadPool pool(1);
  MoeWorkspace workspace(layer.Limits(8));
  std::vector<float> out(input.hidden.size());
  unclamped.Run(Context(pool), input.Hidden(), input.Routing(), {out.data(), 5, 416}, workspace);
  EXPECT_GT(recorder.measurement().rows_beyond_clamp, 0);
  ActivationMeasurement all{.checkpoint = {{}}, .layers = {recorder.measurement()}};
  const auto json = all.ToJson();
  ASSERT_FALSE(json.has_value());
  EXPECT_NE(json.error().message.find("layer 0, down: "), std::string::npos);
  EXPECT_NE(json.error().message.find("clamp"), std::string::npos);
}

class ActivationScalesFile : public testing::Test {
 protected:
  void SetUp() override {
    const TestLayer first(kRecordedShape, WeightFormat::kNvfp4, 14),
        second(kRecordedShape, WeightFormat::kNvfp4, 15);
    const TestInput input(kRecordedShape, 16);
    const StageScales checkpoint{GlobalScale(0.01f), GlobalScale(0.3f)};
    measurement_ = {.shape = kModel, .tokens = 5, .context = 5, .checkpoint = {checkpoint, {}}};
    measurement_.layers.push_back(
        Record(first, first.Params(Arithmetic::kW4a16), input, checkpoint));
    measurement_.layers.push_back(Record(second, input));
    json_ = *measurement_.ToJson();
    path_ = std::filesystem::path(testing::TempDir()) / "activation_scales_test.json";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Result<ActivationScales> Read(const Json& json) {
    EXPECT_TRUE(WriteFileAtomically(path_, json.dump()).has_value());
    return ActivationScales::Read(path_);
  }
  std::string MessageOf(const Json& json) {
    const auto read = Read(json);
    return read ? "accepted" : read.error().message;
  }

  ActivationMeasurement measurement_;
  Json json_;
  std::filesystem::path path_;
};

TEST_F(ActivationScalesFile, ScalesComeBackBitForBit) {  // R77
  const auto read = Read(json_);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->shape, kModel);
  ASSERT_EQ(read->layers.size(), 2u);
  for (size_t l = 0; l < 2; ++l) {
    EXPECT_EQ(read->layers[l].gate_up, *measurement_.layers[l].gate_up.Scale("gate_up"));
    EXPECT_EQ(read->layers[l].down, *measurement_.layers[l].down.Scale("down"));
  }
  EXPECT_EQ(json_["layers"][0]["gate_up"]["checkpoint"]["headroom"], 5);
  EXPECT_EQ(json_["layers"][0]["gate_up"]["checkpoint"]["input_scale"], 0.01f / 32);
  EXPECT_TRUE(json_["layers"][1]["gate_up"]["checkpoint"].is_null());
}

TEST_F(ActivationScalesFile, RefusesWhatIsNoScaleByItsPlace) {  // R77, R80
  // The reciprocal of a scale is what other conventions store.
  for (const Json& bad : std::vector<Json>{0, -0.01, 1e-60, 1e60, 2688.0 / 5, "0.1", Json()}) {
    Json json = json_;
    json["layers"][1]["down"]["scale"] = bad;
    const std::string message = MessageOf(json);
    EXPECT_NE(message.find(path_.string()), std::string::npos) << message;
    EXPECT_NE(message.find("layers[1].down.scale"), std::string::npos) << message;
  }
  for (const char* field : {"activation_scales", "routing_weight", "model", "layers"}) {
    Json json = json_;
    json.erase(field);
    EXPECT_NE(MessageOf(json), "accepted") << field;
  }
  Json json = json_;
  json["layers"].erase(1);
  EXPECT_NE(MessageOf(json).find("layers"), std::string::npos);
  json = json_;
  json["routing_weight"] = "after_down";
  EXPECT_NE(MessageOf(json).find("before_down"), std::string::npos);
}

TEST_F(ActivationScalesFile, ScalesOfAnotherModelAreRefused) {
  const ActivationScalePolicy policy{
      .source = ActivationScalePolicy::Source::kMeasured,
      .measured = std::make_shared<const ActivationScales>(*Read(json_))};
  EXPECT_TRUE(policy.Resolve(1, kModel, {}).has_value());
  MoeModelShape other = kModel;
  other.intermediate = 416;
  const auto scales = policy.Resolve(1, other, {});
  ASSERT_FALSE(scales.has_value());
  EXPECT_NE(scales.error().message.find("another model"), std::string::npos);
}

TEST_F(ActivationScalesFile, MeasuredScalesGetTheHeadroomAndNeedNoneOfTheCheckpoint) {  // R75
  ActivationScalePolicy policy{.source = ActivationScalePolicy::Source::kMeasured,
                               .headroom = 0,
                               .measured = std::make_shared<const ActivationScales>(*Read(json_))};
  const float measured = policy.measured->layers[1].down.value();
  for (int h = 0; h <= 6; ++h) {
    policy.headroom = h;
    const auto scales = policy.Resolve(1, kModel, {.gate_up = {}, .down = {}, .missing = "all"});
    ASSERT_TRUE(scales.has_value());
    EXPECT_EQ(scales->down->value(), std::ldexp(measured, h));
  }
  policy.headroom = 7;
  EXPECT_FALSE(policy.Resolve(1, kModel, {}).has_value());
}

TEST(ActivationScalePolicy, AMissingInputScaleIsAnErrorOnlyIfTheCheckpointsAreAskedFor) {  // R79
  using Source = ActivationScalePolicy::Source;
  const ExpertInputScales complete{
      .gate_up = {0.001f, 0.004f}, .down = {0.02f, 0.01f}, .missing = ""};
  const ExpertInputScales partial{.gate_up = {0.001f}, .down = {0.02f}, .missing = "expert 5, up"};
  const auto scales =
      ActivationScalePolicy{.source = Source::kCheckpoint}.Resolve(3, kModel, complete);
  EXPECT_EQ(scales->gate_up->value(), 32 * 0.004f);  // the largest of all experts
  EXPECT_EQ(scales->down->value(), 32 * 0.02f);
  const auto refused =
      ActivationScalePolicy{.source = Source::kCheckpoint}.Resolve(3, kModel, partial);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("layer 3, expert 5, up"), std::string::npos);
  EXPECT_NE(refused.error().message.find("calibrate"), std::string::npos);
  EXPECT_EQ(ActivationScalePolicy{}.Resolve(3, kModel, complete)->gate_up, scales->gate_up);
  EXPECT_EQ(ActivationScalePolicy{}.Resolve(3, kModel, partial)->gate_up, std::nullopt);
  EXPECT_EQ(ActivationScalePolicy{.source = Source::kPerToken}.Resolve(3, kModel, complete)->down,
            std::nullopt);
}

}  // namespace
}  // namespace halfbyte
