// For tests only: models to convert, and what became of them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/checkpoint_test_files.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/model_checkpoint.h"

namespace halfbyte::test {

inline std::string BytesOf(const TensorView& view) {
  return {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()};
}

inline ModelCheckpoint OpenModel(const fs::path& directory) {
  Result<ModelCheckpoint> model = ModelCheckpoint::Open(directory);
  if (!model) {
    ADD_FAILURE() << model.error().message;
    std::abort();
  }
  return *std::move(model);
}

inline std::vector<float> Decode(const ModelCheckpoint& model, const ModuleKey& key) {
  const Result<StoredWeight> weight = model.FindWeight(key);
  if (!weight) {
    ADD_FAILURE() << weight.error().message;
    return {};
  }
  const WeightMatrix& matrix = weight->matrix;
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.columns));
  for (int64_t r = 0; r < matrix.rows; ++r) {
    DequantizeRow(matrix, r, values.data() + r * matrix.columns);
  }
  return values;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline bool AllZero(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return x == 0; });
}

// The routed experts' matrices of the main layers.
inline std::vector<ModuleKey> ExpertKeys(const ModelConfig& config) {
  std::vector<ModuleKey> keys;
  for (int64_t layer = 0; layer < config.layer_count(); ++layer) {
    for (int64_t e = 0; e < config.routed_experts; ++e) {
      for (const Module m : {Module::kExpertGate, Module::kExpertUp, Module::kExpertDown}) {
        keys.push_back(ModuleKey::Layer(layer, m, e));
      }
    }
  }
  return keys;
}

// Every file below `directory` by its path.
inline std::map<std::string, std::string> FilesIn(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    files[entry.path().lexically_relative(directory).string()] = *ReadTextFile(entry.path());
  }
  return files;
}

inline std::set<std::string> NamesIn(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& [name, content] : FilesIn(directory)) names.insert(name);
  return names;
}

// Values that no 4-bit format holds exactly, of different size in each tensor.
inline void Randomize(std::vector<TestTensor>& tensors, const std::string& part_of_name) {
  for (TestTensor& tensor : tensors) {
    if (tensor.name.find(part_of_name) == std::string::npos || tensor.dtype != DType::kBf16) {
      continue;
    }
    std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(tensor.name)));
    std::normal_distribution<float> values(0, 0.001f * static_cast<float>(1 + random() % 50));
    for (size_t i = 0; i < tensor.bytes.size(); i += sizeof(Bf16)) {
      const Bf16 value = ToBf16(values(random));
      std::memcpy(tensor.bytes.data() + i, &value, sizeof(value));
    }
  }
}

// experts.E.gate_proj and so on -> experts.gate_up_proj and experts.down_proj; Hugging Face names.
inline std::vector<TestTensor> Fused(const std::vector<TestTensor>& tensors) {
  std::vector<TestTensor> result;
  std::map<std::string, TestTensor> fused;
  std::map<std::string, std::map<int, std::map<int, TestTensor>>> experts;  // layer, expert, order
  for (const TestTensor& tensor : tensors) {
    const auto name = ParseTensorName(tensor.name);
    if (!name || !IsRoutedExpert(name->key.module) || name->key.scope != Scope::kLayer) {
      result.push_back(tensor);
      continue;
    }
    const bool down = name->key.module == Module::kExpertDown;
    const std::string layer = tensor.name.substr(0, tensor.name.find(".experts.") + 9);
    experts[layer + (down ? "down_proj" : "gate_up_proj")][name->key.expert]
           [name->key.module == Module::kExpertUp ? 1 : 0] = tensor;
  }
  for (const auto& [name, by_expert] : experts) {
    const TestTensor& first = by_expert.at(0).at(0);
    TestTensor whole{name, first.dtype, first.shape, ""};
    whole.shape[0] *= static_cast<int64_t>(by_expert.at(0).size());
    whole.shape.insert(whole.shape.begin(), static_cast<int64_t>(by_expert.size()));
    for (const auto& [e, parts] : by_expert) {
      for (const auto& [order, part] : parts) whole.bytes += part.bytes;
    }
    result.push_back(whole);
  }
  return result;
}

// config.json and several shards with an index; shard_of(name) is 0, 1, ...
template <class ShardOf>
void WriteSharded(const fs::path& directory, const Json& config,
                  const std::vector<TestTensor>& tensors, const ShardOf& shard_of) {
  std::map<int, std::vector<TestTensor>> shards;
  std::vector<std::pair<std::string, std::string>> map;
  for (const TestTensor& tensor : tensors) {
    const int shard = shard_of(tensor.name);
    shards[shard].push_back(tensor);
    map.emplace_back(tensor.name, fmt::format("model-{}.safetensors", shard));
  }
  for (const auto& [shard, content] : shards) {
    WriteSafetensors(directory / fmt::format("model-{}.safetensors", shard), content);
  }
  WriteIndex(directory, map);
  WriteBytes(directory / "config.json", config.dump());
}

inline ConvertOptions To(TargetFormat format) {
  ConvertOptions options;
  options.format = format;
  options.threads = 2;
  return options;
}

inline ConversionReport MustConvert(const fs::path& source, const fs::path& target,
                                    const ConvertOptions& options) {
  const Result<ConversionReport> report = ConvertCheckpoint(source, target, options);
  if (!report) {
    ADD_FAILURE() << report.error().message;
    return {};
  }
  return *report;
}

inline std::string ErrorOf(const fs::path& source, const fs::path& target,
                           const ConvertOptions& options) {
  const Result<ConversionReport> report = ConvertCheckpoint(source, target, options);
  return report ? "no error" : report.error().message;
}

}  // namespace halfbyte::test
