// For tests only: small safetensors files and whole tiny checkpoints, right or deliberately wrong.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/inventory.h"
#include "checkpoint/model_config.h"
#include "checkpoint/stored_weight.h"
#include "checkpoint/tensor_name.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "tensor/tensor_view.h"

namespace halfbyte::test {

namespace fs = std::filesystem;

constexpr StoredFormat kMx = StoredFormat::kDeepSeekMxfp4;
constexpr StoredFormat kNv = StoredFormat::kModelOptNvfp4;
constexpr StoredFormat kCt = StoredFormat::kCtNvfp4;

// A directory of its own for each test, removed at the end.
class TempDir {
 public:
  TempDir() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = fs::path(::testing::TempDir()) /
            fmt::format("halfbyte_{}_{}_{}", ::getpid(), info->test_suite_name(), info->name());
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline void WriteBytes(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

struct TestTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::string bytes;
};

template <class T>
TestTensor MakeTensor(std::string name, DType dtype, Shape shape, const std::vector<T>& values) {
  TestTensor tensor{std::move(name), dtype, std::move(shape), {}};
  tensor.bytes.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

inline TestTensor MakeScalar(std::string name, float value) {
  return MakeTensor<float>(std::move(name), DType::kF32, {}, {value});
}

// Header length, header, data: nothing is checked, so headers may lie.
inline std::string RawSafetensors(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

inline std::string SafetensorsBytes(const std::vector<TestTensor>& tensors) {
  Json header = Json::object();
  std::string data;
  for (const TestTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", DTypeName(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return RawSafetensors(header.dump(), data);
}

inline void WriteSafetensors(const fs::path& path, const std::vector<TestTensor>& tensors) {
  WriteBytes(path, SafetensorsBytes(tensors));
}

// tensor -> file
inline void WriteIndex(const fs::path& directory,
                       const std::vector<std::pair<std::string, std::string>>& map) {
  Json weight_map = Json::object();
  for (const auto& [tensor, file] : map) weight_map[tensor] = file;
  WriteBytes(directory / "model.safetensors.index.json",
             Json{{"metadata", {{"total_size", 0}}}, {"weight_map", weight_map}}.dump());
}

// A matrix every stored format can hold exactly: E2M1 codes times a power of two per block of 32.
struct ExactMatrix {
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 32
  std::vector<uint8_t> codes;
  std::vector<int> exponents;  // [rows, columns/32], -2..2
  std::vector<float> values;

  ExactMatrix(int64_t rows_in, int64_t columns_in, uint32_t seed)
      : rows(rows_in), columns(columns_in) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < rows * columns; ++i) {
      if (i % 32 == 0) exponents.push_back(static_cast<int>(random() % 5) - 2);
      codes.push_back(static_cast<uint8_t>(random() % 16));
      values.push_back(E2m1ToFloat(codes.back()) * std::ldexp(1.0f, exponents.back()));
    }
  }
  std::string Packed() const {
    std::string packed;
    for (size_t i = 0; i < codes.size(); i += 2) {
      packed.push_back(static_cast<char>(PackE2m1(codes[i], codes[i + 1])));
    }
    return packed;
  }
};

inline std::string E8m0Scales(const ExactMatrix& m) {
  std::string scales;
  for (const int exponent : m.exponents) scales.push_back(static_cast<char>(127 + exponent));
  return scales;
}

// 2^(exponent + shift) as E4M3, twice per block of 32.
inline std::string E4m3Scales(const ExactMatrix& m, int shift) {
  std::string scales;
  for (const int exponent : m.exponents) {
    scales.append(2, static_cast<char>(E4m3FromFloat(std::ldexp(1.0f, exponent + shift))));
  }
  return scales;
}

inline std::string FloatBytes(const ExactMatrix& m, DType dtype) {
  std::string bytes;
  for (const float value : m.values) {
    char element[4];
    if (dtype == DType::kF32) std::memcpy(element, &value, 4);
    if (dtype == DType::kBf16) {
      const Bf16 b = ToBf16(value);
      std::memcpy(element, &b, 2);
    }
    if (dtype == DType::kF16) {  // exact normal numbers and zeros only
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      const uint32_t sign = (bits >> 16) & 0x8000u;
      const uint32_t half =
          value == 0 ? 0 : ((((bits >> 23) & 0xffu) - 112u) << 10) | ((bits >> 13) & 0x3ffu);
      const auto stored = static_cast<uint16_t>(sign | half);
      std::memcpy(element, &stored, 2);
    }
    bytes.append(element, static_cast<size_t>(DTypeSize(dtype)));
  }
  return bytes;
}

// The tensors of one module. `base` is its name without the part ("layers.0.attn.wq_a").
inline std::vector<TestTensor> EncodeMatrix(const std::string& base, const ExactMatrix& m,
                                            StoredFormat format) {
  const Shape full{m.rows, m.columns};
  const Shape half{m.rows, m.columns / 2};
  constexpr int kShift = 6;  // block scales 2^4..2^8 under a global scale of 2^-6
  switch (format) {
    case StoredFormat::kF32:
      return {{base + ".weight", DType::kF32, full, FloatBytes(m, DType::kF32)}};
    case StoredFormat::kBf16:
      return {{base + ".weight", DType::kBf16, full, FloatBytes(m, DType::kBf16)}};
    case StoredFormat::kF16:
      return {{base + ".weight", DType::kF16, full, FloatBytes(m, DType::kF16)}};
    case StoredFormat::kModelOptNvfp4:
      return {
          {base + ".weight", DType::kU8, half, m.Packed()},
          {base + ".weight_scale", DType::kF8E4m3, {m.rows, m.columns / 16}, E4m3Scales(m, kShift)},
          MakeScalar(base + ".weight_scale_2", 0x1p-6f),
          MakeScalar(base + ".input_scale", 0x1p-8f)};
    case StoredFormat::kCtNvfp4:
      return {
          {base + ".weight_packed", DType::kU8, half, m.Packed()},
          {base + ".weight_scale", DType::kF8E4m3, {m.rows, m.columns / 16}, E4m3Scales(m, kShift)},
          MakeTensor<float>(base + ".weight_global_scale", DType::kF32, {1}, {0x1p6f}),
          MakeTensor<float>(base + ".input_global_scale", DType::kF32, {1}, {0x1p8f})};
    case StoredFormat::kDeepSeekMxfp4:
      return {{base + ".weight", DType::kI8, half, m.Packed()},
              {base + ".scale", DType::kF8E8m0, {m.rows, m.columns / 32}, E8m0Scales(m)}};
    case StoredFormat::kCtMxfp4:
      return {{base + ".weight_packed", DType::kU8, half, m.Packed()},
              {base + ".weight_scale", DType::kU8, {m.rows, m.columns / 32}, E8m0Scales(m)}};
    default:
      break;
  }
  std::string elements;  // FP8 under a scale of 2
  for (const float value : m.values) {
    elements.push_back(static_cast<char>(E4m3FromFloat(value / 2)));
  }
  const TestTensor weight{base + ".weight", DType::kF8E4m3, full, elements};
  if (format == StoredFormat::kFp8Tensor) return {weight, MakeScalar(base + ".weight_scale", 2)};
  if (format == StoredFormat::kFp8Channel) {
    return {weight, MakeTensor(base + ".weight_scale", DType::kF32, {m.rows, 1},
                               std::vector<float>(static_cast<size_t>(m.rows), 2.0f))};
  }
  const int64_t blocks = (m.rows + 127) / 128 * ((m.columns + 127) / 128);
  return {weight,
          {base + ".scale",
           DType::kF8E8m0,
           {(m.rows + 127) / 128, (m.columns + 127) / 128},
           std::string(static_cast<size_t>(blocks), static_cast<char>(128))}};
}

// A model with every kind of layer: window + hash routing, C4 with indexer, C128 (rate 16).
inline Json TinyConfig() {
  return Json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 48,
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1,
    "head_dim": 32, "qk_rope_head_dim": 8, "q_lora_rank": 32, "o_lora_rank": 32, "o_groups": 2,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "routed_scaling_factor": 1.5, "norm_topk_prob": true,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "swiglu_limit": 10.0,
    "hidden_act": "silu", "compress_ratios": [0, 4, 16, 0], "num_hash_layers": 1,
    "num_nextn_predict_layers": 1, "sliding_window": 8, "index_n_heads": 4, "index_head_dim": 16,
    "index_topk": 4, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6,
    "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 64,
                     "beta_fast": 32, "beta_slow": 1},
    "max_position_embeddings": 1024, "bos_token_id": 0, "eos_token_id": 1})");
}

struct TinyFormats {
  NamingStyle style = NamingStyle::kOfficial;
  StoredFormat experts = StoredFormat::kDeepSeekMxfp4;
  StoredFormat dense = StoredFormat::kFp8Block;  // attention projections and shared experts
  bool mtp = true;
};

inline uint32_t SeedOf(const ModuleKey& key) {
  return static_cast<uint32_t>(std::hash<ModuleKey>()(key));
}

// Every tensor of a model of `config_json`. Values depend on the module alone, not on the format,
// so models in different formats are equal.
inline std::vector<TestTensor> TinyModel(const Json& config_json, const TinyFormats& formats) {
  const ModelConfig config = *ParseModelConfig(config_json, "tiny");
  std::vector<ModuleKey> keys = RequiredModules(config);
  for (int64_t stage = 0; formats.mtp && stage < config.mtp_stages; ++stage) {
    for (const ModuleKey& key : RequiredMtpModules(config, stage)) keys.push_back(key);
  }
  std::vector<TestTensor> tensors;
  for (const ModuleKey& key : keys) {
    const Shape shape = *ExpectedShape(config, key);
    const std::string name = *FormatTensorName(key, Part::kWeight, formats.style);
    const auto count = static_cast<size_t>(ElementCount(shape));
    if (key.module == Module::kRouterTable) {
      std::vector<int64_t> ids;
      for (int64_t i = 0; i < shape[0]; ++i) {
        for (int64_t j = 0; j < shape[1]; ++j) ids.push_back((i + j) % config.routed_experts);
      }
      tensors.push_back(MakeTensor(name, DType::kI64, shape, ids));
      continue;
    }
    if (!IsMatrix(key.module)) {
      tensors.push_back(MakeTensor(name, DType::kF32, shape, std::vector<float>(count, 0.5f)));
      continue;
    }
    const bool compressor = key.module == Module::kCompressorKv ||
                            key.module == Module::kCompressorGate ||
                            key.module == Module::kIndexerKv || key.module == Module::kIndexerGate;
    StoredFormat format = formats.dense;
    if (key.scope == Scope::kGlobal || compressor || key.module == Module::kRouter ||
        key.module == Module::kIndexerWeights) {
      format = StoredFormat::kBf16;
    }
    if (IsRoutedExpert(key.module)) format = formats.experts;
    const std::string base = name.substr(0, name.size() - std::string(".weight").size());
    const ExactMatrix matrix(shape[0], shape[1], SeedOf(key));
    for (TestTensor& tensor : EncodeMatrix(base, matrix, format)) {
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

// config.json and one model.safetensors.
inline void WriteModel(const fs::path& directory, const Json& config,
                       const std::vector<TestTensor>& tensors) {
  WriteBytes(directory / "config.json", config.dump());
  WriteSafetensors(directory / "model.safetensors", tensors);
}

inline TestTensor& TensorNamed(std::vector<TestTensor>& tensors, const std::string& name) {
  for (TestTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return tensors.front();
}

inline void Remove(std::vector<TestTensor>& tensors, const std::string& name) {
  std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name == name; });
}

}  // namespace halfbyte::test
