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

// Names of layers that are read but not written: what save_pretrained() of transformers makes of
// them on its way back to official names (seen with 5.8.1, 5.12.1, 5.16.1, 5.20.2 and 5.24.0).
struct Alias {
  Module module;
  bool bare;
  std::string_view official;
  std::string_view hugging_face;
};

constexpr Alias kAliases[] = {
    // 5.16 and later: every kv_norm is called norm.
    {Module::kKvNorm, false, "attn.norm", "self_attn.norm"},
    {Module::kCompressorNorm, false, "", "self_attn.compressor.norm"},
    {Module::kIndexerNorm, false, "", "self_attn.compressor.indexer.norm"},
    // 5.8
    {Module::kIndexerWeights, false, "", "self_attn.compressor.indexer.weights_proj"},
    {Module::kExpertGate, false, "", "mlp.experts..*.w1"},
    {Module::kExpertUp, false, "", "mlp.experts..*.w3"},
    {Module::kExpertDown, false, "", "mlp.experts..*.w2"},
    {Module::kExpertGateUp, true, "ffn.experts.gate_up_proj", ""},
    {Module::kExpertDown, true, "ffn.experts.down_proj", ""},
    // 5.12
    {Module::kExpertGate, false, "", "mlp.experts.*.w1"},
    {Module::kExpertUp, false, "", "mlp.experts.*.w3"},
    {Module::kExpertDown, false, "", "mlp.experts.*.w2"},
    // 5.8 and 5.12, the model without its head
    {Module::kCompressorKv, false, "attn.compressor.kv_proj", ""},
    {Module::kCompressorGate, false, "attn.compressor.gate_proj", ""},
    {Module::kIndexerQB, false, "attn.indexer.q_b_proj", ""},
    {Module::kIndexerApe, true, "attn.indexer.position_bias", ""},
    {Module::kIndexerKv, false, "attn.indexer.kv_proj", ""},
    {Module::kIndexerGate, false, "attn.indexer.gate_proj", ""},
    {Module::kIndexerNorm, false, "attn.indexer.kv_norm", ""},
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

struct Style {
  NamingStyle style;
  std::string_view name;    // for reports
  bool official;            // which column of the tables
  std::string_view global;  // prefix of embed and norm
  std::string_view head;    // of the head
  std::string_view layers;
};

// By NamingStyle. A name that several styles have (norm.weight) belongs to the first.
constexpr std::array<Style, kNamingStyles> kStyles = {{
    {NamingStyle::kOfficial, "official", true, "", "", "layers."},
    {NamingStyle::kHuggingFace, "huggingface", false, "model.", "", "model.layers."},
    {NamingStyle::kOfficialBelowModel, "official, below model.", true, "model.", "",
     "model.layers."},
    {NamingStyle::kHuggingFaceBare, "huggingface, without model.", false, "", "", "layers."},
    {NamingStyle::kLanguageModelOuter, "huggingface (language_model.model.)", false,
     "language_model.model.", "language_model.", "language_model.model.layers."},
    {NamingStyle::kLanguageModelInner, "huggingface (model.language_model.)", false,
     "model.language_model.", "", "model.language_model.layers."},
    {NamingStyle::kOfficialLanguageModelOuter, "official (language_model.model.)", true,
     "language_model.model.", "language_model.", "language_model.model.layers."},
    {NamingStyle::kOfficialLanguageModelInner, "official (model.language_model.)", true,
     "model.language_model.", "", "model.language_model.layers."},
}};
constexpr std::string_view kMtpPrefix = "mtp.";

const Style& StyleOf(NamingStyle style) { return kStyles[static_cast<size_t>(style)]; }

// What a name after the prefix, with "*" for the expert, means.
struct Leaf {
  Module module;
  uint8_t places;
  bool bare;
};
using NameTable = std::unordered_map<std::string_view, Leaf>;

const NameTable& TableOf(bool official) {
  static const auto build = [](bool of_official) {
    NameTable table;
    const auto add = [&](std::string_view name, const Leaf& leaf) {
      // A fused and a per-expert name differ by "*", so no name occurs twice.
      if (!name.empty()) HB_CHECK(table.emplace(name, leaf).second, "{} twice in the table", name);
    };
    for (const Row& row : kRows) {
      add(of_official ? row.official : row.hugging_face, {row.module, row.places, row.bare});
    }
    for (const Alias& alias : kAliases) {
      add(of_official ? alias.official : alias.hugging_face, {alias.module, kInLayer, alias.bare});
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
  Leaf leaf;
  Part part = Part::kWeight;
  int32_t expert = kNoExpert;
};

// "ffn.experts.3.w1.scale" -> "ffn.experts.*.w1.scale" and 3.
std::string WithStarForExpert(std::string_view text, int32_t* expert) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t found = text.find(kExperts);
  if (found == std::string_view::npos) return std::string(text);
  size_t digits = found + kExperts.size();
  if (text.substr(digits).starts_with('.')) ++digits;  // transformers 5.8
  std::string_view rest = text.substr(digits);
  const std::optional<int32_t> number = TakeNumber(rest);
  if (!number) return std::string(text);
  *expert = *number;
  return std::string(text.substr(0, digits)).append("*").append(rest);
}

// What follows the scope's prefix: "ffn.experts.3.w1.scale".
std::optional<Tail> ParseTail(std::string_view text, bool official, Place place) {
  if (text.find('*') != std::string_view::npos) return std::nullopt;  // ours alone
  const NameTable& table = TableOf(official);
  Tail tail;
  const std::string name = WithStarForExpert(text, &tail.expert);
  auto it = table.find(name);
  if (it == table.end() || !it->second.bare) {
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos) return std::nullopt;
    const std::optional<Part> part = PartOf(std::string_view(name).substr(dot + 1));
    it = table.find(std::string_view(name).substr(0, dot));
    if (!part || it == table.end() || it->second.bare) return std::nullopt;
    tail.part = *part;
  }
  tail.leaf = it->second;
  if ((tail.leaf.places & place) == 0) return std::nullopt;
  return tail;
}

std::optional<TensorName> ParseNumbered(std::string_view rest, Scope scope, const Style& style) {
  const std::optional<int32_t> layer = TakeNumber(rest);
  if (!layer || !TakePrefix(rest, ".")) return std::nullopt;
  const Place place = scope == Scope::kMtp ? kInMtp : kInLayer;
  const std::optional<Tail> tail = ParseTail(rest, style.official, place);
  if (!tail) return std::nullopt;
  return TensorName{{scope, *layer, tail->leaf.module, tail->expert}, tail->part, style.style};
}

std::optional<TensorName> ParseGlobal(std::string_view name, const Style& style) {
  for (const bool head : {false, true}) {
    std::string_view rest = name;
    if (!TakePrefix(rest, head ? style.head : style.global)) continue;
    const std::optional<Tail> tail = ParseTail(rest, style.official, kInGlobal);
    if (!tail || (tail->leaf.module == Module::kHead) != head) continue;
    return TensorName{ModuleKey::Global(tail->leaf.module), tail->part, style.style};
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
    return ParseNumbered(rest, Scope::kMtp, StyleOf(NamingStyle::kOfficial));
  }
  for (const Style& style : kStyles) {
    rest = name;
    const std::optional<TensorName> parsed = TakePrefix(rest, style.layers)
                                                 ? ParseNumbered(rest, Scope::kLayer, style)
                                                 : ParseGlobal(name, style);
    if (parsed) return parsed;
  }
  return std::nullopt;
}

std::optional<std::string> FormatTensorName(const ModuleKey& key, Part part, NamingStyle naming) {
  const bool mtp = key.scope == Scope::kMtp;
  const Style& style = StyleOf(naming);
  const bool official = mtp || style.official;
  const Row* row = RowOf(key, official);
  if (row == nullptr || (row->bare && part != Part::kWeight)) return std::nullopt;
  std::string name(official ? row->official : row->hugging_face);
  if (const size_t star = name.find('*'); star != std::string::npos) {
    name.replace(star, 1, std::to_string(key.expert));
  }
  if (!row->bare) name.append(".").append(PartName(part));
  if (mtp) return fmt::format("{}{}.{}", kMtpPrefix, key.layer, name);
  if (key.scope == Scope::kLayer) return fmt::format("{}{}.{}", style.layers, key.layer, name);
  return std::string(key.module == Module::kHead ? style.head : style.global) + name;
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

std::string_view NamingStyleName(NamingStyle style) { return StyleOf(style).name; }
bool HasOfficialNames(NamingStyle style) { return StyleOf(style).official; }

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
