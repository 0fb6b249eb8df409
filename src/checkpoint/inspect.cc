#include "checkpoint/inspect.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/progress.h"
#include "checkpoint/quantization_config.h"

namespace halfbyte {
namespace {

// The first tensor there is; a module without its weight is listed all the same.
const CheckpointTensor& AnyPart(const ModuleTensors& tensors) {
  if (const CheckpointTensor* main = tensors.Main()) return *main;
  return *std::find_if(tensors.parts.begin(), tensors.parts.end(),
                       [](const CheckpointTensor& part) { return part.info != nullptr; });
}

void AddScalar(const ModuleTensors& tensors, Part multiplier, Part divisor, ValueRange& range) {
  for (const Part part : {multiplier, divisor}) {
    const CheckpointTensor* tensor = tensors.Get(part);
    if (tensor == nullptr) continue;
    if (const Result<float> value = ReadScalar(*tensor)) {
      range.Add(part == multiplier ? *value : GlobalScale::FromEncode(EncodeScale(*value)).value());
    }
    tensor->DropPages();
  }
}

// One module as a group of its own.
ModuleGroup GroupOf(const ModuleKey& key, const ModuleTensors& tensors,
                    const InspectOptions& options) {
  ModuleGroup group;
  group.key = key;
  group.modules = 1;
  const CheckpointTensor& main = AnyPart(tensors);
  group.shape = main.info->shape;
  group.format = PlainFormatName(main.info->dtype);
  for (const CheckpointTensor& part : tensors.parts) {
    if (part.info == nullptr) continue;
    ++group.tensors;
    group.bytes += part.info->bytes;
  }
  if (IsMatrix(key.module) && group.shape.size() != 3) {
    const Result<WeightLayout> layout = DetectLayout(tensors);
    group.format = layout ? StoredFormatName(layout->format) : "broken";
    if (layout) group.shape = {layout->rows, layout->columns};
    AddScalar(tensors, Part::kWeightScale2, Part::kWeightGlobalScale, group.global_scales);
    AddScalar(tensors, Part::kInputScale, Part::kInputGlobalScale, group.input_scales);
    if (options.block_scales && layout) {
      if (const Result<StoredWeight> weight = ReadStoredWeight(tensors)) {
        group.block_scales = ScanScales(weight->matrix).range;
        weight->DropPages();
      }
    }
  }
  return group;
}

void MergeGroup(ModuleGroup& into, const ModuleGroup& from) {
  into.modules += from.modules;
  into.tensors += from.tensors;
  into.bytes += from.bytes;
  into.global_scales.Merge(from.global_scales);
  into.input_scales.Merge(from.input_scales);
  into.block_scales.Merge(from.block_scales);
}

std::vector<ModuleGroup> GroupModules(const ModelCheckpoint& model, const InspectOptions& options) {
  using GroupKey = std::tuple<Scope, int32_t, Module, std::string, Shape>;
  std::map<GroupKey, ModuleGroup> groups;
  Progress progress("inspect", static_cast<int64_t>(model.modules().size()), "");
  for (const auto& [key, tensors] : model.modules()) {
    ModuleGroup group = GroupOf(key, tensors, options);
    const GroupKey group_key{key.scope, key.layer, key.module, group.format, group.shape};
    const auto [it, added] = groups.try_emplace(group_key, group);
    if (!added) MergeGroup(it->second, group);
    progress.Advance(1);
  }
  std::vector<ModuleGroup> sorted;
  for (auto& [key, group] : groups) sorted.push_back(std::move(group));
  return sorted;
}

std::vector<Total> SortedTotals(const std::map<std::string, Total>& totals) {
  std::vector<Total> sorted;
  for (const auto& [name, total] : totals) {
    sorted.push_back(total);
    sorted.back().name = name;
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Total& a, const Total& b) { return a.bytes > b.bytes; });
  return sorted;
}

void AddTotals(const ModelCheckpoint& model, Inspection& inspection) {
  std::map<std::string, Total> formats, families;
  const auto add = [](Total& total, int64_t tensors, int64_t bytes) {
    total.tensors += tensors;
    total.bytes += bytes;
  };
  for (const ModuleGroup& group : inspection.groups) {
    add(formats[group.format], group.tensors, group.bytes);
    add(families[FamilyName(group.key)], group.tensors, group.bytes);
  }
  for (const CheckpointTensor& tensor : model.unknown()) {
    add(formats["unknown"], 1, tensor.info->bytes);
    add(families["unknown"], 1, tensor.info->bytes);
  }
  inspection.by_format = SortedTotals(formats);
  inspection.by_family = SortedTotals(families);
}

}  // namespace

const char* FamilyName(const ModuleKey& key) {
  if (key.scope == Scope::kMtp) return "draft stages";
  if (IsRoutedExpert(key.module)) return "routed experts";
  if (IsSharedExpert(key.module)) return "shared experts";
  switch (key.module) {
    case Module::kEmbed:
    case Module::kHead:
      return "embedding and head";
    case Module::kRouter:
    case Module::kRouterBias:
    case Module::kRouterTable:
      return "router";
    case Module::kHcHeadFn:
    case Module::kHcHeadBase:
    case Module::kHcHeadScale:
    case Module::kHcAttentionFn:
    case Module::kHcAttentionBase:
    case Module::kHcAttentionScale:
    case Module::kHcFfnFn:
    case Module::kHcFfnBase:
    case Module::kHcFfnScale:
      return "hyper-connections";
    case Module::kNorm:
    case Module::kAttentionNorm:
    case Module::kFfnNorm:
      return "norms";
    case Module::kCompressorApe:
    case Module::kCompressorKv:
    case Module::kCompressorGate:
    case Module::kCompressorNorm:
    case Module::kIndexerQB:
    case Module::kIndexerWeights:
    case Module::kIndexerApe:
    case Module::kIndexerKv:
    case Module::kIndexerGate:
    case Module::kIndexerNorm:
      return "compressor and indexer";
    default:
      return "attention";
  }
}

Result<Inspection> Inspect(const std::filesystem::path& directory, const InspectOptions& options) {
  Inspection inspection;
  HB_ASSIGN_OR_RETURN(const ModelCheckpoint model,
                      ModelCheckpoint::OpenWithFindings(directory, inspection.findings));
  CheckInventory(model, inspection.findings);
  CheckQuantizationConfig(model, inspection.findings);
  CheckCompanionFiles(directory, inspection.findings);
  inspection.directory = directory.string();
  if (model.has_config()) inspection.config = model.config();
  inspection.naming = NamingStyleName(model.style());
  inspection.files = std::ssize(model.checkpoint().files());
  inspection.tensors = std::ssize(model.checkpoint().tensors());
  inspection.bytes = model.checkpoint().tensor_bytes();
  inspection.groups = GroupModules(model, options);
  AddTotals(model, inspection);
  return inspection;
}

}  // namespace halfbyte
