#include "checkpoint/exclusions.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "checkpoint/module_pattern.h"

namespace halfbyte {
namespace {

struct NamedModule {
  std::string name;  // without the part
  const ModuleKey* key = nullptr;
  bool nvfp4 = false;
  bool plain_expert = false;  // a routed expert's matrix that is not quantized
};

bool IsNvfp4(const ModuleTensors& tensors) {
  if (tensors.Main()->info->shape.size() != 2) return false;
  const Result<WeightLayout> layout = DetectLayout(tensors);
  return layout && (layout->format == StoredFormat::kModelOptNvfp4 ||
                    layout->format == StoredFormat::kCtNvfp4);
}

std::string WithoutPart(std::string name) {
  for (const Part part : {Part::kWeight, Part::kWeightPacked}) {
    const std::string suffix = fmt::format(".{}", PartName(part));
    if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  }
  return name;
}

// By name: those of the files, or those that the other tables have for the same modules.
std::vector<NamedModule> NamedModules(const ModelCheckpoint& model,
                                      std::optional<NamingStyle> style) {
  std::vector<NamedModule> modules;
  for (const auto& [key, tensors] : model.modules()) {
    const CheckpointTensor* main = tensors.Main();
    if (main == nullptr) continue;
    std::optional<std::string> name = main->name();
    if (style) name = FormatTensorName(key, Part::kWeight, *style);
    if (!name) continue;
    modules.push_back({WithoutPart(*std::move(name)), &key,
                       IsMatrix(key.module) && IsNvfp4(tensors),
                       IsRoutedExpert(key.module) && IsFloat(main->info->dtype)});
  }
  std::sort(modules.begin(), modules.end(),
            [](const NamedModule& a, const NamedModule& b) { return a.name < b.name; });
  return modules;
}

// Calls visit for each module that the pattern covers. Lists hold hundreds of exact names, models
// tens of thousands of modules: what a name covers is found by search.
template <class Visit>
void VisitCovered(const ModulePattern& pattern, const std::vector<NamedModule>& modules,
                  const Visit& visit) {
  const auto from = [&](const std::string& name) {
    return std::lower_bound(modules.begin(), modules.end(), name,
                            [](const NamedModule& m, const std::string& n) { return m.name < n; });
  };
  if (!pattern.exact()) {
    for (const NamedModule& module : modules) {
      if (pattern.Covers(module.name)) visit(module);
    }
    return;
  }
  const auto itself = from(pattern.text());
  if (itself != modules.end() && itself->name == pattern.text()) visit(*itself);
  const std::string children = pattern.text() + '.';
  for (auto it = from(children); it != modules.end() && it->name.starts_with(children); ++it) {
    visit(*it);
  }
}

// What is said about several modules: how many, and the first.
struct Contradiction {
  int64_t modules = 0;
  std::string first;

  void Add(const NamedModule& module) {
    if (modules++ == 0) first = module.name;
  }
};

}  // namespace

void CheckExclusions(const ExclusionList& list, const ModelCheckpoint& model, Findings& findings) {
  const std::vector<NamedModule> modules = NamedModules(model, std::nullopt);
  std::vector<NamedModule> renamed;  // for lists that use the names of the other tables
  std::unordered_set<const ModuleKey*> excluded;
  for (const std::string& text : list.patterns) {
    const ModulePattern pattern(text);
    const std::string where = fmt::format("{}: {}", list.file, text);
    if (pattern.broken()) {
      findings.push_back({Severity::kWarning, where, "not a regular expression"});
      continue;
    }
    int64_t covered = 0;
    Contradiction stored;
    const auto visit = [&](const NamedModule& module) {
      ++covered;
      excluded.insert(module.key);
      if (module.nvfp4) stored.Add(module);
    };
    VisitCovered(pattern, modules, visit);
    if (covered == 0 && renamed.empty()) {
      renamed = NamedModules(model, HasOfficialNames(model.style()) ? NamingStyle::kHuggingFace
                                                                    : NamingStyle::kOfficial);
    }
    if (covered == 0) VisitCovered(pattern, renamed, visit);
    if (covered == 0) {
      findings.push_back({Severity::kWarning, where, "this exclusion matches no module"});
    }
    if (stored.modules > 0) {
      findings.push_back(
          {Severity::kWarning, where,
           fmt::format("excludes {} modules from quantization that are stored as NVFP4 and will be "
                       "read as such, the first {}",
                       stored.modules, stored.first)});
    }
  }
  if (!list.nvfp4 || std::none_of(modules.begin(), modules.end(),
                                  [](const NamedModule& module) { return module.nvfp4; })) {
    return;
  }
  Contradiction unlisted;
  for (const NamedModule& module : modules) {
    if (module.plain_expert && !excluded.contains(module.key)) unlisted.Add(module);
  }
  if (unlisted.modules == 0) return;
  findings.push_back(
      {Severity::kWarning, list.file,
       fmt::format("excludes nothing that names {} matrices of experts, the first {}, but they are "
                   "stored unquantized: loaders that go by the list expect NVFP4",
                   unlisted.modules, unlisted.first)});
}

}  // namespace halfbyte
