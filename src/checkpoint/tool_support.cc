#include "checkpoint/tool_support.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/nearest_name.h"

namespace halfbyte {
namespace {

std::string_view FormatFamily(StoredFormat format) {
  switch (format) {
    case StoredFormat::kF32:
    case StoredFormat::kBf16:
    case StoredFormat::kF16:
      return "unquantized";
    case StoredFormat::kFp8Tensor:
    case StoredFormat::kFp8Channel:
    case StoredFormat::kFp8Block:
      return "fp8";
    case StoredFormat::kModelOptNvfp4:
      return "nvfp4-modelopt";
    case StoredFormat::kCtNvfp4:
      return "nvfp4-ct";
    case StoredFormat::kDeepSeekMxfp4:
      return "mxfp4";
    case StoredFormat::kCtMxfp4:
      return "mxfp4-ct";
  }
  return "?";
}

std::string NamesOf(NamingStyle style) {
  switch (style) {
    case NamingStyle::kOfficial:
      return "official";
    case NamingStyle::kOfficialBelowModel:
      return "official-below-model";
    case NamingStyle::kHuggingFace:
    case NamingStyle::kHuggingFaceBare:
      return "huggingface";
    default:
      return "prefixed";
  }
}

void ReadSection(const Json& section, ModelTraits& traits) {
  const auto text = [&](const char* key) {
    const Json value = section.value(key, Json());
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  traits.method = text("quant_method");
  if (traits.method.empty()) traits.method = text("quant_algo").empty() ? "none" : "modelopt";
  if (traits.method == "fp8" && text("moe_quant_algo") == "NVFP4") traits.method = "fp8+nvfp4";
}

bool Fits(std::string_view wanted, std::string_view value) {
  return wanted.empty() || wanted == value;
}

const ToolRow* RowFor(std::string_view tool, const ModelTraits& traits) {
  const std::span<const ToolRow> rows = ToolRows();
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const ToolRow& r) {
    return r.tool == tool && Fits(r.names, traits.names) && Fits(r.layout, traits.layout) &&
           Fits(r.experts, traits.experts) && Fits(r.method, traits.method);
  });
  return row == rows.end() ? nullptr : &*row;
}

// Loaders of quant_method fp8 believe config.json. Empty if it is right.
std::string ConfigProblem(const ToolVersion& tool, const ModelTraits& traits) {
  if (!traits.method.starts_with("fp8")) return "";
  if (traits.attention != "fp8") {
    return fmt::format("quant_method is fp8, but attention's weights are stored as {}",
                       traits.attention);
  }
  const std::string_view wanted = traits.experts == "fp8" ? "fp8" : "fp4";
  if (tool.expert_dtype.empty()) return "";
  if (traits.expert_dtype.empty() && tool.expert_dtype != wanted) {
    return fmt::format(
        "config.json has no expert_dtype, which it takes for {}, but the experts "
        "are stored as {}",
        tool.expert_dtype, traits.experts);
  }
  if (traits.expert_dtype.empty() || traits.expert_dtype == wanted) return "";
  return fmt::format("expert_dtype in config.json is {}, but the experts are stored as {}",
                     traits.expert_dtype, traits.experts);
}

std::string Joined(const std::set<std::string_view>& formats) {
  return fmt::format("{}", fmt::join(formats, "+"));
}

ToolVerdict Judge(const ToolVersion& tool, const ModelTraits& traits, const std::string& directory,
                  const Findings& findings) {
  ToolVerdict verdict{.tool = std::string(tool.tool),
                      .version = std::string(tool.version),
                      .source = std::string(tool.source)};
  const auto conclude = [&](Loads loads, std::string reason) {
    verdict.loads = loads;
    verdict.reason = std::move(reason);
    return verdict;
  };
  const auto error = std::find_if(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.severity == Severity::kError;
  });
  const bool ours = tool.tool == "halfbyte";
  if (ours && error == findings.end()) return conclude(Loads::kYes, "nothing stands in its way");
  const ToolRow* row = ours ? nullptr : RowFor(tool.tool, traits);
  if (error != findings.end() && (row == nullptr || row->loads != Loads::kNo)) {
    return conclude(Loads::kNo, fmt::format("{}: {}", error->where, error->message));
  }
  if (row == nullptr) {
    return conclude(Loads::kUnknown,
                    fmt::format("nothing is known of {} names, {} experts ({}) and quant_method {}",
                                traits.names, traits.experts, traits.layout, traits.method));
  }
  if (!row->convert.empty()) {
    verdict.remedy = fmt::format("halfbyte convert {} OUT {}", directory, row->convert);
  }
  const std::string problem = ConfigProblem(tool, traits);
  if (row->loads == Loads::kYes && !problem.empty()) return conclude(Loads::kNo, problem);
  return conclude(row->loads, std::string(row->reason));
}

}  // namespace

const char* LoadsName(Loads loads) {
  switch (loads) {
    case Loads::kYes:
      return "yes";
    case Loads::kNo:
      return "no";
    case Loads::kUnknown:
      return "unknown";
  }
  return "?";
}

ModelTraits TraitsOf(const ModelCheckpoint& model) {
  ModelTraits traits{.names = NamesOf(model.style()), .layout = "per-expert", .method = "none"};
  std::set<std::string_view> experts, attention;
  for (const auto& [key, tensors] : model.modules()) {
    const bool projection = key.module == Module::kQA || key.module == Module::kQB ||
                            key.module == Module::kKv || key.module == Module::kOB;
    if (key.scope != Scope::kLayer || tensors.Main() == nullptr) continue;
    if (!projection && !IsRoutedExpert(key.module)) continue;
    if (!projection && key.expert == kNoExpert) {
      traits.layout = "fused";
      experts.insert(IsFloat(tensors.Main()->info->dtype) ? "unquantized" : "quantized");
    } else if (const Result<WeightLayout> layout = DetectLayout(tensors)) {
      (projection ? attention : experts).insert(FormatFamily(layout->format));
    }
  }
  traits.experts = Joined(experts);
  traits.attention = Joined(attention);
  if (!model.has_config()) return traits;
  traits.expert_dtype = model.config().expert_dtype.value_or("");
  if (model.config().quantization) ReadSection(*model.config().quantization, traits);
  return traits;
}

Result<std::vector<std::string>> ParseTools(std::string_view list) {
  std::vector<std::string> known;
  for (const ToolVersion& tool : KnownTools()) known.emplace_back(tool.tool);
  if (list == "all") return known;
  std::vector<std::string> tools;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string name(list.substr(begin, end - begin));
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const std::optional<std::string> nearest = NearestName(name, known);
      return MakeError("nothing is known of \"{}\"{}; known are all, {}", name,
                       nearest ? fmt::format(" (did you mean {}?)", *nearest) : "",
                       fmt::join(known, ", "));
    }
    tools.push_back(name);
    begin = end + 1;
  }
  return tools;
}

std::vector<ToolVerdict> JudgeTools(const ModelCheckpoint& model, const Findings& findings,
                                    const std::vector<std::string>& tools) {
  const ModelTraits traits = TraitsOf(model);
  const std::string directory = model.checkpoint().directory().string();
  std::vector<ToolVerdict> verdicts;
  for (const std::string& name : tools) {
    for (const ToolVersion& tool : KnownTools()) {
      if (tool.tool == name) verdicts.push_back(Judge(tool, traits, directory, findings));
    }
  }
  return verdicts;
}

Json ToolsJson(const std::vector<ToolVerdict>& tools) {
  Json json = Json::array();
  for (const ToolVerdict& tool : tools) {
    json.push_back({{"tool", tool.tool},
                    {"version", tool.version},
                    {"loads", LoadsName(tool.loads)},
                    {"reason", tool.reason},
                    {"remedy", tool.remedy.empty() ? Json(nullptr) : Json(tool.remedy)},
                    {"source", tool.source}});
  }
  return json;
}

std::string ToolsText(const std::vector<ToolVerdict>& tools) {
  std::string text = tools.empty() ? "" : "\nwho can load it, as far as is known\n";
  for (const ToolVerdict& tool : tools) {
    text += fmt::format("  {:<20} {:<8} {}\n", tool.tool + " " + tool.version,
                        LoadsName(tool.loads), tool.reason);
    if (!tool.remedy.empty()) text += fmt::format("  {:<20} {:<8} try: {}\n", "", "", tool.remedy);
  }
  return text;
}

}  // namespace halfbyte
