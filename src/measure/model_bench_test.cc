#include "measure/model_bench.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/memory_limited_child.h"
#include "measure/model_shape.h"

namespace halfbyte {
namespace {

const std::string kTiny = std::string(HALFBYTE_SOURCE_DIR) + "/models/tiny-v4-nvfp4/config.json";

std::string KindsOf(const ModelConfig& config) {
  std::string kinds;
  for (const LayerConfig& layer : config.layers) {
    kinds += layer.attention == AttentionKind::kWindow ? 'w'
             : layer.attention == AttentionKind::kC4   ? '4'
                                                       : '8';
    if (layer.hash_routed) kinds += '#';
  }
  return kinds;
}

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(ModelShape, KnowsTheReleasedModels) {
  const ModelConfig flash = *ReadModelShape("v4-flash"), pro = *ReadModelShape("v4-pro");
  EXPECT_EQ(KindsOf(flash), "w#w#4#8" + Repeated("48", 19) + "4");
  EXPECT_EQ(KindsOf(pro), "8#8#4#8" + Repeated("48", 28) + "4");
  EXPECT_EQ(flash.routed_experts, 256);
  EXPECT_EQ(pro.routed_experts, 384);
  EXPECT_EQ(pro.attention_heads * pro.head_dim, 65536);
  EXPECT_EQ(flash.max_position_embeddings, 1 << 20);
  EXPECT_EQ(ReadModelShape(kTiny)->layer_count(), 6);
  EXPECT_NE(ReadModelShape("v5").error().message.find("v5"), std::string::npos);
}

TEST(ModelShape, PartsHaveTheModelsProportionsOfKinds) {
  const auto part = [](const char* shape, int64_t layers) {
    return KindsOf(*TakeLayers(*ReadModelShape(shape), layers));
  };
  EXPECT_EQ(part("v4-flash", 1), "4");
  EXPECT_EQ(part("v4-flash", 2), "48");
  EXPECT_EQ(part("v4-pro", 2), "48");
  EXPECT_EQ(part("v4-flash", 4), "4848");
  EXPECT_EQ(part("v4-flash", 22), "ww48484848484848484848");
  EXPECT_EQ(part("v4-flash", 43), KindsOf(*ReadModelShape("v4-flash")));
  ModelConfig windows = *ReadModelShape(kTiny);
  windows.layers.assign(6, {});
  EXPECT_EQ(KindsOf(*TakeLayers(windows, 2)), "ww");
  windows.layers.back() = {AttentionKind::kC4, 4};
  EXPECT_EQ(KindsOf(*TakeLayers(windows, 2)), "w4");
  EXPECT_EQ(TakeLayers(*ReadModelShape("v4-flash"), 44).error().message,
            "44 layers of a model that has 43");
  EXPECT_EQ(TakeExperts(*ReadModelShape("v4-flash"), 64)->routed_experts, 64);
  for (const int64_t experts : {5, 257}) {
    EXPECT_NE(TakeExperts(*ReadModelShape("v4-flash"), experts)
                  .error()
                  .message.find("has 256 and chooses 6"),
              std::string::npos);
  }
}

ModelBenchOptions TinyBench() {
  return {.shape = "tiny",
          .config = *TakeLayers(*ReadModelShape(kTiny), 2),
          .batches = {1, 3},
          .contexts = {40, 1200},
          .prompts = {100},
          .chunk = 64,
          .seconds_per_row = 0.001};
}

TEST(ModelBench, MeasuresARowForEachBatchContextAndPrompt) {
  ThreadPool pool(2);
  const auto report = BenchModel(Context(pool), TinyBench());
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->rows.size(), 5u);
  const ModelBenchRow &one = report->rows[0], &far = report->rows[1], &prompt = report->rows[4];
  EXPECT_EQ(one.sequences, 1);
  EXPECT_EQ(report->rows[3].sequences, 3);
  EXPECT_EQ(report->rows[3].context, 1200);
  for (const ModelBenchRow& row : report->rows) {
    EXPECT_GE(row.steps, 1);
    EXPECT_GT(row.seconds, 0);
    EXPECT_LE(row.shortest_seconds, row.seconds);
    EXPECT_LT(row.layer_seconds, row.seconds);
  }
  // Far away entries are selected: the indexer's weights are read as well, and more of the cache.
  EXPECT_EQ(far.work.weight_bytes - one.work.weight_bytes, 8 * 64 * 128 + 4 + 8 * 256 * 2);
  EXPECT_GT(far.work.cache_bytes, 4 * one.work.cache_bytes);
  const auto select = static_cast<size_t>(OperationKind::kSelect);
  EXPECT_EQ(one.operations[select].calls, 0);
  EXPECT_EQ(far.operations[select].calls, 1);
  EXPECT_GT(far.read_share, 0);
  EXPECT_GT(far.layer_read_share, 0);
  // 100 tokens through two layers, one of them through the head.
  EXPECT_EQ(prompt.context, 0);
  const auto head = static_cast<size_t>(OperationKind::kLogits);
  EXPECT_EQ(prompt.operations[head].work.all_product_flops(), 2 * 4096 * 256);
  const auto router = static_cast<size_t>(OperationKind::kRouter);
  // The last layer takes nothing but the last token through its experts.
  EXPECT_EQ(prompt.operations[router].work.all_product_flops(), (100 + 1) * 2 * 32 * 256);
  EXPECT_GT(prompt.gemm_seconds, 0);
}

TEST(ModelBench, JsonHoldsWhatOthersReadFromIt) {
  ModelBenchReport report{.options = TinyBench(), .threads = 2};
  ModelBenchRow step{.sequences = 8, .context = 1024, .new_tokens = 8, .steps = 3};
  step.seconds = 0.5;
  step.work.weight_bytes = 2'000'000'000;
  step.work.cache_bytes = 500'000'000;
  step.read_share = 0.75;
  auto& attend = step.operations[static_cast<size_t>(OperationKind::kAttend)];
  attend.calls = 2;
  attend.seconds = 0.001;
  ModelBenchRow prompt{.sequences = 1, .new_tokens = 512, .steps = 1};
  prompt.seconds = 2;
  prompt.gemm_seconds = 1;
  prompt.work.product_flops[static_cast<size_t>(WeightFormat::kFp8)] = 400'000'000'000;
  report.rows = {step, prompt};
  report.read_bytes = 50e9;
  report.gemm_flops[static_cast<size_t>(WeightFormat::kFp8)] = 250e9;
  const Json json = ModelBenchJson(report);
  EXPECT_EQ(json["layers"]["c4"], 1);
  EXPECT_EQ(json["limits"]["read_gb_per_s"], 50);
  EXPECT_EQ(json["limits"]["gemm_gflops"]["FP8"], 250);
  const Json& row = json["generation"][0];
  EXPECT_EQ(row["sequences"], 8);
  EXPECT_EQ(row["context"], 1024);
  EXPECT_EQ(row["tokens_per_s"], 16);
  EXPECT_EQ(row["gb_per_s"], 5);
  EXPECT_EQ(row["read_share"], 0.75);
  EXPECT_EQ(row["operations"]["attend"]["us"], 1000);
  EXPECT_EQ(json["prompts"][0]["tokens"], 512);
  EXPECT_EQ(json["prompts"][0]["gflops"], 200);
  EXPECT_EQ(json["prompts"][0]["gemm_share"], 0.5);
}

TEST(ModelBench, RefusesWhatDoesNotFitAndNamesTheNumbers) {
  ThreadPool pool(1);
  ModelBenchOptions options = TinyBench();
  const int64_t bytes = PlanModelBench(options, pool)->resident_bytes();
  const auto there_are = [](int64_t available) {
    return AvailableMemory{.resident = MemoryBound{available, "here"}, .addresses = {}};
  };
  EXPECT_TRUE(CheckModelBench(options, pool, there_are(bytes)));
  const auto status = CheckModelBench(options, pool, there_are(bytes - 1));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kMemory);
  EXPECT_NE(status.error().message.find("(packed weights "), std::string::npos);
  EXPECT_NE(status.error().message.find("--experts"), std::string::npos);
  options.contexts = {4096};
  EXPECT_NE(
      CheckModelBench(options, pool, there_are(bytes)).error().message.find("context of 4096"),
      std::string::npos);
  options.contexts = {};
  options.prompts = {5000};
  EXPECT_NE(CheckModelBench(options, pool, there_are(bytes)).error().message.find("--prefill 5000"),
            std::string::npos);
}

#if HALFBYTE_CAN_LIMIT_MEMORY
TEST(ModelBench, TakesTheMemoryThatItPlanned) {
  ModelBenchOptions options = TinyBench();
  options.config.routed_experts = 128;
  options.config.expert_size = 512;  // 28 MB of experts a layer
  options.seconds_per_row = 0;
  ThreadPool alone(1);
  const int64_t bytes = PlanModelBench(options, alone)->resident_bytes();
  EXPECT_LT(bytes, int64_t{220} << 20);
  test::ExpectWithin({.private_bytes = bytes, .resident_bytes = bytes + (int64_t{12} << 20)},
                     [&]() -> std::string {
                       ThreadPool pool(1);
                       const auto report = BenchModel(Context(pool), options);
                       return report ? "" : report.error().message;
                     });
}
#endif

}  // namespace
}  // namespace halfbyte
