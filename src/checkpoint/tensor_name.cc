#include "checkpoint/tensor_name.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <unordered_map>

#include "base/check.h"

namespace halfbyte {
namespace {

// Where a module's tensors may appear.
enum Place : uint8_t { kInGlobal = 1, kInLayer = 2, kInMtp = 4 };
constexpr uint8_t kInBlock = kInLayer | kInMtp;

// One line per module. `official` and `hugging_face` follow the scope's prefix; "*" stands for the
// expert. A bare module's name is complete, the others get ".weight", ".scale", ...
// The first line of a module is the one that FormatTensorName writes; further lines are aliases.
struct Row {
  Module module;
  uint8_t places;
  bool bare;
  std::string_view official;      // empty: no such tensor
  std::string_view hugging_face;  // empty: no such tensor
};

constexpr Row kRows[] = {
    {Module::kEmbed, kInGlobal, false, "embed", "embed_tokens"},
    {Module::kHead, kInGlobal, false, "head", "lm_head"},
    {Module::kNorm, kInGlobal | kInMtp, false, "norm", "norm"},
    {Module::kHcHeadFn, kInGlobal | kInMtp, true, "hc_head_fn", "hc_head.hc_fn"},
    {Module::kHcHeadBase, kInGlobal | kInMtp, true, "hc_head_base", "hc_head.hc_base"},
    {Module::kHcHeadScale, kInGlobal | kInMtp, true, "hc_head_scale", "hc_head.hc_scale"},
    {Module::kAttentionNorm, kInBlock, false, "attn_norm", "input_layernorm"},
    {Module::kFfnNorm, kInBlock, false, "ffn_norm", "post_attention_layernorm"},
    {Module::kHcAttentionFn, kInBlock, true, "hc_attn_fn", "attn_hc.fn"},
    {Module::kHcAttentionBase, kInBlock, true, "hc_attn_base", "attn_hc.base"},
    {Module::kHcAttentionScale, kInBlock, true, "hc_attn_scale", "attn_hc.scale"},
    {Module::kHcFfnFn, kInBlock, true, "hc_ffn_fn", "ffn_hc.fn"},
    {Module::kHcFfnBase, kInBlock, true, "hc_ffn_base", "ffn_hc.base"},
    {Module::kHcFfnScale, kInBlock, true, "hc_ffn_scale", "ffn_hc.scale"},
    {Module::kAttentionSink, kInBlock, true, "attn.attn_sink", "self_attn.sinks"},
    {Module::kQA, kInBlock, false, "attn.wq_a", "self_attn.q_a_proj"},
    {Module::kQNorm, kInBlock, false, "attn.q_norm", "self_attn.q_a_norm"},
    {Module::kQB, kInBlock, false, "attn.wq_b", "self_attn.q_b_proj"},
    {Module::kKv, kInBlock, false, "attn.wkv", "self_attn.kv_proj"},
    {Module::kKvNorm, kInBlock, false, "attn.kv_norm", "self_attn.kv_norm"},
    {Module::kOA, kInBlock, false, "attn.wo_a", "self_attn.o_a_proj"},
    {Module::kOB, kInBlock, false, "attn.wo_b", "self_attn.o_b_proj"},
    {Module::kCompressorApe, kInLayer, true, "attn.compressor.ape",
     "self_attn.compressor.position_bias"},
    {Module::kCompressorKv, kInLayer, false, "attn.compressor.wkv", "self_attn.compressor.kv_proj"},
    {Module::kCompressorGate, kInLayer, false, "attn.compressor.wgate",
     "self_attn.compressor.gate_proj"},
    {Module::kCompressorNorm, kInLayer, false, "attn.compressor.norm",
     "self_attn.compressor.kv_norm"},
    {Module::kIndexerQB, kInLayer, false, "attn.indexer.wq_b",
     "self_attn.compressor.indexer.q_b_proj"},
    {Module::kIndexerWeights, kInLayer, false, "attn.indexer.weights_proj",
     "self_attn.compressor.indexer.scorer.weights_proj"},
    {Module::kIndexerWeights, kInLayer, false, "",
     "self_attn.compressor.indexer.weights_proj"},  // other versions of transformers
    {Module::kIndexerApe, kInLayer, true, "attn.indexer.compressor.ape",
     "self_attn.compressor.indexer.position_bias"},
    {Module::kIndexerKv, kInLayer, false, "attn.indexer.compressor.wkv",
     "self_attn.compressor.indexer.kv_proj"},
    {Module::kIndexerGate, kInLayer, false, "attn.indexer.compressor.wgate",
     "self_attn.compressor.indexer.gate_proj"},
    {Module::kIndexerNorm, kInLayer, false, "attn.indexer.compressor.norm",
     "self_attn.compressor.indexer.kv_norm"},
    {Module::kRouter, kInBlock, false, "ffn.gate", "mlp.gate"},
    {Module::kRouterBias, kInBlock, true, "ffn.gate.bias", "mlp.gate.e_score_correction_bias"},
    {Module::kRouterTable, kInBlock, true, "ffn.gate.tid2eid", "mlp.gate.tid2eid"},
    {Module::kExpertGate, kInBlock, false, "ffn.experts.*.w1", "mlp.experts.*.gate_proj"},
    {Module::kExpertUp, kInBlock, false, "ffn.experts.*.w3", "mlp.experts.*.up_proj"},
    {Module::kExpertDown, kInBlock, false, "ffn.experts.*.w2", "mlp.experts.*.down_proj"},
    {Module::kExpertGateUp, kInBlock, true, "", "mlp.experts.gate_up_proj"},
    {Module::kExpertDown, kInBlock, true, "", "mlp.experts.down_proj"},  // fused: no expert
    {Module::kSharedGate, kInBlock, false, "ffn.shared_experts.w1", "mlp.shared_experts.gate_proj"},
    {Module::kSharedUp, kInBlock, false, "ffn.shared_experts.w3", "mlp.shared_experts.up_proj"},
    {Module::kSharedDown, kInBlock, false, "ffn.shared_experts.w2", "mlp.shared_experts.down_proj"},
    {Module::kMtpEmbedNorm, kInMtp, false, "enorm", ""},
    {Module::kMtpHiddenNorm, kInMtp, false, "hnorm", ""},
    {Module::kMtpEmbedProj, kInMtp, false, "e_proj", ""},
    {Module::kMtpHiddenProj, kInMtp, false, "h_proj", ""},
    {Module::kMtpMainNorm, kInMtp, false, "main_norm", ""},
    {Module::kMtpMainProj, kInMtp, false, "main_proj", ""},
    {Module::kMtpMarkov1, kInMtp, false, "markov_head.markov_w1", ""},
    {Module::kMtpMarkov2, kInMtp, false, "markov_head.markov_w2", ""},
    {Module::kMtpConfidence, kInMtp, false, "confidence_head.proj", ""},
};

constexpr std::array<std::string_view, kParts> kPartNames = {"weight",
                                                             "bias",
                                                             "scale",
                                                             "weight_scale",
                                                             "weight_scale_2",
                                                             "weight_scale_inv",
                                                             "input_scale",
                                                             "weight_packed",
                                                             "weight_global_scale",
                                                             "input_global_scale"};

struct StylePrefix {
  NamingStyle style;
  std::string_view global;  // of embed and norm
  std::string_view head;    // of the head
  std::string_view layers;
};

constexpr StylePrefix kPrefixes[] = {
    {NamingStyle::kOfficial, "", "", "layers."},
    {NamingStyle::kHuggingFace, "model.", "", "model.layers."},
    {NamingStyle::kLanguageModelOuter, "language_model.model.", "language_model.",
     "language_model.model.layers."},
    {NamingStyle::kLanguageModelInner, "model.language_model.", "", "model.language_model.layers."},
};
constexpr std::string_view kMtpPrefix = "mtp.";

bool IsOfficial(NamingStyle style) { return style == NamingStyle::kOfficial; }

// Name after the prefix, with "*" for the expert -> row.
using NameTable = std::unordered_map<std::string_view, const Row*>;

const NameTable& TableOf(bool official) {
  static const auto build = [](bool of_official) {
    NameTable table;
    for (const Row& row : kRows) {
      const std::string_view name = of_official ? row.official : row.hugging_face;
      if (name.empty()) continue;
      // A fused and a per-expert name differ by "*", so no name occurs twice.
      HB_CHECK(table.emplace(name, &row).second, "{} twice in the name table", name);
    }
    return table;
  };
  static const NameTable official_table = build(true);
  static const NameTable hugging_face_table = build(false);
  return official ? official_table : hugging_face_table;
}

std::optional<int32_t> TakeNumber(std::string_view& text) {
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<size_t>(end - text.data());
  if (error != std::errc() || number < 0) return std::nullopt;
  if (length > 1 && text[0] == '0') return std::nullopt;  // "01" is somebody else's name
  text.remove_prefix(length);
  return number;
}

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<Part> PartOf(std::string_view name) {
  for (int i = 0; i < kParts; ++i) {
    if (kPartNames[static_cast<size_t>(i)] == name) return static_cast<Part>(i);
  }
  return std::nullopt;
}

struct Tail {
  const Row* row = nullptr;
  Part part = Part::kWeight;
  int32_t expert = kNoExpert;
};

// What follows the scope's prefix: "ffn.experts.3.w1.scale".
std::optional<Tail> ParseTail(std::string_view text, bool official, Place place) {
  if (text.find('*') != std::string_view::npos) return std::nullopt;  // ours alone
  const NameTable& table = TableOf(official);
  Tail tail;
  std::string with_star;
  const std::string_view experts = official ? "ffn.experts." : "mlp.experts.";
  std::string_view rest = text;
  if (TakePrefix(rest, experts)) {
    if (const std::optional<int32_t> expert = TakeNumber(rest)) {
      tail.expert = *expert;
      with_star.append(experts).append("*").append(rest);
      text = with_star;
    }
  }
  auto it = table.find(text);
  if (it != table.end() && it->second->bare) {
    tail.row = it->second;
  } else {
    const size_t dot = text.rfind('.');
    if (dot == std::string_view::npos) return std::nullopt;
    const std::optional<Part> part = PartOf(text.substr(dot + 1));
    it = table.find(text.substr(0, dot));
    if (!part || it == table.end() || it->second->bare) return std::nullopt;
    tail.row = it->second;
    tail.part = *part;
  }
  if ((tail.row->places & place) == 0) return std::nullopt;
  return tail;
}

std::optional<TensorName> ParseNumbered(std::string_view rest, Scope scope, NamingStyle style) {
  const std::optional<int32_t> layer = TakeNumber(rest);
  if (!layer || !TakePrefix(rest, ".")) return std::nullopt;
  const bool mtp = scope == Scope::kMtp;
  const std::optional<Tail> tail =
      ParseTail(rest, mtp || IsOfficial(style), mtp ? kInMtp : kInLayer);
  if (!tail) return std::nullopt;
  return TensorName{{scope, *layer, tail->row->module, tail->expert}, tail->part, style};
}

std::optional<TensorName> ParseGlobal(std::string_view name, const StylePrefix& prefix) {
  for (const bool head : {false, true}) {
    std::string_view rest = name;
    if (!TakePrefix(rest, head ? prefix.head : prefix.global)) continue;
    const std::optional<Tail> tail = ParseTail(rest, IsOfficial(prefix.style), kInGlobal);
    if (!tail || (tail->row->module == Module::kHead) != head) continue;
    return TensorName{ModuleKey::Global(tail->row->module), tail->part, prefix.style};
  }
  return std::nullopt;
}

const Row* RowOf(const ModuleKey& key, bool official) {
  const uint8_t place = key.scope == Scope::kGlobal  ? kInGlobal
                        : key.scope == Scope::kLayer ? kInLayer
                                                     : kInMtp;
  for (const Row& row : kRows) {
    const std::string_view name = official ? row.official : row.hugging_face;
    if (row.module != key.module || (row.places & place) == 0 || name.empty()) continue;
    const bool per_expert = name.find('*') != std::string_view::npos;
    if (per_expert == (key.expert != kNoExpert)) return &row;
  }
  return nullptr;
}

}  // namespace

std::optional<TensorName> ParseTensorName(std::string_view name) {
  std::string_view rest = name;
  if (TakePrefix(rest, kMtpPrefix)) {
    return ParseNumbered(rest, Scope::kMtp, NamingStyle::kOfficial);
  }
  for (const StylePrefix& prefix : kPrefixes) {
    rest = name;
    if (TakePrefix(rest, prefix.layers)) return ParseNumbered(rest, Scope::kLayer, prefix.style);
  }
  for (const StylePrefix& prefix : kPrefixes) {
    if (std::optional<TensorName> parsed = ParseGlobal(name, prefix)) return parsed;
  }
  return std::nullopt;
}

std::optional<std::string> FormatTensorName(const ModuleKey& key, Part part, NamingStyle style) {
  const bool mtp = key.scope == Scope::kMtp;
  const bool official = mtp || IsOfficial(style);
  const Row* row = RowOf(key, official);
  if (row == nullptr || (row->bare && part != Part::kWeight)) return std::nullopt;
  std::string name(official ? row->official : row->hugging_face);
  if (const size_t star = name.find('*'); star != std::string::npos) {
    name.replace(star, 1, std::to_string(key.expert));
  }
  if (!row->bare) name.append(".").append(PartName(part));
  if (mtp) return fmt::format("{}{}.{}", kMtpPrefix, key.layer, name);
  const StylePrefix& prefix = kPrefixes[static_cast<size_t>(style)];
  if (key.scope == Scope::kLayer) return fmt::format("{}{}.{}", prefix.layers, key.layer, name);
  return std::string(key.module == Module::kHead ? prefix.head : prefix.global) + name;
}

std::string_view ModuleName(Module module) {
  if (module == Module::kExpertGateUp) return "experts.gate_up";
  if (module == Module::kExpertGate) return "experts.w1 (gate)";
  if (module == Module::kExpertUp) return "experts.w3 (up)";
  if (module == Module::kExpertDown) return "experts.w2 (down)";
  for (const Row& row : kRows) {
    if (row.module == module) return row.official;
  }
  return "?";
}

std::string_view PartName(Part part) { return kPartNames[static_cast<size_t>(part)]; }

std::string_view NamingStyleName(NamingStyle style) {
  switch (style) {
    case NamingStyle::kOfficial:
      return "official";
    case NamingStyle::kHuggingFace:
      return "huggingface";
    case NamingStyle::kLanguageModelOuter:
      return "huggingface (language_model.model.)";
    case NamingStyle::kLanguageModelInner:
      return "huggingface (model.language_model.)";
  }
  return "?";
}

std::string Describe(const ModuleKey& key) {
  std::string text;
  if (key.scope == Scope::kLayer) text = fmt::format("layer {} ", key.layer);
  if (key.scope == Scope::kMtp) text = fmt::format("mtp stage {} ", key.layer);
  if (key.expert != kNoExpert) text += fmt::format("expert {} ", key.expert);
  return text.append(ModuleName(key.module));
}

bool IsRoutedExpert(Module module) {
  return module == Module::kExpertGate || module == Module::kExpertUp ||
         module == Module::kExpertDown || module == Module::kExpertGateUp;
}

bool IsSharedExpert(Module module) {
  return module == Module::kSharedGate || module == Module::kSharedUp ||
         module == Module::kSharedDown;
}

}  // namespace halfbyte
