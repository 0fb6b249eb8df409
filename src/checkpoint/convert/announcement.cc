#include "checkpoint/convert/announcement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace halfbyte {
namespace {

// "layers.12.attn.wq_a" -> "layers.*.attn.wq_a"
std::string OverAllLayers(const std::string& name) {
  std::string pattern;
  for (size_t i = 0; i < name.size();) {
    size_t end = name.find('.', i);
    if (end == std::string::npos) end = name.size();
    const std::string piece = name.substr(i, end - i);
    const bool number = !piece.empty() && std::all_of(piece.begin(), piece.end(), [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0;
    });
    if (!pattern.empty()) pattern += '.';
    pattern += number ? "*" : piece;
    i = end + 1;
  }
  return pattern;
}

// Patterns over layers for these modules; exact names where layers differ.
template <class Wanted>
std::set<std::string> PatternsOf(const ConversionPlan& plan, const Wanted& wanted) {
  std::set<std::string> others;
  for (const ResultModule& module : plan.modules) {
    if (!wanted(module)) others.insert(OverAllLayers(module.name));
  }
  std::set<std::string> patterns;
  for (const ResultModule& module : plan.modules) {
    if (!wanted(module)) continue;
    const std::string pattern = module.exact ? module.name : OverAllLayers(module.name);
    const std::string name = others.contains(pattern) ? module.name : pattern;
    patterns.insert(module.routed_experts ? name + ".*" : name);
  }
  return patterns;
}

bool Holds(const ConversionPlan& plan, ResultEncoding encoding) {
  return std::any_of(plan.modules.begin(), plan.modules.end(),
                     [&](const ResultModule& module) { return module.encoding == encoding; });
}

bool HoldsInputScales(const ConversionPlan& plan) {
  return std::any_of(plan.modules.begin(), plan.modules.end(), [](const ResultModule& module) {
    return module.encoding == ResultEncoding::kNvfp4 && module.has_input_scale;
  });
}

Json FloatGroups(int bits, int group) {
  return {{"num_bits", bits}, {"type", "float"}, {"group_size", group}, {"dynamic", false}};
}

// ModelOpt's name of how a module is stored; nothing if it has none.
const char* ModelOptAlgorithm(const ResultModule& module) {
  if (module.encoding == ResultEncoding::kNvfp4) return "NVFP4";
  if (module.encoding != ResultEncoding::kFp8) return nullptr;
  if (module.scale_rows == 0) return "FP8";
  if (module.scale_columns == 0) return "FP8_PER_CHANNEL_PER_TOKEN";
  return module.scale_rows == 128 && module.scale_columns == 128 ? "FP8_PB_WO" : nullptr;
}

// Of the source's section; null if it says nothing.
Json Claim(const Json& source, const char* key) {
  return source.is_object() ? source.value(key, Json(nullptr)) : Json(nullptr);
}

bool IsFp8Scheme(const Json& scheme) {
  return scheme.is_object() && scheme.value("num_bits", Json()) == 8 &&
         scheme.value("type", Json()) == "float";
}

// What the source says of its KV cache, whose scales are copied, in words of compressed-tensors.
Json KvCacheScheme(const Json& source) {
  const Json scheme = Claim(source, "kv_cache_scheme");
  if (!scheme.is_null() || Claim(source, "kv_cache_quant_algo") != "FP8") return scheme;
  return {{"num_bits", 8},
          {"type", "float"},
          {"strategy", "tensor"},
          {"symmetric", true},
          {"dynamic", false}};
}

// §2.1 where FP8 tensors of a DeepSeek release stay, and are what readers take for granted; §2.2
// otherwise.
Json ModelOptSection(const ConversionPlan& plan, const Json& source) {
  const bool mixed = Holds(plan, ResultEncoding::kFp8);
  const bool deepseek = mixed && source.is_object() && source.contains("quant_method") &&
                        source["quant_method"] == "fp8";
  Json section = deepseek ? source : Json{{"quant_method", "modelopt"}};
  section["quant_algo"] = mixed ? "MIXED_PRECISION" : "NVFP4";
  section["moe_quant_algo"] = "NVFP4";
  section["kv_cache_quant_algo"] = Claim(source, "kv_cache_quant_algo");
  if (IsFp8Scheme(Claim(source, "kv_cache_scheme"))) section["kv_cache_quant_algo"] = "FP8";
  section["group_size"] = 16;
  Json group = {{"weights", FloatGroups(4, 16)}, {"targets", {"Linear"}}};
  if (HoldsInputScales(plan)) group["input_activations"] = FloatGroups(4, 16);
  section["config_groups"] = {{"group_0", group}};
  section["quantized_layers"] = Json::object();
  const auto algorithm = [&](const ResultModule& module) {
    const bool taken_for_granted = deepseek && module.encoding == ResultEncoding::kFp8;
    return taken_for_granted ? nullptr : ModelOptAlgorithm(module);
  };
  for (const ResultModule& module : plan.modules) {
    const char* name = algorithm(module);
    if (name == nullptr) continue;
    section["quantized_layers"][module.name] = {{"quant_algo", name}};
    if (module.encoding != ResultEncoding::kNvfp4) continue;
    section["quantized_layers"][module.name]["group_size"] = 16;
  }
  section["ignore"] =
      PatternsOf(plan, [&](const ResultModule& module) { return algorithm(module) == nullptr; });
  section["producer"] = {{"name", "halfbyte"}};
  return section;
}

// "layers.*.attn.wq_a" -> "re:.*layers\.\d+\.attn\.wq_a$"; a last ".*" stands for anything. Readers
// match from the start of the name, and put a prefix of their own before ours (vLLM: "model.").
std::string Regex(const std::string& pattern) {
  std::string regex = "re:.*";
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '*') {
      regex += i + 1 == pattern.size() ? ".*" : "\\d+";
    } else {
      if (pattern[i] == '.') regex += '\\';
      regex += pattern[i];
    }
  }
  return pattern.ends_with('*') ? regex : regex + "$";
}

// What the tensors of a module need to be read: all that a group of compressed-tensors states.
struct CtScheme {
  ResultEncoding encoding = ResultEncoding::kNvfp4;
  int64_t scale_rows = 0;
  int64_t scale_columns = 0;

  explicit CtScheme(const ResultModule& module)
      : encoding(module.encoding),
        scale_rows(module.scale_rows),
        scale_columns(module.scale_columns) {}
  friend auto operator<=>(const CtScheme&, const CtScheme&) = default;
};

const char* CtFormat(ResultEncoding encoding) {
  return encoding == ResultEncoding::kNvfp4   ? "nvfp4-pack-quantized"
         : encoding == ResultEncoding::kMxfp4 ? "mxfp4-pack-quantized"
                                              : "float-quantized";
}

// How the elements share scales.
Json CtStrategy(const CtScheme& scheme) {
  if (scheme.encoding == ResultEncoding::kNvfp4) {
    return {{"strategy", "tensor_group"}, {"group_size", 16}};
  }
  if (scheme.encoding == ResultEncoding::kMxfp4) return {{"strategy", "group"}, {"group_size", 32}};
  if (scheme.scale_rows == 0) return {{"strategy", "tensor"}};
  if (scheme.scale_columns == 0) return {{"strategy", "channel"}};
  if (scheme.scale_rows == 1) {
    return {{"strategy", "group"}, {"group_size", scheme.scale_columns}};
  }
  return {{"strategy", "block"}, {"block_structure", {scheme.scale_rows, scheme.scale_columns}}};
}

Json CtWeights(const CtScheme& scheme) {
  Json weights = CtStrategy(scheme);
  weights["num_bits"] = scheme.encoding == ResultEncoding::kFp8 ? 8 : 4;
  weights["type"] = "float";
  weights["symmetric"] = true;
  weights["dynamic"] = false;
  if (scheme.encoding == ResultEncoding::kNvfp4) weights["scale_dtype"] = "torch.float8_e4m3fn";
  if (scheme.encoding == ResultEncoding::kMxfp4) weights["scale_dtype"] = "torch.uint8";
  return weights;
}

Json CtActivations(const CtScheme& scheme, bool input_scales) {
  if (scheme.encoding == ResultEncoding::kMxfp4) return nullptr;
  Json activations = CtWeights(scheme);
  if (scheme.encoding == ResultEncoding::kNvfp4) {
    if (!input_scales) return nullptr;
    activations["dynamic"] = "local";
    return activations;
  }
  activations = {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}};
  activations["dynamic"] = !input_scales;
  if (input_scales) {
    activations["strategy"] = "tensor";
  } else if (scheme.scale_columns > 0) {
    activations["strategy"] = "group";
    activations["group_size"] = scheme.scale_columns;
  } else {
    activations["strategy"] = "token";
  }
  return activations;
}

// Names rather than patterns but for experts: readers that rename modules rename these along.
Json CtTargets(const ConversionPlan& plan, const CtScheme& scheme) {
  Json targets = Json::array();
  const auto experts = PatternsOf(plan, [&](const ResultModule& module) {
    return module.routed_experts && CtScheme(module) == scheme;
  });
  for (const std::string& pattern : experts) targets.push_back(Regex(pattern));
  for (const ResultModule& module : plan.modules) {
    if (!module.routed_experts && CtScheme(module) == scheme) targets.push_back(module.name);
  }
  return targets;
}

Json CompressedTensorsSection(const ConversionPlan& plan, const Json& source) {
  std::map<CtScheme, bool> schemes;  // whether there are input scales
  for (const ResultModule& module : plan.modules) {
    if (module.encoding != ResultEncoding::kPlain) {
      schemes[CtScheme(module)] |= module.has_input_scale;
    }
  }
  Json groups = Json::object();
  for (const auto& [scheme, input_scales] : schemes) {
    groups[fmt::format("group_{}", groups.size())] = {
        {"format", CtFormat(scheme.encoding)},
        {"targets", CtTargets(plan, scheme)},
        {"weights", CtWeights(scheme)},
        {"input_activations", CtActivations(scheme, input_scales)},
        {"output_activations", nullptr}};
  }
  Json ignore = Json::array();
  for (const std::string& pattern : PatternsOf(plan, [](const ResultModule& module) {
         return module.encoding == ResultEncoding::kPlain;
       })) {
    ignore.push_back(Regex(pattern));
  }
  const bool mixed = groups.size() > 1;
  return {{"quant_method", "compressed-tensors"},
          {"format", mixed ? "mixed-precision" : CtFormat(schemes.begin()->first.encoding)},
          {"quantization_status", "compressed"},
          {"kv_cache_scheme", KvCacheScheme(source)},
          {"config_groups", groups},
          {"ignore", ignore}};
}

}  // namespace

Json MakeIndex(const ConversionPlan& plan) {
  std::map<std::string, std::string> weight_map;
  for (const ShardPlan& shard : plan.shards) {
    for (const TensorSpec& output : shard.outputs) weight_map[output.name] = shard.file;
  }
  return {{"metadata", {{"total_size", plan.output_bytes()}}}, {"weight_map", weight_map}};
}

Json MakeConfig(const ConversionPlan& plan, Json config) {
  constexpr const char* kSection = "quantization_config";
  const Json source = config.contains(kSection) ? config[kSection] : Json(nullptr);
  // "fp8" would be untrue now; "fp4" still names the experts' element type, unless they are BF16.
  const bool bf16 = plan.format == TargetFormat::kBf16;
  if (bf16 || config.value("expert_dtype", Json()) == "fp8") config.erase("expert_dtype");
  switch (plan.format) {
    case TargetFormat::kModelOptNvfp4:
      config[kSection] = ModelOptSection(plan, source);
      break;
    case TargetFormat::kCtNvfp4:
      config[kSection] = CompressedTensorsSection(plan, source);
      break;
    case TargetFormat::kBf16:
      config.erase(kSection);
      break;
  }
  return config;
}

Json MakeHfQuantConfig(const Json& config) {
  Json quantization = config.at("quantization_config");
  const Json producer = quantization["producer"];
  quantization["exclude_modules"] = quantization["ignore"];
  for (const char* key : {"producer", "ignore", "quant_method", "config_groups"}) {
    quantization.erase(key);
  }
  return {{"producer", producer}, {"quantization", quantization}};
}

}  // namespace halfbyte
