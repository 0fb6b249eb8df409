#include "checkpoint/quantization_config.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <memory>
#include <set>

#include "base/json.h"

namespace halfbyte {
namespace {

constexpr std::string_view kRegexPrefix = "re:";
constexpr std::string_view kMixed = "MIXED_PRECISION";

bool GlobMatches(std::string_view glob, std::string_view text) {
  size_t g = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return std::all_of(glob.begin() + static_cast<std::ptrdiff_t>(g), glob.end(),
                     [](char c) { return c == '*'; });
}

// Claims of one file.
struct Announcement {
  std::string file;
  std::string algorithm;   // of the experts: "NVFP4", or empty
  std::string everything;  // of all that nothing else is said about: quant_algo, or empty
  std::optional<int64_t> group_size;
  std::vector<std::string> excluded;
};

// compressed-tensors names a format for all or per group.
Result<bool> IsCtNvfp4(const JsonObject& section) {
  constexpr std::string_view kFormat = "nvfp4-pack-quantized";
  HB_ASSIGN_OR_RETURN(const std::optional<std::string> format, section.String("format"));
  if (format == kFormat) return true;
  HB_ASSIGN_OR_RETURN(const std::optional<JsonObject> groups, section.Object("config_groups"));
  if (!groups) return false;
  for (const auto& [name, group] : groups->json().items()) {
    if (group.is_object() && group.contains("format") && group["format"] == kFormat) return true;
  }
  return false;
}

Result<Announcement> ReadAnnouncement(const JsonObject& section, std::string file,
                                      std::string_view exclude_key) {
  Announcement claims{.file = std::move(file)};
  HB_ASSIGN_OR_RETURN(const std::optional<std::string> experts, section.String("moe_quant_algo"));
  HB_ASSIGN_OR_RETURN(const std::optional<std::string> all, section.String("quant_algo"));
  claims.everything = all.value_or("");
  if (experts) {
    claims.algorithm = *experts;
  } else if (claims.everything != kMixed) {
    claims.algorithm = claims.everything;
  }
  HB_ASSIGN_OR_RETURN(const bool ct, IsCtNvfp4(section));
  if (ct) claims.algorithm = "NVFP4";
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
  HB_ASSIGN_OR_RETURN(Announcement claims, ReadAnnouncement(section, "config.json", "ignore"));
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

struct NamedModule {
  std::string name;  // without the part
  bool nvfp4 = false;
};

// Experts other than the first are left out: patterns with wildcards do not tell experts apart, and
// there are tens of thousands. NamesAModule covers exact names.
std::vector<NamedModule> NamedModules(const ModelCheckpoint& model) {
  std::vector<NamedModule> modules;
  for (const auto& [key, tensors] : model.modules()) {
    const CheckpointTensor* main = tensors.Main();
    if (main == nullptr || key.expert > 0) continue;
    std::string name = main->name();
    for (const Part part : {Part::kWeight, Part::kWeightPacked}) {
      const std::string suffix = fmt::format(".{}", PartName(part));
      if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
    }
    bool nvfp4 = false;
    if (IsMatrix(key.module) && main->info->shape.size() == 2) {
      const Result<WeightLayout> layout = DetectLayout(tensors);
      nvfp4 = layout && (layout->format == StoredFormat::kModelOptNvfp4 ||
                         layout->format == StoredFormat::kCtNvfp4);
    }
    modules.push_back({std::move(name), nvfp4});
  }
  std::sort(modules.begin(), modules.end(),
            [](const NamedModule& a, const NamedModule& b) { return a.name < b.name; });
  return modules;
}

struct FreePcre {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// Patterns come from files: one that would search for ages counts as no match.
constexpr uint32_t kRegexSteps = 100'000;

PCRE2_SPTR Units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

// A compiled pattern; see CoversModule.
class Pattern {
 public:
  explicit Pattern(std::string_view text) : text_(text) {
    if (!text.starts_with(kRegexPrefix)) return;
    is_regex_ = true;
    text.remove_prefix(kRegexPrefix.size());
    int error = 0;
    size_t offset = 0;
    regex_.reset(pcre2_compile(Units(text), text.size(), PCRE2_ANCHORED, &error, &offset, nullptr));
    if (!regex_) return;
    match_.reset(pcre2_match_data_create_from_pattern(regex_.get(), nullptr));
    context_.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(context_.get(), kRegexSteps);
  }
  bool broken() const { return is_regex_ && !regex_; }

  bool Covers(std::string_view module) const {
    if (is_regex_) {
      return regex_ && pcre2_match(regex_.get(), Units(module), module.size(), 0, 0, match_.get(),
                                   context_.get()) >= 0;
    }
    for (size_t end = module.find('.');; end = module.find('.', end + 1)) {
      if (GlobMatches(text_, module.substr(0, end))) return true;
      if (end == std::string_view::npos) return false;
    }
  }

 private:
  std::string text_;
  bool is_regex_ = false;
  std::unique_ptr<pcre2_code, FreePcre> regex_;
  std::unique_ptr<pcre2_match_data, FreePcre> match_;
  std::unique_ptr<pcre2_match_context, FreePcre> context_;
};

// "layers.3.ffn.experts.7.w1"
bool NamesAModule(const ModelCheckpoint& model, const std::string& text) {
  const std::optional<TensorName> name = ParseTensorName(text + ".weight");
  return name && model.Has(name->key);
}

void CheckExclusions(const Announcement& claims, const std::vector<NamedModule>& modules,
                     const ModelCheckpoint& model, Findings& findings) {
  for (const std::string& text : claims.excluded) {
    const Pattern pattern(text);
    const std::string where = fmt::format("{}: {}", claims.file, text);
    if (pattern.broken()) {
      findings.push_back({Severity::kWarning, where, "not a regular expression"});
      continue;
    }
    bool used = false;
    for (const NamedModule& module : modules) {
      if (!pattern.Covers(module.name)) continue;
      used = true;
      if (!module.nvfp4) continue;
      findings.push_back({Severity::kWarning, module.name,
                          fmt::format("{} excludes it from quantization ({}), but it is stored as "
                                      "NVFP4 and will be read as such",
                                      claims.file, text)});
    }
    if (!used && !NamesAModule(model, text)) {
      findings.push_back({Severity::kWarning, where, "this exclusion matches no module"});
    }
  }
}

void CompareWithTensors(const std::optional<Announcement>& claims,
                        const std::vector<NamedModule>& modules, const ModelCheckpoint& model,
                        Findings& findings) {
  const bool stored = std::any_of(modules.begin(), modules.end(),
                                  [](const NamedModule& module) { return module.nvfp4; });
  const bool announced = claims && claims->algorithm == "NVFP4";
  if (stored && !announced) {
    findings.push_back({Severity::kNote, claims ? claims->file : "config.json",
                        "does not announce NVFP4, but some weights are stored as NVFP4"});
  }
  if (announced && !stored) {
    findings.push_back(
        {Severity::kWarning, claims->file, "announces NVFP4, but no weight is stored as NVFP4"});
  }
  if (announced && claims->group_size.value_or(16) != 16) {
    findings.push_back({Severity::kError, claims->file,
                        fmt::format("NVFP4 has groups of 16, not {}", *claims->group_size)});
  }
  if (!model.has_config() || model.config().expert_dtype != "fp8") return;
  const ModuleKey first = ModuleKey::Layer(0, Module::kExpertGate, 0);
  const Result<StoredWeight> weight = model.FindWeight(first);
  if (weight && weight->matrix.format != WeightFormat::kFp8) {
    findings.push_back({Severity::kWarning, "config.json",
                        fmt::format("expert_dtype is fp8, but experts are stored as {}",
                                    StoredFormatName(weight->format))});
  }
}

}  // namespace

bool CoversModule(std::string_view pattern, std::string_view module) {
  return Pattern(pattern).Covers(module);
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
  const std::vector<NamedModule> modules = NamedModules(model);
  std::optional<Announcement> claims = *main ? *main : *side;
  if (*side && (!claims || claims->algorithm.empty())) claims = *side;
  CompareWithTensors(claims, modules, model, findings);
  if (claims) CheckExclusions(*claims, modules, model, findings);
}

}  // namespace halfbyte
