// What loading a model may hold in memory: its experts and dense matrices packed, of one layer also
// the stored bytes, and the workspace.
#include <unistd.h>

#include "base/memory_limited_child.h"
#include "checkpoint/checkpoint_test_files.h"
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

TEST(LoadMemory, IsTheExpertsAndOneLayerAndTheWorkspace) {
  const TempDir directory;
  const ZeroModel model(directory.path(), LargeConfig());
  const int64_t experts = model.expert_bytes();
  ASSERT_GT(experts, int64_t{80} << 20);
  const int64_t layer = experts / 3;
  const int64_t packed = experts + model.dense_bytes();  // as large as what is stored
  const TransformerOptions options{.batch_tokens = 16};
  const MoeLimits limits =
      MoeBlock::Limits(*ParseModelConfig(LargeConfig(), "config"), options.batch_tokens);
  // Besides: the code of the program, the directory of the checkpoint, vectors, stacks, and what
  // huge pages leave unused.
  const int64_t workspace = MoeWorkspace::Bytes(limits) + (int64_t{18} << 20);
  ExpectWithin({.private_bytes = packed + workspace,
                .resident_bytes = packed + layer + workspace,
                .threads = 2},
               [&]() -> std::string {
                 ThreadPool pool(2);
                 const auto loaded = Transformer::Load(directory.path(), options, Context(pool));
                 return loaded ? "" : loaded.error().message;
               });
}
#endif

}  // namespace
}  // namespace halfbyte
