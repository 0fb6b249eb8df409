#include "model/cpu/projection.h"

#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/checkpoint_test_files.h"
#include "model/checkpoint_weights.h"
#include "model/transformer.h"

namespace halfbyte {
namespace {

using test::TempDir;
using test::TinyConfig;
using test::TinyFormats;
using test::TinyModel;
using test::WriteModel;

constexpr StoredFormat kFormats[] = {StoredFormat::kF32,           StoredFormat::kBf16,
                                     StoredFormat::kF16,           StoredFormat::kFp8Tensor,
                                     StoredFormat::kFp8Channel,    StoredFormat::kFp8Block,
                                     StoredFormat::kModelOptNvfp4, StoredFormat::kDeepSeekMxfp4};

// y of the module for x of small whole numbers: every sum is exact.
std::vector<float> Product(const WeightSource& source, ThreadPool* packing_pool,
                           const ModuleKey& key, int64_t groups, int64_t tokens,
                           const Context& context) {
  const auto stored = source.Matrix(key);
  EXPECT_TRUE(stored.has_value()) << stored.error().message;
  const auto projection = Projection::Create(*stored, groups, packing_pool);
  EXPECT_TRUE(projection.has_value()) << projection.error().message;
  const int64_t columns = groups * stored->matrix.columns;
  std::vector<float> x(static_cast<size_t>(tokens * columns)), y;
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * i % 17) - 8;
  y.resize(static_cast<size_t>(tokens * projection->rows()), NAN);
  Arena arena;
  const Projection::Output output{&*projection, {y.data(), tokens, projection->rows()}};
  Projection::ForwardAll(context, arena, {x.data(), tokens, columns}, {&output, 1});
  return y;
}

TEST(Projection, PackedAndStoredAreTheSameMatrix) {
  ThreadPool pool(2);
  for (const StoredFormat format : kFormats) {
    const TempDir dir;
    WriteModel(dir.path(), TinyConfig(),
               TinyModel(TinyConfig(), TinyFormats{.dense = format, .mtp = false}));
    const auto checkpoint = ModelCheckpoint::Open(dir.path());
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    const CheckpointWeights source(*checkpoint);
    struct Case {
      Module module;
      int64_t groups;
    };
    for (const Case& c : {Case{Module::kQA, 1}, Case{Module::kQB, 1}, Case{Module::kOA, 2},
                          Case{Module::kOB, 1}, Case{Module::kRouter, 1}}) {
      for (const int64_t tokens : {0, 1, 7}) {
        const auto key = ModuleKey::Layer(1, c.module);
        const auto expected =
            Product(source, nullptr, key, c.groups, tokens, Context(pool, CpuIsa::kScalar));
        for (const CpuIsa isa : SupportedCpuIsas()) {
          EXPECT_EQ(Product(source, &pool, key, c.groups, tokens, Context(pool, isa)), expected)
              << StoredFormatName(format) << ' ' << Describe(key) << ' ' << CpuIsaName(isa);
        }
      }
    }
  }
}

TEST(WeightSource, AnotherShapeThanTheConfigsIsRefusedByName) {
  class Confused : public CheckpointWeights {
   public:
    using CheckpointWeights::CheckpointWeights;
    Result<StoredWeight> Stored(const ModuleKey&) const override {
      return CheckpointWeights::Stored(ModuleKey::Layer(1, Module::kQB));
    }
  };
  const TempDir dir;
  WriteModel(dir.path(), TinyConfig(), TinyModel(TinyConfig(), TinyFormats{.mtp = false}));
  const auto checkpoint = ModelCheckpoint::Open(dir.path());
  const auto matrix = Confused(*checkpoint).Matrix(ModuleKey::Layer(1, Module::kQA));
  ASSERT_FALSE(matrix.has_value());
  EXPECT_EQ(matrix.error().message,
            "layers.1.attn.wq_b.weight: shape [128, 32] where config.json makes it [32, 64]");
}

// Logits of a prompt in chunks of `chunk` tokens.
std::vector<float> Logits(const std::filesystem::path& model_dir, const Context& context,
                          int64_t chunk) {
  const auto model = Transformer::Load(model_dir, {.batch_tokens = 32}, context);
  EXPECT_TRUE(model.has_value()) << model.error().message;
  const auto cache = (*model)->NewCache({.context_tokens = 64});
  auto sequence = (*cache)->NewSequence();
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 21; ++i) prompt.push_back(i * 7 % 48);
  std::vector<float> all;
  for (int64_t first = 0; first < std::ssize(prompt); first += chunk) {
    const auto count = static_cast<size_t>(std::min<int64_t>(chunk, std::ssize(prompt) - first));
    const BatchItem item{&*sequence, std::span(prompt).subspan(static_cast<size_t>(first), count),
                         LogitsWanted::kAll};
    const auto logits = (*model)->Forward(**cache, {&item, 1});
    EXPECT_TRUE(logits.has_value()) << logits.error().message;
    all.insert(all.end(), logits->data, logits->data + logits->rows * logits->columns);
  }
  return all;
}

TEST(Projection, AModelOfPackedLinearsGivesTheSameBitsHoweverItIsRun) {
  for (const auto& [dense, experts] :
       {std::pair{StoredFormat::kFp8Block, StoredFormat::kFp8Block},
        std::pair{StoredFormat::kBf16, StoredFormat::kBf16},
        std::pair{StoredFormat::kModelOptNvfp4, StoredFormat::kModelOptNvfp4}}) {
    const TempDir dir;
    WriteModel(
        dir.path(), TinyConfig(),
        TinyModel(TinyConfig(), TinyFormats{.experts = experts, .dense = dense, .mtp = false}));
    ThreadPool one(1), three(3);
    const std::vector<float> expected = Logits(dir.path(), Context(one, CpuIsa::kScalar), 21);
    for (const CpuIsa isa : SupportedCpuIsas()) {
      for (const int64_t chunk : {1, 8, 21}) {
        const std::vector<float> logits = Logits(dir.path(), Context(three, isa), chunk);
        ASSERT_EQ(logits.size(), expected.size());
        EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0)
            << StoredFormatName(dense) << ' ' << CpuIsaName(isa) << ' ' << chunk;
      }
    }
  }
}

}  // namespace
}  // namespace halfbyte
