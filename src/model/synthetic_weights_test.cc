#include "model/synthetic_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "checkpoint/inventory.h"
#include "model/metered_ops.h"
#include "model/synthetic_cache.h"
#include "model/transformer.h"

namespace halfbyte {
namespace {

ModelConfig SmallModel() {
  return *ReadModelConfig(std::filesystem::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4");
}

std::vector<std::byte> BytesOf(const SyntheticWeights& weights, const ModuleKey& key) {
  const StoredWeight stored = *weights.Stored(key);
  const WeightMatrix& w = stored.matrix;
  std::vector<std::byte> bytes(w.data, w.data + w.rows * w.row_bytes());
  bytes.insert(bytes.end(), stored.scale_bytes().begin(), stored.scale_bytes().end());
  stored.DropPages();
  return bytes;
}

TEST(SyntheticWeights, AreTheSameWhoeverMakesThemInWhateverOrder) {
  ThreadPool one(1), two(2);
  const auto first = *SyntheticWeights::Create(SmallModel(), one);
  const auto second = *SyntheticWeights::Create(SmallModel(), two);
  const auto other = *SyntheticWeights::Create(SmallModel(), two, /*seed=*/1);
  const ModuleKey expert = ModuleKey::Layer(3, Module::kExpertDown, 7);
  const ModuleKey dense = ModuleKey::Layer(2, Module::kOB);
  const auto expert_bytes = BytesOf(*first, expert), dense_bytes = BytesOf(*first, dense);
  EXPECT_EQ(BytesOf(*second, dense), dense_bytes);
  EXPECT_EQ(BytesOf(*second, expert), expert_bytes);
  EXPECT_NE(BytesOf(*other, expert), expert_bytes);
  EXPECT_NE(BytesOf(*first, ModuleKey::Layer(3, Module::kExpertDown, 8)), expert_bytes);
  EXPECT_NE(BytesOf(*first, ModuleKey::Layer(2, Module::kExpertDown, 7)), expert_bytes);
}

TEST(SyntheticWeights, HaveTheFormatsOfACheckpointAndTheSizeOfTrainedWeights) {
  ThreadPool pool(1);
  const auto weights = *SyntheticWeights::Create(SmallModel(), pool);
  int64_t matrices = 0, bytes = 0;
  for (const ModuleKey& key : RequiredModules(weights->config())) {
    if (!IsMatrix(key.module)) continue;
    const auto stored = weights->Matrix(key);
    ASSERT_TRUE(stored) << stored.error().message;
    EXPECT_TRUE(stored->CheckScales());
    const WeightMatrix& w = stored->matrix;
    const bool fp8 = IsSharedExpert(key.module) || key.module == Module::kQA ||
                     key.module == Module::kQB || key.module == Module::kKv ||
                     key.module == Module::kOA || key.module == Module::kOB ||
                     key.module == Module::kIndexerQB;
    EXPECT_EQ(stored->format, IsRoutedExpert(key.module) ? StoredFormat::kModelOptNvfp4
                              : fp8                      ? StoredFormat::kFp8Block
                                                         : StoredFormat::kBf16)
        << Describe(key);
    EXPECT_EQ(stored->input_scale.has_value(), IsRoutedExpert(key.module));
    double squares = 0;
    std::vector<float> row(static_cast<size_t>(w.columns));
    for (int64_t r = 0; r < std::min<int64_t>(w.rows, 64); ++r) {
      DequantizeRow(w, r, row.data());
      for (const float x : row) squares += double{x} * double{x};
    }
    squares /= static_cast<double>(std::min<int64_t>(w.rows, 64) * w.columns);
    // FP8 of so few rows may have one scale, the lower or the upper of two.
    const double wanted = key.module == Module::kEmbed ? 1 : 1 / static_cast<double>(w.columns);
    EXPECT_GT(squares, wanted / 4) << Describe(key);
    EXPECT_LT(squares, 4 * wanted) << Describe(key);
    bytes += w.bytes();
    ++matrices;
    stored->DropPages();
  }
  EXPECT_GT(matrices, 600);
  int64_t planned = 0;
  for (const int64_t layer : weights->LayerBytes()) planned += layer;
  EXPECT_GT(planned, bytes);
  EXPECT_LT(planned, bytes + bytes / 10);
  // Hash routing: experts in range, none twice for a token.
  const auto table = *weights->RouterTable(ModuleKey::Layer(0, Module::kRouterTable));
  ASSERT_EQ(std::ssize(table), 4096 * 4);
  for (size_t t = 0; t < 4096; ++t) {
    const std::set<int32_t> experts(&table[4 * t], &table[4 * t] + 4);
    EXPECT_EQ(experts.size(), 4u);
    EXPECT_TRUE(*experts.begin() >= 0 && *experts.rbegin() < 32);
  }
}

TEST(SyntheticWeights, RefuseSizesThatTheirFormatsCannotHave) {
  ThreadPool pool(1);
  ModelConfig config = SmallModel();
  config.expert_size = 120;
  const auto weights = SyntheticWeights::Create(config, pool);
  ASSERT_FALSE(weights);
  EXPECT_EQ(weights.error().message,
            "moe_intermediate_size 120 is no multiple of 16, as experts in NVFP4 need it");
  config.expert_size = 128;
  EXPECT_FALSE((*SyntheticWeights::Create(config, pool))->Stored(ModuleKey::Global(Module::kQA)));
}

// A model of made-up weights, and two sequences of made-up tokens, `kContext` of each.
constexpr int64_t kContext = 1100;
struct MadeUpModel {
  explicit MadeUpModel(int threads) : pool(threads) {
    model = *Transformer::Load(*SyntheticWeights::Create(SmallModel(), pool), {.logit_rows = 2},
                               Context(pool));
    cache = *model->NewCache({.sequences = 2, .context_tokens = 2560});
    for (int i = 0; i < 2; ++i) {
      sequences.push_back(*cache->NewSequence());
      for (int64_t left = kContext; left > 0; left -= 100) {
        EXPECT_TRUE(cache->pages().Reserve(sequences.back(), 100));
        cache->pages().Advance(sequences.back(), 100);
      }
      FillCache(pool, model->config(), sequences.back().pages(), 1,
                static_cast<CpuKvMemory&>(cache->memory()));
    }
  }

  // Of one more token of each.
  std::vector<float> Logits(int32_t first, int32_t second) {
    const BatchItem batch[] = {{&sequences[0], {&first, 1}}, {&sequences[1], {&second, 1}}};
    const auto logits = model->Forward(*cache, batch);
    EXPECT_TRUE(logits) << logits.error().message;
    return {logits->data, logits->data + logits->rows * logits->columns};
  }

  ThreadPool pool;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<KvCache> cache;
  std::vector<Sequence> sequences;
};

TEST(SyntheticModel, HasTheSameFiniteLogitsWithAnyNumberOfThreads) {
  MadeUpModel one(1), two(2);
  for (int32_t token = 0; token < 4; ++token) {  // until an entry is complete
    const std::vector<float> logits = one.Logits(token, token);
    EXPECT_EQ(two.Logits(token, token), logits);
    double squares = 0;
    for (const float x : logits) {
      ASSERT_TRUE(std::isfinite(x));
      squares += double{x} * double{x};
    }
    squares /= static_cast<double>(logits.size());
    EXPECT_TRUE(squares > 0.1 && squares < 10) << squares;
    // Equal tokens over equal caches.
    EXPECT_TRUE(std::equal(logits.begin(), logits.begin() + 4096, logits.begin() + 4096));
  }
  EXPECT_NE(one.Logits(1, 2), one.Logits(2, 1));
}

TEST(OperationMeter, CountsWhatAStepMustReadAndCompute) {
  MadeUpModel made(1);
  OperationMeter meter(made.model->source());
  made.model->set_meter(&meter);
  made.Logits(5, 6);
  const auto work = [&](OperationKind kind) { return meter.of(kind).work; };
  const auto flops = [&](OperationKind kind, WeightFormat format) {
    return work(kind).product_flops[static_cast<size_t>(format)];
  };
  // Head: 4096 x 256 in bf16, two tokens.
  EXPECT_EQ(work(OperationKind::kLogits).bytes(), 4096 * 256 * 2);
  EXPECT_EQ(flops(OperationKind::kLogits, WeightFormat::kBf16), 2 * 2 * 4096 * 256);
  EXPECT_EQ(work(OperationKind::kEmbed).bytes(), 2 * 256 * 2);
  // wo_b: 256 x 256 in FP8 with four scales, six layers.
  EXPECT_EQ(meter.of(OperationKind::kProjectGrouped).calls, 6);
  EXPECT_EQ(work(OperationKind::kProjectGrouped).bytes(), 6 * (256 * 256 + 4));
  EXPECT_EQ(flops(OperationKind::kProjectGrouped, WeightFormat::kFp8), 6 * 2 * 2 * 256 * 256);
  // wo_a: two groups of 128 x 512.
  EXPECT_EQ(flops(OperationKind::kProjectAttended, WeightFormat::kFp8), 6 * 2 * 2 * 2 * 128 * 512);
  // Position 1100: a window of 128 in six layers; 275 entries in two C4 layers, of which 256 are
  // chosen; 8 in two C128 layers. Eight heads of 128; a stored row is 96 + 2 * 32 + 2 bytes,
  // rounded up.
  constexpr int64_t kKeys = 6 * 128 + 2 * 256 + 2 * 8;
  EXPECT_EQ(work(OperationKind::kAttend).cache_bytes, 2 * kKeys * 168);
  EXPECT_EQ(work(OperationKind::kAttend).other_flops, 2 * kKeys * 4 * 8 * 128);
  // Eight index heads of 64; a stored key is 32 + 2 bytes, rounded up.
  EXPECT_EQ(work(OperationKind::kSelect).cache_bytes, 2 * 2 * 275 * 36);
  EXPECT_EQ(work(OperationKind::kSelect).other_flops, 2 * 2 * 275 * 2 * 8 * 64);
  // Four experts of three 128 x 256 matrices for each of two tokens, which may share some.
  constexpr int64_t kExpert = 3 * 128 * 256 * 9 / 16;
  constexpr int64_t kShared = 3 * (128 * 256 + 2);
  EXPECT_EQ(flops(OperationKind::kExperts, WeightFormat::kNvfp4), 6 * 8 * 2 * 3 * 128 * 256);
  EXPECT_EQ(flops(OperationKind::kExperts, WeightFormat::kFp8), 6 * 2 * 2 * 3 * 128 * 256);
  const int64_t routed = work(OperationKind::kExperts).weight_bytes - 6 * kShared;
  EXPECT_EQ(routed % kExpert, 0);
  EXPECT_GT(routed / kExpert, 6 * 4);
  EXPECT_LE(routed / kExpert, 6 * 8);
  EXPECT_GT(meter.total().seconds, 0);
  meter.Reset();
  EXPECT_EQ(meter.total().calls, 0);
  made.model->set_meter(nullptr);
  made.Logits(5, 6);
  EXPECT_EQ(meter.total().calls, 0);
}

}  // namespace
}  // namespace halfbyte
