#include "checkpoint/model_checkpoint.h"

#include <algorithm>
#include <array>

#include "base/log.h"
#include "checkpoint/foreign_names.h"

namespace halfbyte {
namespace {

// [] and [1] are one number.
bool SameShape(const Shape& a, const Shape& b) {
  return a == b || (a.size() <= 1 && b.size() <= 1 && ElementCount(a) == 1 && ElementCount(b) == 1);
}

// A tensor that is read as it is: alone, of the right dtype, of the config's shape.
Status CheckPlain(const ModuleKey& key, const ModuleTensors& tensors,
                  const std::optional<Shape>& expected) {
  const CheckpointTensor* main = tensors.Get(Part::kWeight);
  for (int i = 0; i < kParts; ++i) {
    const CheckpointTensor* part = tensors.Get(static_cast<Part>(i));
    if (part == nullptr || part == main) continue;
    return MakeError("{}: {} is not stored quantized, and has no {}", part->name(), Describe(key),
                     PartName(static_cast<Part>(i)));
  }
  const DType dtype = main->info->dtype;
  const bool right = key.module == Module::kRouterTable
                         ? dtype == DType::kI64 || dtype == DType::kI32
                         : IsFloat(dtype);
  if (!right) {
    return MakeError("{}: is {}, but must be {}", main->name(), main->info->dtype_name(),
                     key.module == Module::kRouterTable ? "I64 or I32" : "F32, BF16 or F16");
  }
  if (expected && !SameShape(main->info->shape, *expected)) {
    return MakeError("{}: has shape {}, but the config asks for {}", main->name(),
                     ShapeString(main->info->shape), ShapeString(*expected));
  }
  return {};
}

Status CheckMatrixShape(const std::string& name, int64_t rows, int64_t columns,
                        const std::optional<Shape>& expected) {
  if (!expected || *expected == Shape{rows, columns}) return {};
  return MakeError("{}: is a [{}, {}] matrix, but the config asks for {}", name, rows, columns,
                   ShapeString(*expected));
}

bool IsFused(const ModuleKey& key) { return IsRoutedExpert(key.module) && key.expert == kNoExpert; }

// The tensor that would hold this expert's matrix together with all others.
ModuleKey FusedKey(ModuleKey key) {
  if (key.module != Module::kExpertDown) key.module = Module::kExpertGateUp;
  key.expert = kNoExpert;
  return key;
}

// Headers of one stored module against themselves and the config.
Status CheckModule(const ModuleKey& key, const ModuleTensors& tensors,
                   const std::optional<Shape>& expected) {
  if (!IsMatrix(key.module) || IsFused(key)) {
    if (tensors.Get(Part::kWeight) != nullptr) return CheckPlain(key, tensors, expected);
    return MakeError("{}: its weight is missing", Describe(key));
  }
  HB_ASSIGN_OR_RETURN(const WeightLayout layout, DetectLayout(tensors));
  return CheckMatrixShape(tensors.Main()->name(), layout.rows, layout.columns, expected);
}

const std::string& AnyName(const ModuleTensors& tensors) {
  for (const CheckpointTensor& part : tensors.parts) {
    if (part.info != nullptr) return part.name();
  }
  static const std::string none;
  return none;
}

void CheckStored(const ModelCheckpoint& model, Findings& findings) {
  for (const auto& [key, tensors] : model.modules()) {
    if (model.Unread(key)) continue;
    if (IsRoutedExpert(key.module) && !IsFused(key)) {
      if (const auto fused = model.modules().find(FusedKey(key)); fused != model.modules().end()) {
        findings.push_back(
            {Severity::kError, AnyName(tensors),
             fmt::format("duplicate: {} holds this expert too", AnyName(fused->second))});
      }
    }
    std::optional<Shape> expected;
    if (model.has_config()) {
      const ModelConfig& config = model.config();
      expected = ExpectedShape(config, key);
      if (key.scope == Scope::kMtp && key.layer >= config.mtp_stages) {
        findings.push_back({Severity::kWarning, AnyName(tensors),
                            fmt::format("draft stage {}, but the config announces {}", key.layer,
                                        config.mtp_stages)});
      } else if (!expected) {
        findings.push_back({Severity::kError, AnyName(tensors),
                            fmt::format("surplus: the config has no {}", Describe(key))});
        continue;
      }
    }
    if (const Status status = CheckModule(key, tensors, expected); !status) {
      findings.push_back(FindingOf(status.error()));
    }
  }
}

std::string NameOrDescription(const ModelCheckpoint& model, const ModuleKey& key) {
  const auto name = FormatTensorName(key, Part::kWeight, model.style());
  return name ? *name : Describe(key);
}

void CheckPresent(const ModelCheckpoint& model, const std::vector<ModuleKey>& keys,
                  Findings& findings) {
  for (const ModuleKey& key : keys) {
    if (model.Has(key) || model.Unread(key)) continue;
    findings.push_back({Severity::kError, NameOrDescription(model, key),
                        fmt::format("missing: {}", Describe(key))});
  }
}

void CheckMtp(const ModelCheckpoint& model, Findings& findings) {
  const ModelConfig& config = model.config();
  for (int64_t stage = 0; stage < config.mtp_stages; ++stage) {
    const bool stored =
        std::any_of(model.modules().begin(), model.modules().end(), [&](const auto& entry) {
          return entry.first.scope == Scope::kMtp && entry.first.layer == stage;
        });
    if (stored) {
      CheckPresent(model, RequiredMtpModules(config, stage), findings);
    } else {
      findings.push_back({Severity::kNote, fmt::format("mtp.{}", stage),
                          "the config announces this draft stage, but it is not stored"});
    }
  }
}

// Whether a routed expert's matrix carries a static scale for its input.
bool HasInputScale(const ModuleTensors& tensors) {
  return tensors.Get(Part::kInputScale) != nullptr ||
         tensors.Get(Part::kInputGlobalScale) != nullptr;
}

// If one quantized expert of a layer has an input scale, all must (LDR-06).
void CheckInputScales(const ModelCheckpoint& model, Findings& findings) {
  struct Group {
    const ModuleTensors* with = nullptr;
    std::vector<const ModuleTensors*> without;
  };
  std::unordered_map<ModuleKey, Group> groups;
  for (const auto& [key, tensors] : model.modules()) {
    if (!IsRoutedExpert(key.module) || IsFused(key) || tensors.Main() == nullptr) continue;
    if (model.Unread(key) || IsFloat(tensors.Main()->info->dtype)) continue;
    ModuleKey projection = key;
    projection.expert = kNoExpert;
    Group& group = groups[projection];
    if (HasInputScale(tensors)) {
      group.with = &tensors;
    } else {
      group.without.push_back(&tensors);
    }
  }
  for (const auto& [projection, group] : groups) {
    if (group.with == nullptr) continue;
    for (const ModuleTensors* tensors : group.without) {
      findings.push_back(
          {Severity::kError, tensors->Main()->name(),
           "its input scale is missing, though other experts of the layer have one"});
    }
  }
}

bool ByPlace(const Finding& a, const Finding& b) {
  return a.severity != b.severity ? a.severity > b.severity : a.where < b.where;
}

// A stale overlay can have thousands of them.
void LogWarnings(const Findings& findings, const std::filesystem::path& directory) {
  constexpr int kLogged = 10;
  int warnings = 0;
  for (const Finding& finding : findings) {
    if (finding.severity != Severity::kWarning || ++warnings > kLogged) continue;
    spdlog::warn("{}: {}: {}", directory.string(), finding.where, finding.message);
  }
  if (warnings > kLogged) {
    spdlog::warn("{}: {} more; see halfbyte inspect", directory.string(), warnings - kLogged);
  }
}

}  // namespace

void CheckInventory(const ModelCheckpoint& model, Findings& findings) {
  Findings found;
  CheckStored(model, found);
  CheckInputScales(model, found);
  if (model.has_config()) {
    Findings missing;
    CheckPresent(model, RequiredModules(model.config()), missing);
    const bool renamed = std::any_of(
        model.unknown().begin(), model.unknown().end(),
        [](const CheckpointTensor& tensor) { return WhoseName(tensor.name()) != nullptr; });
    if (renamed && !missing.empty()) {  // they say where the missing ones are
      Finding finding = ExplainForeignNames(model.unknown(), model.checkpoint().tensors().size());
      finding.message += fmt::format("; {} modules are missing, the first {}", missing.size(),
                                     missing.front().where);
      findings.push_back(std::move(finding));
    } else {
      found.insert(found.end(), missing.begin(), missing.end());
    }
    CheckMtp(model, found);
  }
  std::stable_sort(found.begin(), found.end(), ByPlace);  // hash tables have no order
  findings.insert(findings.end(), found.begin(), found.end());
}

Result<ModelCheckpoint> ModelCheckpoint::Open(const std::filesystem::path& directory) {
  Findings findings;
  HB_ASSIGN_OR_RETURN(ModelCheckpoint model, OpenWithFindings(directory, findings));
  if (!HasErrors(findings)) CheckInventory(model, findings);
  HB_RETURN_IF_ERROR(StatusOf(findings, directory.string()));
  LogWarnings(findings, directory);
  return model;
}

Result<ModelCheckpoint> ModelCheckpoint::OpenWithFindings(const std::filesystem::path& directory,
                                                          Findings& findings) {
  HB_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::OpenWithFindings(directory, findings));
  ModelCheckpoint model(std::move(checkpoint));
  Result<ModelConfig> config = ReadModelConfig(directory);
  if (config) {
    model.config_ = *std::move(config);
  } else {
    Finding finding = FindingOf(config.error());
    if (const std::string folder = (directory / "").string(); finding.where.starts_with(folder)) {
      finding.where.erase(0, folder.size());  // as findings name all files
    }
    findings.push_back(std::move(finding));
  }
  model.IndexNames(findings);
  return model;
}

void ModelCheckpoint::IndexNames(Findings& findings) {
  std::array<int64_t, kNamingStyles> styles{};
  modules_.reserve(checkpoint_.tensors().size() / 2);
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    const std::optional<TensorName> name = ParseTensorName(tensor.name());
    if (HoldsPackedExperts(tensor)) {
      if (!packed_experts_) findings.push_back(ExplainPackedExperts(tensor));
      packed_experts_ = true;
      continue;
    }
    if (!name) {
      unknown_.push_back(tensor);
      continue;
    }
    if (name->key.scope == Scope::kLayer) ++styles[static_cast<size_t>(name->style)];
    CheckpointTensor& slot = modules_[name->key].parts[static_cast<size_t>(name->part)];
    if (slot.info != nullptr) {
      findings.push_back({Severity::kError, tensor.name(),
                          fmt::format("duplicate: means the same as {}", slot.name())});
      continue;
    }
    slot = tensor;
  }
  ReportUnknownNames(findings);
  for (const std::string& tensor : checkpoint_.unread()) {
    if (const auto name = ParseTensorName(tensor)) unread_.insert(name->key);
  }
  style_ =
      static_cast<NamingStyle>(std::max_element(styles.begin(), styles.end()) - styles.begin());
}

void ModelCheckpoint::ReportUnknownNames(Findings& findings) {
  foreign_names_ = unknown_.size() * 2 > checkpoint_.tensors().size();
  if (foreign_names_) {
    findings.push_back(ExplainForeignNames(unknown_, checkpoint_.tensors().size()));
    return;
  }
  for (const CheckpointTensor& tensor : unknown_) {
    const ForeignNames* whose = WhoseName(tensor.name());
    findings.push_back({Severity::kWarning, tensor.name(),
                        whose == nullptr
                            ? "unknown tensor: no name table has it, so it is not used"
                            : fmt::format("unknown tensor: looks like {}, so it is not used; {}",
                                          whose->whose, whose->remedy)});
  }
}

const ModuleTensors* ModelCheckpoint::Stored(const ModuleKey& key) const {
  const auto it = modules_.find(key);
  return it == modules_.end() || it->second.Main() == nullptr ? nullptr : &it->second;
}

bool ModelCheckpoint::Has(const ModuleKey& key) const {
  if (Stored(key) != nullptr) return true;
  if (!IsRoutedExpert(key.module) || key.expert == kNoExpert) return false;
  const ModuleTensors* fused = Stored(FusedKey(key));
  const Shape* shape = fused != nullptr ? &fused->Main()->info->shape : nullptr;
  return shape != nullptr && !shape->empty() && key.expert < shape->front();
}

bool ModelCheckpoint::Unread(const ModuleKey& key) const {
  if (foreign_names_ || unread_.contains(key)) return true;
  if (packed_experts_ && IsRoutedExpert(key.module)) return true;
  if (IsRoutedExpert(key.module) && unread_.contains(FusedKey(key))) return true;
  return !checkpoint_.complete() && !checkpoint_.has_index() && Stored(key) == nullptr;
}

Result<StoredWeight> ModelCheckpoint::FindWeight(const ModuleKey& key) const {
  std::optional<Shape> expected;
  if (config_) expected = ExpectedShape(*config_, key);
  if (const ModuleTensors* tensors = Stored(key)) {
    HB_ASSIGN_OR_RETURN(StoredWeight weight, ReadStoredWeight(*tensors));
    HB_RETURN_IF_ERROR(
        CheckMatrixShape(weight.name, weight.matrix.rows, weight.matrix.columns, expected));
    return weight;
  }
  if (!Has(key)) {
    return MakeError("{}: {} ({}) is missing", checkpoint_.directory().string(),
                     NameOrDescription(*this, key), Describe(key));
  }
  const CheckpointTensor& fused = *Stored(FusedKey(key))->Main();
  const Shape& shape = fused.info->shape;
  const int64_t all_rows = shape.size() == 3 ? shape[1] : 0;
  const bool whole = key.module == Module::kExpertDown;
  const int64_t rows = whole ? all_rows : all_rows / 2;
  const int64_t begin = key.module == Module::kExpertUp ? rows : 0;
  HB_ASSIGN_OR_RETURN(StoredWeight weight, SliceFusedExperts(fused, key.expert, begin, rows));
  HB_RETURN_IF_ERROR(
      CheckMatrixShape(weight.name, weight.matrix.rows, weight.matrix.columns, expected));
  return weight;
}

Result<CheckpointTensor> ModelCheckpoint::FindTensor(const ModuleKey& key) const {
  const auto it = modules_.find(key);
  if (it == modules_.end() || it->second.Get(Part::kWeight) == nullptr) {
    return MakeError("{}: {} ({}) is missing", checkpoint_.directory().string(),
                     NameOrDescription(*this, key), Describe(key));
  }
  std::optional<Shape> expected;
  if (config_) expected = ExpectedShape(*config_, key);
  HB_RETURN_IF_ERROR(CheckPlain(key, it->second, expected));
  return *it->second.Get(Part::kWeight);
}

}  // namespace halfbyte
