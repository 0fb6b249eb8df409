#include "measure/model_shape.h"

#include <algorithm>
#include <string_view>

#include "base/json.h"

namespace halfbyte {
namespace {

// deepseek-ai/DeepSeek-V4-Flash, config.json of April 2026, but for fields that change no size;
// compress_ratios are added below.
constexpr std::string_view kFlash = R"({
  "model_type": "deepseek_v4",
  "vocab_size": 129280,
  "hidden_size": 4096,
  "num_hidden_layers": 43,
  "num_hash_layers": 3,
  "max_position_embeddings": 1048576,
  "num_attention_heads": 64,
  "num_key_value_heads": 1,
  "head_dim": 512,
  "qk_rope_head_dim": 64,
  "q_lora_rank": 1024,
  "o_lora_rank": 1024,
  "o_groups": 8,
  "sliding_window": 128,
  "rope_theta": 10000,
  "compress_rope_theta": 160000,
  "rope_scaling": {
    "type": "yarn",
    "factor": 16,
    "original_max_position_embeddings": 65536,
    "beta_fast": 32,
    "beta_slow": 1
  },
  "index_n_heads": 64,
  "index_head_dim": 128,
  "index_topk": 512,
  "n_routed_experts": 256,
  "n_shared_experts": 1,
  "num_experts_per_tok": 6,
  "moe_intermediate_size": 2048,
  "routed_scaling_factor": 1.5,
  "norm_topk_prob": true,
  "scoring_func": "sqrtsoftplus",
  "swiglu_limit": 10.0,
  "hc_mult": 4,
  "hc_sinkhorn_iters": 20,
  "hc_eps": 1e-6,
  "rms_norm_eps": 1e-6
})";

// What differs in deepseek-ai/DeepSeek-V4-Pro.
constexpr std::string_view kPro = R"({
  "hidden_size": 7168,
  "num_hidden_layers": 61,
  "num_attention_heads": 128,
  "q_lora_rank": 1536,
  "o_groups": 16,
  "index_topk": 1024,
  "n_routed_experts": 384,
  "moe_intermediate_size": 3072,
  "routed_scaling_factor": 2.5
})";

// Two layers of rate `first`, then 4 and 128 in turns.
Json Ratios(const Json& config, int64_t first) {
  Json ratios = Json::array();
  for (int64_t l = 0; l < config["num_hidden_layers"].get<int64_t>(); ++l) {
    ratios.push_back(l < 2 ? first : l % 2 == 0 ? 4 : 128);
  }
  return ratios;
}

}  // namespace

Result<ModelConfig> ReadModelShape(const std::string& shape) {
  if (shape != "v4-flash" && shape != "v4-pro") {
    HB_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(shape));
    return ParseModelConfig(json, shape);
  }
  const bool pro = shape == "v4-pro";
  Json config = Json::parse(kFlash);
  if (pro) config.merge_patch(Json::parse(kPro));
  config["compress_ratios"] = Ratios(config, pro ? 128 : 0);
  return ParseModelConfig(config, shape);
}

Result<ModelConfig> TakeLayers(ModelConfig model, int64_t layers) {
  const int64_t depth = model.layer_count();
  if (layers > depth) return MakeError("{} layers of a model that has {}", layers, depth);
  if (layers == depth) return model;
  const auto is_c4 = [](const LayerConfig& layer) { return layer.attention == AttentionKind::kC4; };
  const auto c4 = std::find_if(model.layers.begin(), model.layers.end(), is_c4);
  if (2 * layers < depth && c4 != model.layers.end()) {
    model.layers.erase(model.layers.begin(), std::min(c4, model.layers.end() - layers));
  }
  model.layers.resize(static_cast<size_t>(layers));
  for (LayerConfig& layer : model.layers) layer.hash_routed = false;
  return model;
}

Result<ModelConfig> TakeExperts(ModelConfig model, int64_t experts) {
  if (experts < model.experts_per_token || experts > model.routed_experts) {
    return MakeError("{} experts of a model that has {} and chooses {} for a token", experts,
                     model.routed_experts, model.experts_per_token);
  }
  model.routed_experts = experts;
  return model;
}

}  // namespace halfbyte
