#include "checkpoint/convert/announcement.h"

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

// Patterns over layers for the modules of these encodings; exact names where layers differ.
std::set<std::string> PatternsOf(const ConversionPlan& plan, std::set<ResultEncoding> encodings) {
  std::set<std::string> others;
  for (const ResultModule& module : plan.modules) {
    if (!encodings.contains(module.encoding)) others.insert(OverAllLayers(module.name));
  }
  std::set<std::string> patterns;
  for (const ResultModule& module : plan.modules) {
    if (!encodings.contains(module.encoding)) continue;
    const std::string pattern = OverAllLayers(module.name);
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

// §2.1 where FP8 tensors of a DeepSeek release stay, §2.2 otherwise.
Json ModelOptSection(const ConversionPlan& plan, const Json& source) {
  const bool mixed = Holds(plan, ResultEncoding::kFp8);
  const bool deepseek = mixed && source.is_object() && source.contains("quant_method") &&
                        source["quant_method"] == "fp8";
  Json section = deepseek ? source : Json{{"quant_method", "modelopt"}};
  section["quant_algo"] = mixed ? "MIXED_PRECISION" : "NVFP4";
  section["moe_quant_algo"] = "NVFP4";
  section["kv_cache_quant_algo"] = source.is_object() && source.contains("kv_cache_quant_algo")
                                       ? source["kv_cache_quant_algo"]
                                       : Json(nullptr);
  section["group_size"] = 16;
  Json group = {{"weights", FloatGroups(4, 16)}, {"targets", {"Linear"}}};
  if (HoldsInputScales(plan)) group["input_activations"] = FloatGroups(4, 16);
  section["config_groups"] = {{"group_0", group}};
  section["quantized_layers"] = Json::object();
  for (const ResultModule& module : plan.modules) {
    if (module.encoding != ResultEncoding::kNvfp4) continue;
    section["quantized_layers"][module.name] = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
  }
  section["ignore"] =
      PatternsOf(plan, {ResultEncoding::kPlain, ResultEncoding::kFp8, ResultEncoding::kMxfp4});
  section["producer"] = {{"name", "halfbyte"}};
  return section;
}

// "layers.*.attn.wq_a" -> "re:layers\.\d+\.attn\.wq_a"; a last ".*" stands for anything.
std::string Regex(const std::string& pattern) {
  std::string regex = "re:";
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '*') {
      regex += i + 1 == pattern.size() ? ".*" : "\\d+";
    } else {
      if (pattern[i] == '.') regex += '\\';
      regex += pattern[i];
    }
  }
  return regex;
}

Json RegexesOf(const ConversionPlan& plan, std::set<ResultEncoding> encodings) {
  Json regexes = Json::array();
  for (const std::string& pattern : PatternsOf(plan, std::move(encodings))) {
    regexes.push_back(Regex(pattern));
  }
  return regexes;
}

Json CtGroup(const ConversionPlan& plan, ResultEncoding encoding, const char* format, Json weights,
             Json activations) {
  return {{"format", format},
          {"targets", RegexesOf(plan, {encoding})},
          {"weights", std::move(weights)},
          {"input_activations", std::move(activations)},
          {"output_activations", nullptr}};
}

Json CompressedTensorsSection(const ConversionPlan& plan) {
  constexpr const char* kNvfp4Format = "nvfp4-pack-quantized";
  const bool mixed = Holds(plan, ResultEncoding::kFp8);
  Json weights = FloatGroups(4, 16);
  weights["strategy"] = "tensor_group";
  weights["symmetric"] = true;
  weights["scale_dtype"] = "torch.float8_e4m3fn";
  Json activations = nullptr;
  if (HoldsInputScales(plan)) {
    activations = weights;
    activations["dynamic"] = "local";
  }
  Json groups = {
      {"group_0", CtGroup(plan, ResultEncoding::kNvfp4, kNvfp4Format, weights, activations)}};
  if (mixed) {
    groups["group_1"] = CtGroup(plan, ResultEncoding::kFp8, "float-quantized",
                                {{"num_bits", 8},
                                 {"type", "float"},
                                 {"strategy", "block"},
                                 {"block_structure", {128, 128}},
                                 {"symmetric", true},
                                 {"dynamic", false}},
                                {{"num_bits", 8},
                                 {"type", "float"},
                                 {"strategy", "group"},
                                 {"group_size", 128},
                                 {"symmetric", true},
                                 {"dynamic", true}});
  }
  return {{"quant_method", "compressed-tensors"},
          {"format", mixed ? "mixed-precision" : kNvfp4Format},
          {"quantization_status", "compressed"},
          {"kv_cache_scheme", nullptr},
          {"config_groups", groups},
          {"ignore", RegexesOf(plan, {ResultEncoding::kPlain, ResultEncoding::kMxfp4})}};
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
      config[kSection] = CompressedTensorsSection(plan);
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
