// What a model takes is what was planned: its experts and dense matrices packed, and the workspace.
#include <unistd.h>

#include "base/memory_limited_child.h"
#include "checkpoint/checkpoint_test_files.h"
#include "model/checkpoint_weights.h"
#include "model/model_memory.h"
#include "model/transformer.h"

namespace halfbyte {
namespace {

#if HALFBYTE_CAN_LIMIT_MEMORY
using namespace test;  // NOLINT: the files' namespace

// 3 layers of 32 NVFP4 experts, 27 MiB each.
Json LargeConfig() {
  Json config = TinyConfig();
  config["n_routed_experts"] = 32;
  config["hidden_size"] = 512;
  config["moe_intermediate_size"] = 1024;
  config["num_hash_layers"] = 0;
  config["num_nextn_predict_layers"] = 0;
  return config;
}

// A model whose numbers are all zero but the global scales. The file is sparse: it takes no space.
class ZeroModel {
 public:
  ZeroModel(const fs::path& directory, const Json& config) {
    const ModelConfig parsed = *ParseModelConfig(config, "config");
    for (const ModuleKey& key : RequiredModules(parsed))
      AddModule(key, *ExpectedShape(parsed, key));
    WriteBytes(directory / "config.json", config.dump());
    const std::string head = RawSafetensors(header_.dump(), "");
    const fs::path path = directory / "model.safetensors";
    WriteBytes(path, head);
    fs::resize_file(path, head.size() + static_cast<uintmax_t>(bytes_));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    for (const int64_t at : global_scales_) {
      const float one = 1;
      file.seekp(static_cast<std::streamoff>(head.size()) + at);
      file.write(reinterpret_cast<const char*>(&one), sizeof(one));
    }
  }

  int64_t expert_bytes() const { return expert_bytes_; }
  int64_t dense_bytes() const { return bytes_ - expert_bytes_; }

 private:
  void AddModule(const ModuleKey& key, const Shape& shape) {
    if (!IsRoutedExpert(key.module)) {
      Add(key, Part::kWeight, IsMatrix(key.module) ? DType::kBf16 : DType::kF32, shape);
      return;
    }
    const int64_t before = bytes_;
    Add(key, Part::kWeight, DType::kU8, {shape[0], shape[1] / 2});
    Add(key, Part::kWeightScale, DType::kF8E4m3, {shape[0], shape[1] / 16});
    global_scales_.push_back(bytes_);
    Add(key, Part::kWeightScale2, DType::kF32, {});
    expert_bytes_ += bytes_ - before;
  }

  void Add(const ModuleKey& key, Part part, DType dtype, const Shape& shape) {
    const int64_t end = bytes_ + ElementCount(shape) * DTypeSize(dtype);
    header_[*FormatTensorName(key, part, NamingStyle::kOfficial)] = {
        {"dtype", DTypeName(dtype)}, {"shape", shape}, {"data_offsets", {bytes_, end}}};
    bytes_ = end;
  }

  Json header_ = Json::object();
  std::vector<int64_t> global_scales_;  // offsets
  int64_t bytes_ = 0;
  int64_t expert_bytes_ = 0;
};

TEST(LoadMemory, IsWhatWasPlannedThroughTheLargestStep) {
  const TempDir directory;
  const ZeroModel model(directory.path(), LargeConfig());
  ASSERT_GT(model.expert_bytes(), int64_t{80} << 20);
  const TransformerOptions options{.batch_tokens = 256, .logit_rows = 256};
  constexpr int kThreads = 2;
  const auto checkpoint = ModelCheckpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto planned = PlanModel(CheckpointWeights(*checkpoint), options, kThreads);
  ASSERT_TRUE(planned) << planned.error().message;
  const int64_t bytes = planned->resident_bytes();
  // Hardly more: packed, a matrix is as large as it was stored.
  const int64_t weights = model.expert_bytes() + model.dense_bytes();
  EXPECT_LT(bytes, weights + weights / 10 + (int64_t{40} << 20)) << planned->Describe();
  // Besides: code of the program and the stored bytes of one layer, which the kernel may drop; and
  // the directory of the checkpoint.
  const int64_t beside = model.expert_bytes() / 3 + (int64_t{12} << 20);
  ExpectWithin({.private_bytes = bytes, .resident_bytes = bytes + beside, .threads = kThreads},
               [&]() -> std::string {
                 ThreadPool pool(kThreads);
                 const auto loaded = Transformer::Load(directory.path(), options, Context(pool));
                 if (!loaded) return loaded.error().message;
                 Transformer& transformer = **loaded;
                 const int64_t arena = transformer.workspace_bytes();
                 const auto cache = transformer.NewCache({.context_tokens = 256});
                 Sequence sequence = *(*cache)->NewSequence();
                 const std::vector<int32_t> tokens(256, 1);
                 const BatchItem item{&sequence, tokens, LogitsWanted::kAll};
                 const auto logits = transformer.Forward(**cache, {&item, 1});
                 if (!logits) return logits.error().message;
                 return transformer.workspace_bytes() == arena ? "" : "the arena has grown";
               });
}

// Every step's arena is within what was kept for it, whatever the model's kinds of layers.
TEST(LoadMemory, KeepsWhatAStepOfAnyModelTakes) {
  const fs::path directory = fs::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4";
  for (const MathMode math : {MathMode::kDefault, MathMode::kFp32}) {
    ThreadPool pool(2);
    const TransformerOptions options{.math = math, .batch_tokens = 300};
    const auto loaded = Transformer::Load(directory, options, Context(pool));
    ASSERT_TRUE(loaded) << loaded.error().message;
    Transformer& transformer = **loaded;
    const int64_t arena = transformer.workspace_bytes();
    const auto cache = transformer.NewCache({.context_tokens = 1500});
    Sequence sequence = *(*cache)->NewSequence();
    const std::vector<int32_t> tokens(300, 7);
    for (int i = 0; i < 5; ++i) {  // until the indexer selects
      const BatchItem item{&sequence, tokens, LogitsWanted::kAll};
      ASSERT_TRUE(transformer.Forward(**cache, {&item, 1}));
    }
    EXPECT_EQ(transformer.workspace_bytes(), arena);
  }
}
#endif

}  // namespace
}  // namespace halfbyte
