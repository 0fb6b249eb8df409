#include "checkpoint/quantization_config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "base/json.h"
#include "checkpoint/exclusions.h"

namespace halfbyte {
namespace {

constexpr std::string_view kMixed = "MIXED_PRECISION";

// Claims of one file.
struct Announcement {
  std::string file;
  std::set<std::string> formats;  // "NVFP4", "MXFP4", "FP8", or whatever else it says
  std::string algorithm;          // ModelOpt's, of the experts: "NVFP4", or empty
  std::string everything;         // of all that nothing else is said about: quant_algo, or empty
  std::string kv_cache;           // the field that announces a quantized KV cache, or empty
  std::optional<int64_t> group_size;
  std::vector<std::string> excluded;
};

// The format that an algorithm of ModelOpt stores: "NVFP4_AWQ" and "W4A16_NVFP4" are NVFP4.
std::string FormatOfAlgorithm(const std::string& algorithm) {
  for (const char* format : {"NVFP4", "MXFP4", "FP8"}) {
    if (algorithm.find(format) != std::string::npos) return format;
  }
  return algorithm;
}

// What a format of compressed-tensors stores, from its name, else from the numbers of its weights.
std::string FormatOfGroup(const std::string& format, const Json& group) {
  if (format == "nvfp4-pack-quantized") return "NVFP4";
  if (format == "mxfp4-pack-quantized") return "MXFP4";
  const Json weights = group.is_object() ? group.value("weights", Json()) : Json();
  if (!weights.is_object() || weights.value("type", Json()) != "float") return format;
  if (weights.value("num_bits", Json()) == 8) return "FP8";
  if (weights.value("num_bits", Json()) != 4) return format;
  return weights.value("group_size", Json()) == 32 ? "MXFP4" : "NVFP4";
}

Status ReadCompressedTensors(const JsonObject& section, Announcement& claims) {
  HB_ASSIGN_OR_RETURN(const std::optional<std::string> format, section.String("format"));
  HB_ASSIGN_OR_RETURN(const std::optional<JsonObject> groups, section.Object("config_groups"));
  const Json none = Json::object();
  for (const auto& [name, group] : (groups ? groups->json() : none).items()) {
    const bool named = group.is_object() && group.contains("format") && group["format"].is_string();
    const std::string own = named ? group["format"].get<std::string>() : format.value_or("");
    claims.formats.insert(FormatOfGroup(own, group));
  }
  if (claims.formats.empty() && format) claims.formats.insert(FormatOfGroup(*format, Json()));
  claims.formats.erase("");
  if (claims.formats.contains("NVFP4")) claims.algorithm = "NVFP4";
  return {};
}

Status ReadModelOpt(const JsonObject& section, Announcement& claims) {
  HB_ASSIGN_OR_RETURN(const std::optional<std::string> experts, section.String("moe_quant_algo"));
  HB_ASSIGN_OR_RETURN(const std::optional<std::string> all, section.String("quant_algo"));
  claims.everything = all.value_or("");
  claims.algorithm = experts ? *experts : claims.everything == kMixed ? "" : claims.everything;
  for (const std::string& algorithm : {claims.everything, claims.algorithm}) {
    if (algorithm != kMixed) claims.formats.insert(FormatOfAlgorithm(algorithm));
  }
  HB_ASSIGN_OR_RETURN(const std::optional<JsonObject> layers, section.Object("quantized_layers"));
  const Json none = Json::object();
  for (const auto& [name, layer] : (layers ? layers->json() : none).items()) {
    const Json algorithm = layer.is_object() ? layer.value("quant_algo", Json()) : Json();
    if (algorithm.is_string()) claims.formats.insert(FormatOfAlgorithm(algorithm));
  }
  claims.formats.erase("");
  return {};
}

Status ReadMethod(const JsonObject& section, Announcement& claims) {
  HB_ASSIGN_OR_RETURN(const std::optional<std::string> method, section.String("quant_method"));
  HB_RETURN_IF_ERROR(ReadModelOpt(section, claims));
  if (!method || method->starts_with("modelopt")) {
    if (!claims.formats.empty()) return {};
    return ReadCompressedTensors(section, claims);
  }
  if (*method == "compressed-tensors") return ReadCompressedTensors(section, claims);
  if (*method == "fp8") {
    claims.formats.insert("FP8");
  } else {
    claims.formats.insert(*method == "mxfp4" ? "MXFP4" : *method);
  }
  return {};
}

Result<Announcement> ReadAnnouncement(const JsonObject& section, std::string file,
                                      std::string_view exclude_key) {
  Announcement claims{.file = std::move(file)};
  HB_RETURN_IF_ERROR(ReadMethod(section, claims));
  for (const char* key : {"kv_cache_scheme", "kv_cache_quant_algo"}) {
    if (section.Has(key)) claims.kv_cache = key;
  }
  HB_ASSIGN_OR_RETURN(claims.group_size, section.Int("group_size"));
  HB_ASSIGN_OR_RETURN(const std::optional<const Json*> excluded, section.Array(exclude_key));
  if (!excluded) return claims;
  for (const Json& pattern : **excluded) {
    if (!pattern.is_string()) {
      return MakeError("{} holds something that is no string", section.Describe(exclude_key));
    }
    claims.excluded.push_back(pattern.get<std::string>());
  }
  return claims;
}

Result<std::optional<Announcement>> ReadMain(const ModelCheckpoint& model) {
  if (!model.has_config() || !model.config().quantization) return std::nullopt;
  HB_ASSIGN_OR_RETURN(
      const JsonObject section,
      JsonObject::Of(*model.config().quantization, "config.json", "quantization_config"));
  constexpr const char* kOwn = "modules_to_not_convert";  // of fp8, mxfp4 and others
  HB_ASSIGN_OR_RETURN(
      Announcement claims,
      ReadAnnouncement(section, "config.json", section.Has("ignore") ? "ignore" : kOwn));
  return claims;
}

Result<std::optional<Announcement>> ReadSide(const ModelCheckpoint& model) {
  constexpr const char* kName = "hf_quant_config.json";
  const std::filesystem::path path = model.checkpoint().directory() / kName;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  HB_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  HB_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, kName));
  HB_ASSIGN_OR_RETURN(const std::optional<JsonObject> section, object.Object("quantization"));
  if (!section) return MakeError("{} is missing", object.Describe("quantization"));
  HB_ASSIGN_OR_RETURN(Announcement claims, ReadAnnouncement(*section, kName, "exclude_modules"));
  return claims;
}

// One algorithm for everything and another for the experts: readers believe either.
void CheckClaims(const Announcement& claims, Findings& findings) {
  if (claims.everything.empty() || claims.everything == kMixed) return;
  if (claims.everything == claims.algorithm) return;
  findings.push_back({Severity::kError, claims.file,
                      fmt::format("says quant_algo {}, but {} for the experts; both together are "
                                  "quant_algo {}",
                                  claims.everything, claims.algorithm, kMixed)});
}

void CompareClaims(const Announcement& main, const Announcement& side, Findings& findings) {
  const auto differ = [&](const std::string& what) {
    findings.push_back({Severity::kError, side.file, what});
  };
  if (main.algorithm != side.algorithm && !main.algorithm.empty() && !side.algorithm.empty()) {
    differ(fmt::format("says {}, but config.json says {}", side.algorithm, main.algorithm));
  }
  if (main.group_size && side.group_size && *main.group_size != *side.group_size) {
    differ(fmt::format("says group_size {}, but config.json says {}", *side.group_size,
                       *main.group_size));
  }
  const std::set<std::string> ignored(main.excluded.begin(), main.excluded.end());
  const std::set<std::string> excluded(side.excluded.begin(), side.excluded.end());
  if (ignored != excluded && !ignored.empty() && !excluded.empty()) {
    differ("its exclude_modules differ from ignore in config.json");
  }
}

const char* EncodingOf(StoredFormat format) {
  switch (format) {
    case StoredFormat::kModelOptNvfp4:
    case StoredFormat::kCtNvfp4:
      return "NVFP4";
    case StoredFormat::kDeepSeekMxfp4:
    case StoredFormat::kCtMxfp4:
      return "MXFP4";
    case StoredFormat::kFp8Tensor:
    case StoredFormat::kFp8Channel:
    case StoredFormat::kFp8Block:
      return "FP8";
    default:
      return "";
  }
}

void CompareWithTensors(const std::optional<Announcement>& claims, const ModelCheckpoint& model,
                        Findings& findings) {
  const std::set<std::string> stored = StoredQuantization(model);
  const std::string expert_dtype =
      model.has_config() ? model.config().expert_dtype.value_or("") : "";
  std::set<std::string> announced = claims ? claims->formats : std::set<std::string>();
  for (const std::string& format : stored) {
    const bool fp4 = format == "MXFP4" && expert_dtype == "fp4";
    if (announced.contains(format) || fp4) continue;
    findings.push_back(
        {Severity::kNote, claims ? claims->file : "config.json",
         fmt::format("does not announce {0}, but some weights are stored as {0}", format)});
  }
  for (const std::string& format : announced) {
    if (stored.contains(format)) continue;
    findings.push_back(
        {Severity::kWarning, claims->file,
         fmt::format("announces {0}, but no weight is stored as {0}: loaders that believe it fail "
                     "or compute garbage; correct the quantization section or remove it",
                     format)});
  }
  if (announced.contains("NVFP4") && claims->group_size.value_or(16) != 16) {
    findings.push_back({Severity::kError, claims->file,
                        fmt::format("NVFP4 has groups of 16, not {}", *claims->group_size)});
  }
}

// expert_dtype against the first expert.
void CheckExpertDtype(const ModelCheckpoint& model, Findings& findings) {
  if (!model.has_config() || !model.config().expert_dtype) return;
  const std::string& dtype = *model.config().expert_dtype;
  if (dtype != "fp8" && dtype != "fp4") return;
  const Result<StoredWeight> weight = model.FindWeight(ModuleKey::Layer(0, Module::kExpertGate, 0));
  if (!weight) return;
  const WeightFormat format = weight->matrix.format;
  const bool right = dtype == "fp8"
                         ? format == WeightFormat::kFp8
                         : format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4;
  if (right) return;
  findings.push_back({Severity::kWarning, "config.json",
                      fmt::format("expert_dtype is {}, but experts are stored as {}", dtype,
                                  StoredFormatName(weight->format))});
}

// Scales of a quantized KV cache have names of their own, which no table of the weights has.
bool IsKvCacheScale(std::string_view name) {
  constexpr std::array<std::string_view, 5> kEnds = {
      ".k_scale", ".v_scale", ".kv_scale", ".k_proj.output_scale", ".v_proj.output_scale"};
  return std::any_of(kEnds.begin(), kEnds.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

void CheckKvCache(const Announcement& claims, const ModelCheckpoint& model, Findings& findings) {
  if (claims.kv_cache.empty()) return;
  const CheckpointTensor* first = nullptr;
  int64_t scales = 0;
  for (const CheckpointTensor& tensor : model.unknown()) {
    if (IsKvCacheScale(tensor.name()) && scales++ == 0) first = &tensor;
  }
  findings.push_back(
      {Severity::kWarning, claims.file,
       fmt::format("{} announces a quantized KV cache, {}; halfbyte keeps its cache in a format of "
                   "its own and leaves this to other loaders",
                   claims.kv_cache,
                   first == nullptr ? "but no scale for one is stored"
                                    : fmt::format("and {} scales for it are stored, such as {}",
                                                  scales, first->name()))});
}

}  // namespace

std::set<std::string> StoredQuantization(const ModelCheckpoint& model) {
  std::set<std::string> formats;
  for (const auto& [key, tensors] : model.modules()) {
    if (tensors.Main() == nullptr || !IsMatrix(key.module)) continue;
    if (IsFloat(tensors.Main()->info->dtype)) continue;
    if (const Result<WeightLayout> layout = DetectLayout(tensors)) {
      formats.insert(EncodingOf(layout->format));
    }
  }
  return formats;
}

void CheckQuantizationConfig(const ModelCheckpoint& model, Findings& findings) {
  const auto main = ReadMain(model);
  const auto side = ReadSide(model);
  for (const auto* claims : {&main, &side}) {
    if (!*claims) {
      findings.push_back(FindingOf(claims->error()));
    }
  }
  if (!main || !side) return;
  for (const auto* claims : {&*main, &*side}) {
    if (*claims) CheckClaims(**claims, findings);
  }
  if (*main && *side) CompareClaims(**main, **side, findings);
  std::optional<Announcement> claims = *main ? *main : *side;
  if (*side && (!claims || claims->formats.empty())) claims = *side;
  CompareWithTensors(claims, model, findings);
  CheckExpertDtype(model, findings);
  if (!claims) return;
  CheckKvCache(*claims, model, findings);
  CheckExclusions({claims->file, claims->excluded, claims->formats.contains("NVFP4")}, model,
                  findings);
}

}  // namespace halfbyte
