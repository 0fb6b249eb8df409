#include "checkpoint/model_config.h"

#include <algorithm>
#include <cmath>

namespace halfbyte {
namespace {

// No dimension of a real model comes near; products of two stay far below 2^63.
constexpr int64_t kAbsurd = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxExperts = 65536;
constexpr int64_t kMaxStreams = 16;
constexpr int64_t kMaxMtpStages = 16;
constexpr int64_t kC4Rate = 4;

Result<int64_t> RequiredInt(const JsonObject& json, std::string_view key, int64_t low,
                            int64_t high) {
  HB_ASSIGN_OR_RETURN(const std::optional<int64_t> value, json.Int(key));
  if (!value) return MakeError("{} is missing", json.Describe(key));
  if (*value < low || *value > high) {
    return MakeError("{} is {}, outside {}..{}", json.Describe(key), *value, low, high);
  }
  return *value;
}

Result<int64_t> RequiredSize(const JsonObject& json, std::string_view key, int64_t high = kAbsurd) {
  return RequiredInt(json, key, 1, high);
}

// A finite number > 0.
Result<std::optional<double>> PositiveNumber(const JsonObject& json, std::string_view key) {
  HB_ASSIGN_OR_RETURN(const std::optional<double> value, json.Number(key));
  if (value && !(std::isfinite(*value) && *value > 0)) {
    return MakeError("{} is {}, but must be positive", json.Describe(key), *value);
  }
  return value;
}

Result<double> RequiredNumber(const JsonObject& json, std::string_view key) {
  HB_ASSIGN_OR_RETURN(const std::optional<double> value, PositiveNumber(json, key));
  if (!value) return MakeError("{} is missing", json.Describe(key));
  return *value;
}

// Two spellings of one number: either will do, both must agree.
Result<std::optional<double>> Agreeing(const JsonObject& a, std::string_view key_a,
                                       const std::optional<JsonObject>& b, std::string_view key_b) {
  HB_ASSIGN_OR_RETURN(const std::optional<double> first, PositiveNumber(a, key_a));
  if (!b) return first;
  HB_ASSIGN_OR_RETURN(const std::optional<double> second, PositiveNumber(*b, key_b));
  if (first && second && *first != *second) {
    return MakeError("{} is {}, but {} is {}", a.Describe(key_a), *first, b->Describe(key_b),
                     *second);
  }
  return first ? first : second;
}

Status CheckModelType(const JsonObject& json) {
  HB_ASSIGN_OR_RETURN(const std::optional<std::string> type, json.String("model_type"));
  if (!type) return MakeError("{} is missing", json.Describe("model_type"));
  if (*type == "deepseek_v41") {
    return MakeError("{} is deepseek_v41: V4.1 is another architecture, which halfbyte cannot run",
                     json.Describe("model_type"));
  }
  if (*type != "deepseek_v4") {
    return MakeError("{} is {}, but halfbyte knows only deepseek_v4", json.Describe("model_type"),
                     *type);
  }
  return {};
}

// Fields whose only value we can run, where stated at all.
Status CheckFixedChoices(const JsonObject& json) {
  for (const auto& [key, wanted] : {std::pair{"scoring_func", "sqrtsoftplus"},
                                    {"topk_method", "noaux_tc"},
                                    {"hidden_act", "silu"}}) {
    HB_ASSIGN_OR_RETURN(const std::optional<std::string> value, json.String(key));
    if (value && *value != wanted) {
      return MakeError("{} is {}, but only {} is supported", json.Describe(key), *value, wanted);
    }
  }
  for (const char* key : {"attention_bias", "mlp_bias", "tie_word_embeddings"}) {
    HB_ASSIGN_OR_RETURN(const std::optional<bool> value, json.Bool(key));
    if (value.value_or(false)) {
      return MakeError("{} is true, which is not supported", json.Describe(key));
    }
  }
  for (const char* key : {"num_key_value_heads", "n_group", "topk_group"}) {
    HB_ASSIGN_OR_RETURN(const std::optional<int64_t> value, json.Int(key));
    if (value && *value != 1) {
      return MakeError("{} is {}, but only 1 is supported", json.Describe(key), *value);
    }
  }
  return {};
}

LayerConfig LayerOfRate(int64_t rate) {
  if (rate == 0) return {};
  return {rate == kC4Rate ? AttentionKind::kC4 : AttentionKind::kC128, rate, false};
}

Status CheckRate(int64_t rate, const std::string& field) {
  if (rate == 0 || (rate >= kC4Rate && rate <= 65536)) return {};
  return MakeError("{} is {}, but a compression rate is 0, 4 or above", field, rate);
}

// DeepSeek's spelling: one rate per layer, then a 0 per draft stage.
Status ReadCompressRatios(const JsonObject& json, const Json& ratios, int64_t layers,
                          ModelConfig& config) {
  const std::string field = json.Describe("compress_ratios");
  const auto count = static_cast<int64_t>(ratios.size());
  if (count < layers || count > layers + kMaxMtpStages) {
    return MakeError("{} has {} entries for num_hidden_layers {}", field, count, layers);
  }
  for (int64_t i = 0; i < count; ++i) {
    const Json& entry = ratios[static_cast<size_t>(i)];
    if (!entry.is_number_integer()) return MakeError("{} entry {} is no integer", field, i);
    const auto rate = entry.get<int64_t>();
    HB_RETURN_IF_ERROR(CheckRate(rate, fmt::format("{} entry {}", field, i)));
    if (i < layers) {
      config.layers.push_back(LayerOfRate(rate));
    } else if (rate != 0) {
      return MakeError(
          "{} entry {} is {}, but draft stages (entries after num_hidden_layers {}) "
          "have rate 0",
          field, i, rate, layers);
    }
  }
  if (count > layers) config.mtp_stages = count - layers;
  return {};
}

Result<std::vector<std::string>> StringArray(const JsonObject& json, std::string_view key,
                                             const Json& array, int64_t layers) {
  if (static_cast<int64_t>(array.size()) != layers) {
    return MakeError("{} has {} entries, but num_hidden_layers is {}", json.Describe(key),
                     array.size(), layers);
  }
  std::vector<std::string> strings;
  for (const Json& entry : array) {
    if (!entry.is_string()) {
      return MakeError("{} entry {} is no string", json.Describe(key), strings.size());
    }
    strings.push_back(entry.get<std::string>());
  }
  return strings;
}

// The spelling of transformers: the kind of each layer, and a rate per kind.
Result<std::vector<LayerConfig>> ReadLayerTypes(const JsonObject& json, const Json& types,
                                                int64_t layers) {
  HB_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      StringArray(json, "layer_types", types, layers));
  HB_ASSIGN_OR_RETURN(const std::optional<JsonObject> rates, json.Object("compress_rates"));
  std::vector<LayerConfig> result;
  for (const std::string& name : names) {
    if (name == "sliding_attention") {
      result.emplace_back();
      continue;
    }
    LayerConfig layer;
    if (name == "compressed_sparse_attention") {
      layer.attention = AttentionKind::kC4;
    } else if (name == "heavily_compressed_attention") {
      layer.attention = AttentionKind::kC128;
    } else {
      return MakeError("{} entry {} is the unknown kind {}", json.Describe("layer_types"),
                       result.size(), name);
    }
    if (!rates) return MakeError("{} is missing", json.Describe("compress_rates"));
    HB_ASSIGN_OR_RETURN(layer.compress_rate, RequiredInt(*rates, name, 2, 65536));
    result.push_back(layer);
  }
  return result;
}

Status ReadAttentionKinds(const JsonObject& json, ModelConfig& config) {
  HB_ASSIGN_OR_RETURN(const int64_t layers, RequiredSize(json, "num_hidden_layers", kMaxLayers));
  HB_ASSIGN_OR_RETURN(const std::optional<int64_t> drafts, json.Int("num_nextn_predict_layers"));
  if (drafts.value_or(0) < 0 || drafts.value_or(0) > kMaxMtpStages) {
    return MakeError("{} is {}, outside 0..{}", json.Describe("num_nextn_predict_layers"), *drafts,
                     kMaxMtpStages);
  }
  config.mtp_stages = drafts.value_or(0);
  HB_ASSIGN_OR_RETURN(const std::optional<const Json*> ratios, json.Array("compress_ratios"));
  HB_ASSIGN_OR_RETURN(const std::optional<const Json*> types, json.Array("layer_types"));
  if (!ratios && !types) {
    return MakeError("{} is missing (and layer_types, its other spelling)",
                     json.Describe("compress_ratios"));
  }
  if (ratios) HB_RETURN_IF_ERROR(ReadCompressRatios(json, **ratios, layers, config));
  if (!types) return {};
  HB_ASSIGN_OR_RETURN(std::vector<LayerConfig> typed, ReadLayerTypes(json, **types, layers));
  for (size_t i = 0; ratios && i < typed.size(); ++i) {
    if (typed[i].attention != config.layers[i].attention ||
        typed[i].compress_rate != config.layers[i].compress_rate) {
      return MakeError("{} entry {} says {} at rate {}, but compress_ratios says {}",
                       json.Describe("layer_types"), i, AttentionKindName(typed[i].attention),
                       typed[i].compress_rate, config.layers[i].compress_rate);
    }
  }
  config.layers = std::move(typed);
  return {};
}

Status ReadRouterKinds(const JsonObject& json, ModelConfig& config) {
  const int64_t layers = config.layer_count();
  HB_ASSIGN_OR_RETURN(const std::optional<int64_t> hashed, json.Int("num_hash_layers"));
  HB_ASSIGN_OR_RETURN(const std::optional<const Json*> types, json.Array("mlp_layer_types"));
  if (!hashed && !types) {
    return MakeError("{} is missing (and mlp_layer_types, its other spelling)",
                     json.Describe("num_hash_layers"));
  }
  if (hashed && (*hashed < 0 || *hashed > layers)) {
    return MakeError("{} is {}, but there are {} layers", json.Describe("num_hash_layers"), *hashed,
                     layers);
  }
  for (int64_t i = 0; hashed && i < *hashed; ++i) {
    config.layers[static_cast<size_t>(i)].hash_routed = true;
  }
  if (!types) return {};
  HB_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      StringArray(json, "mlp_layer_types", **types, layers));
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != "hash_moe" && names[i] != "moe") {
      return MakeError("{} entry {} is the unknown kind {}", json.Describe("mlp_layer_types"), i,
                       names[i]);
    }
    const bool hash = names[i] == "hash_moe";
    if (hashed && hash != config.layers[i].hash_routed) {
      return MakeError("{} entry {} is {}, but num_hash_layers is {}",
                       json.Describe("mlp_layer_types"), i, names[i], *hashed);
    }
    config.layers[i].hash_routed = hash;
  }
  return {};
}

// Nothing for "default", an error for kinds other than yarn.
Result<std::optional<YarnConfig>> ReadYarn(const JsonObject& json, std::string_view type_key) {
  HB_ASSIGN_OR_RETURN(const std::optional<std::string> type, json.String(type_key));
  if (!type || *type == "default") return std::nullopt;
  if (*type != "yarn") {
    return MakeError("{} is {}, but only default and yarn are supported", json.Describe(type_key),
                     *type);
  }
  YarnConfig yarn;
  HB_ASSIGN_OR_RETURN(yarn.factor, RequiredNumber(json, "factor"));
  if (yarn.factor < 1) {
    return MakeError("{} is {}, but must be at least 1", json.Describe("factor"), yarn.factor);
  }
  HB_ASSIGN_OR_RETURN(yarn.original_max_position,
                      RequiredInt(json, "original_max_position_embeddings", 1, int64_t{1} << 40));
  HB_ASSIGN_OR_RETURN(const std::optional<double> fast, PositiveNumber(json, "beta_fast"));
  HB_ASSIGN_OR_RETURN(const std::optional<double> slow, PositiveNumber(json, "beta_slow"));
  yarn.beta_fast = fast.value_or(yarn.beta_fast);
  yarn.beta_slow = slow.value_or(yarn.beta_slow);
  if (yarn.beta_fast < yarn.beta_slow) {
    return MakeError("{} is below beta_slow", json.Describe("beta_fast"));
  }
  HB_ASSIGN_OR_RETURN(const std::optional<double> magnitude, json.Number("attention_factor"));
  if (magnitude && *magnitude != 1) {
    return MakeError("{} is {}, but V4 has no magnitude factor (1)",
                     json.Describe("attention_factor"), *magnitude);
  }
  return yarn;
}

bool SameYarn(const YarnConfig& a, const YarnConfig& b) {
  return a.factor == b.factor && a.original_max_position == b.original_max_position &&
         a.beta_fast == b.beta_fast && a.beta_slow == b.beta_slow;
}

Status ReadRope(const JsonObject& json, ModelConfig& config) {
  HB_ASSIGN_OR_RETURN(const std::optional<JsonObject> nested, json.Object("rope_parameters"));
  std::optional<JsonObject> main, compress;
  if (nested) {
    HB_ASSIGN_OR_RETURN(main, nested->Object("main"));
    HB_ASSIGN_OR_RETURN(compress, nested->Object("compress"));
  }
  HB_ASSIGN_OR_RETURN(const std::optional<double> theta,
                      Agreeing(json, "rope_theta", main, "rope_theta"));
  if (!theta) return MakeError("{} is missing", json.Describe("rope_theta"));
  config.window_rope.theta = *theta;
  HB_ASSIGN_OR_RETURN(const std::optional<double> compress_theta,
                      Agreeing(json, "compress_rope_theta", compress, "rope_theta"));
  if (!compress_theta) return MakeError("{} is missing", json.Describe("compress_rope_theta"));
  config.compressed_rope.theta = *compress_theta;

  if (main) {
    HB_ASSIGN_OR_RETURN(const std::optional<YarnConfig> yarn, ReadYarn(*main, "rope_type"));
    if (yarn) {
      return MakeError("{} is yarn, but window layers have plain RoPE",
                       main->Describe("rope_type"));
    }
  }
  HB_ASSIGN_OR_RETURN(const std::optional<JsonObject> scaling, json.Object("rope_scaling"));
  if (scaling) {
    const char* type_key = scaling->Has("type") ? "type" : "rope_type";
    HB_ASSIGN_OR_RETURN(config.compressed_rope.yarn, ReadYarn(*scaling, type_key));
  }
  if (!compress) return {};
  HB_ASSIGN_OR_RETURN(const std::optional<YarnConfig> yarn, ReadYarn(*compress, "rope_type"));
  const auto& scaled = config.compressed_rope.yarn;
  if (scaling && (scaled.has_value() != yarn.has_value() || (yarn && !SameYarn(*scaled, *yarn)))) {
    return MakeError("{} contradicts rope_parameters.compress", json.Describe("rope_scaling"));
  }
  config.compressed_rope.yarn = yarn;
  return {};
}

// qk_rope_head_dim, or partial_rotary_factor of head_dim, at the top or in rope_parameters.
Status ReadRopeDim(const JsonObject& json, ModelConfig& config) {
  HB_ASSIGN_OR_RETURN(const std::optional<int64_t> stated, json.Int("qk_rope_head_dim"));
  std::optional<int64_t> dim = stated;
  HB_ASSIGN_OR_RETURN(const std::optional<JsonObject> nested, json.Object("rope_parameters"));
  std::vector<JsonObject> places{json};
  for (const char* key : {"main", "compress"}) {
    if (!nested) break;
    HB_ASSIGN_OR_RETURN(const std::optional<JsonObject> part, nested->Object(key));
    if (part) places.push_back(*part);
  }
  for (const JsonObject& place : places) {
    HB_ASSIGN_OR_RETURN(const std::optional<double> factor,
                        PositiveNumber(place, "partial_rotary_factor"));
    if (!factor) continue;
    const double exact = *factor * static_cast<double>(config.head_dim);
    if (*factor > 1 || std::abs(exact - std::round(exact)) > 1e-6) {
      return MakeError("{} is {}, which leaves no whole rotary dimension of head_dim {}",
                       place.Describe("partial_rotary_factor"), *factor, config.head_dim);
    }
    const auto implied = static_cast<int64_t>(std::llround(exact));
    if (dim && *dim != implied) {
      return MakeError("{} means {} rotary dimensions, but {} are stated elsewhere",
                       place.Describe("partial_rotary_factor"), implied, *dim);
    }
    dim = implied;
  }
  const std::string field = json.Describe("qk_rope_head_dim");
  if (!dim) return MakeError("{} is missing (and partial_rotary_factor)", field);
  if (*dim <= 0 || *dim % 2 != 0) {
    return MakeError("{} is {}, but must be positive and even", field, *dim);
  }
  if (*dim > config.head_dim) {
    return MakeError("{} is {}, more than head_dim {}", field, *dim, config.head_dim);
  }
  config.rope_dim = *dim;
  return {};
}

Status ReadAttention(const JsonObject& json, ModelConfig& config) {
  HB_ASSIGN_OR_RETURN(config.attention_heads, RequiredSize(json, "num_attention_heads", 65536));
  HB_ASSIGN_OR_RETURN(config.head_dim, RequiredSize(json, "head_dim", 65536));
  HB_ASSIGN_OR_RETURN(config.q_lora_rank, RequiredSize(json, "q_lora_rank"));
  HB_ASSIGN_OR_RETURN(config.o_lora_rank, RequiredSize(json, "o_lora_rank"));
  HB_ASSIGN_OR_RETURN(config.o_groups, RequiredSize(json, "o_groups", 65536));
  HB_ASSIGN_OR_RETURN(config.sliding_window, RequiredSize(json, "sliding_window"));
  if (config.attention_heads % config.o_groups != 0) {
    return MakeError("{} is {}, which does not divide num_attention_heads {}",
                     json.Describe("o_groups"), config.o_groups, config.attention_heads);
  }
  HB_RETURN_IF_ERROR(ReadRopeDim(json, config));
  HB_RETURN_IF_ERROR(ReadRope(json, config));
  const bool indexed =
      std::any_of(config.layers.begin(), config.layers.end(),
                  [](const LayerConfig& l) { return l.attention == AttentionKind::kC4; });
  if (!indexed) return {};
  HB_ASSIGN_OR_RETURN(config.index_heads, RequiredSize(json, "index_n_heads", 65536));
  HB_ASSIGN_OR_RETURN(config.index_head_dim, RequiredSize(json, "index_head_dim", 65536));
  HB_ASSIGN_OR_RETURN(config.index_topk, RequiredSize(json, "index_topk"));
  if (config.index_head_dim < config.rope_dim) {
    return MakeError("{} is {}, less than the {} rotary dimensions",
                     json.Describe("index_head_dim"), config.index_head_dim, config.rope_dim);
  }
  return {};
}

Status ReadExperts(const JsonObject& json, ModelConfig& config) {
  HB_ASSIGN_OR_RETURN(config.routed_experts, RequiredSize(json, "n_routed_experts", kMaxExperts));
  HB_ASSIGN_OR_RETURN(config.shared_experts, RequiredSize(json, "n_shared_experts", 64));
  HB_ASSIGN_OR_RETURN(config.experts_per_token,
                      RequiredSize(json, "num_experts_per_tok", kMaxExperts));
  HB_ASSIGN_OR_RETURN(config.expert_size, RequiredSize(json, "moe_intermediate_size"));
  if (config.experts_per_token > config.routed_experts) {
    return MakeError("{} is {}, more than n_routed_experts {}",
                     json.Describe("num_experts_per_tok"), config.experts_per_token,
                     config.routed_experts);
  }
  HB_ASSIGN_OR_RETURN(config.routed_scaling_factor, RequiredNumber(json, "routed_scaling_factor"));
  HB_ASSIGN_OR_RETURN(const std::optional<bool> norm, json.Bool("norm_topk_prob"));
  config.norm_topk_prob = norm.value_or(true);
  HB_ASSIGN_OR_RETURN(config.swiglu_limit, PositiveNumber(json, "swiglu_limit"));
  HB_ASSIGN_OR_RETURN(config.expert_dtype, json.String("expert_dtype"));
  return {};
}

Status ReadHyperConnections(const JsonObject& json, ModelConfig& config) {
  HB_ASSIGN_OR_RETURN(config.hc_streams, RequiredSize(json, "hc_mult", kMaxStreams));
  HB_ASSIGN_OR_RETURN(config.hc_sinkhorn_iterations, RequiredSize(json, "hc_sinkhorn_iters", 1000));
  HB_ASSIGN_OR_RETURN(config.hc_eps, RequiredNumber(json, "hc_eps"));
  HB_ASSIGN_OR_RETURN(config.rms_norm_eps, RequiredNumber(json, "rms_norm_eps"));
  return {};
}

// Draft stages of the DSpark kind (deepseek-v4.md §1.4).
Status ReadDspark(const JsonObject& json, ModelConfig& config) {
  if (!json.Has("dspark_block_size")) return {};
  HB_ASSIGN_OR_RETURN(config.dspark_markov_rank, RequiredSize(json, "dspark_markov_rank"));
  HB_ASSIGN_OR_RETURN(const std::optional<const Json*> targets,
                      json.Array("dspark_target_layer_ids"));
  if (!targets) return MakeError("{} is missing", json.Describe("dspark_target_layer_ids"));
  for (const Json& id : **targets) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() >= config.layer_count()) {
      return MakeError("{} names a layer outside 0..{}", json.Describe("dspark_target_layer_ids"),
                       config.layer_count() - 1);
    }
  }
  config.dspark_targets = static_cast<int64_t>((*targets)->size());
  return {};
}

// A token id or a list of them; appends those that are new.
Status ReadTokenIds(const JsonObject& json, std::string_view key, int64_t vocab_size,
                    std::vector<int64_t>& ids) {
  if (!json.Has(key)) return {};
  const Json& value = json.json().at(std::string(key));
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& id : list) {
    if (!id.is_number_integer()) return MakeError("{} is no token id", json.Describe(key));
    const auto number = id.get<int64_t>();
    if (number < 0 || number >= vocab_size) {
      return MakeError("{} is {}, outside the vocabulary of {}", json.Describe(key), number,
                       vocab_size);
    }
    if (std::find(ids.begin(), ids.end(), number) == ids.end()) ids.push_back(number);
  }
  return {};
}

}  // namespace

const char* AttentionKindName(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kWindow:
      return "window";
    case AttentionKind::kC4:
      return "C4";
    case AttentionKind::kC128:
      return "C128";
  }
  return "?";
}

Result<ModelConfig> ParseModelConfig(const Json& value, std::string_view source) {
  HB_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Of(value, std::string(source)));
  HB_RETURN_IF_ERROR(CheckModelType(json));
  HB_RETURN_IF_ERROR(CheckFixedChoices(json));
  ModelConfig config;
  HB_ASSIGN_OR_RETURN(config.vocab_size, RequiredSize(json, "vocab_size"));
  HB_ASSIGN_OR_RETURN(config.hidden_size, RequiredSize(json, "hidden_size"));
  HB_ASSIGN_OR_RETURN(config.max_position_embeddings,
                      RequiredInt(json, "max_position_embeddings", 1, int64_t{1} << 40));
  HB_RETURN_IF_ERROR(ReadAttentionKinds(json, config));
  HB_RETURN_IF_ERROR(ReadRouterKinds(json, config));
  HB_RETURN_IF_ERROR(ReadAttention(json, config));
  HB_RETURN_IF_ERROR(ReadExperts(json, config));
  HB_RETURN_IF_ERROR(ReadHyperConnections(json, config));
  HB_RETURN_IF_ERROR(ReadDspark(json, config));
  std::vector<int64_t> bos;
  HB_RETURN_IF_ERROR(ReadTokenIds(json, "bos_token_id", config.vocab_size, bos));
  if (!bos.empty()) config.bos_token_id = bos.front();
  HB_RETURN_IF_ERROR(ReadTokenIds(json, "eos_token_id", config.vocab_size, config.eos_token_ids));
  HB_ASSIGN_OR_RETURN(const std::optional<JsonObject> quantization,
                      json.Object("quantization_config"));
  if (quantization) config.quantization = quantization->json();
  return config;
}

Result<ModelConfig> ReadModelConfig(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  HB_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  HB_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(json, path.string()));
  const std::filesystem::path generation = directory / "generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(generation, error)) return config;
  HB_ASSIGN_OR_RETURN(const Json defaults, ReadJsonFile(generation));
  HB_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(defaults, generation.string()));
  HB_RETURN_IF_ERROR(ReadTokenIds(object, "eos_token_id", config.vocab_size, config.eos_token_ids));
  return config;
}

}  // namespace halfbyte
