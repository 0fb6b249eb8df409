// config.json of a DeepSeek-V4 model in both spellings, DeepSeek's own and that of transformers
// (deepseek-v4.md §1.4), checked for contradictions. A field that both spellings state must agree.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace halfbyte {

enum class AttentionKind : uint8_t {
  kWindow,  // sliding window only
  kC4,      // overlapping compression and an indexer that selects entries
  kC128     // non-overlapping compression, all entries visible
};

const char* AttentionKindName(AttentionKind kind);

struct LayerConfig {
  AttentionKind attention = AttentionKind::kWindow;
  int64_t compress_rate =
      0;                     // tokens per compressed entry; 0 for kWindow; 4 and 128 in real models
  bool hash_routed = false;  // experts from tid2eid instead of scores + bias
};

struct YarnConfig {
  double factor = 1;
  int64_t original_max_position = 0;
  double beta_fast = 32;
  double beta_slow = 1;
};

struct RopeConfig {
  double theta = 0;
  std::optional<YarnConfig> yarn;
};

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;          // D
  std::vector<LayerConfig> layers;  // of the main model
  int64_t mtp_stages = 0;           // draft stages the config announces; the files may lack them
  int64_t dspark_markov_rank = 0;   // 256 if the draft stages are DSpark's, else 0
  int64_t dspark_targets = 0;       // main layers whose output feeds DSpark: 3, else 0
  int64_t max_position_embeddings = 0;

  int64_t attention_heads = 0;  // H
  int64_t head_dim = 0;         // 512 in real models; one KV head of that size
  int64_t rope_dim = 0;         // the last rope_dim of head_dim (and of index_head_dim) rotate
  int64_t q_lora_rank = 0;      // Rq
  int64_t o_lora_rank = 0;      // Ro
  int64_t o_groups = 0;         // G, divides H
  int64_t sliding_window = 0;   // W
  RopeConfig window_rope;       // kWindow layers and draft stages
  RopeConfig compressed_rope;   // kC4 and kC128 layers

  int64_t index_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;

  int64_t routed_experts = 0;     // E
  int64_t shared_experts = 0;     // 1; their width is shared_experts * expert_size
  int64_t experts_per_token = 0;  // K
  int64_t expert_size = 0;        // I
  double routed_scaling_factor = 1;
  bool norm_topk_prob = true;
  std::optional<double> swiglu_limit;  // absent: no clamp

  int64_t hc_streams = 0;  // n
  int64_t hc_sinkhorn_iterations = 0;
  double hc_eps = 1e-6;
  double rms_norm_eps = 1e-6;

  std::optional<int64_t> bos_token_id;
  std::vector<int64_t>
      eos_token_ids;  // config.json's and generation_config.json's, without repeats

  std::optional<std::string> expert_dtype;  // "fp4" or "fp8" as written; the tensors decide
  std::optional<Json> quantization;         // quantization_config as written; a hint for checks

  int64_t layer_count() const { return static_cast<int64_t>(layers.size()); }
  const RopeConfig& rope(AttentionKind kind) const {
    return kind == AttentionKind::kWindow ? window_rope : compressed_rope;
  }
  int64_t group_heads() const { return attention_heads / o_groups; }
  bool is_dspark() const { return dspark_markov_rank > 0; }
  int64_t shared_size() const { return shared_experts * expert_size; }
};

// `source` names the file in errors. Errors name the field: absent, of a wrong type, out of range,
// or in contradiction to another; model types other than deepseek_v4 are refused by name.
Result<ModelConfig> ParseModelConfig(const Json& json, std::string_view source);

// DIR/config.json, and eos ids of DIR/generation_config.json if there is one.
Result<ModelConfig> ReadModelConfig(const std::filesystem::path& directory);

}  // namespace halfbyte
