#include "checkpoint/convert/plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {
namespace {

bool IsNvfp4(StoredFormat format) {
  return format == StoredFormat::kModelOptNvfp4 || format == StoredFormat::kCtNvfp4;
}
bool IsMxfp4(StoredFormat format) {
  return format == StoredFormat::kDeepSeekMxfp4 || format == StoredFormat::kCtMxfp4;
}
bool IsQuantized(StoredFormat format) {
  return format != StoredFormat::kF32 && format != StoredFormat::kBf16 &&
         format != StoredFormat::kF16;
}

// Parts that make up a stored matrix; a bias is a tensor of its own and is copied.
constexpr Part kMatrixParts[] = {
    Part::kWeight,          Part::kScale,      Part::kWeightScale,  Part::kWeightScale2,
    Part::kWeightScaleInv,  Part::kInputScale, Part::kWeightPacked, Part::kWeightGlobalScale,
    Part::kInputGlobalScale};

// The tensors of one result matrix, in the order that MatrixPlan states.
std::vector<TensorSpec> OutputsOf(const MatrixPlan& matrix, TargetFormat format) {
  const auto name = [&](Part part) {
    const auto text = FormatTensorName(matrix.key, part, matrix.style);
    HB_CHECK(text.has_value(), "{} has no name for {}", Describe(matrix.key), PartName(part));
    return *text;
  };
  const Shape codes = {matrix.rows, matrix.columns / 2};
  const Shape scales = {matrix.rows, matrix.columns / kNvfp4Block};
  std::vector<TensorSpec> outputs;
  switch (format) {
    case TargetFormat::kBf16:
      return {{name(Part::kWeight), DType::kBf16, {matrix.rows, matrix.columns}}};
    case TargetFormat::kModelOptNvfp4:
      outputs = {{name(Part::kWeight), DType::kU8, codes},
                 {name(Part::kWeightScale), DType::kF8E4m3, scales},
                 {name(Part::kWeightScale2), DType::kF32, {}}};
      if (matrix.has_input_scale) outputs.push_back({name(Part::kInputScale), DType::kF32, {}});
      return outputs;
    case TargetFormat::kCtNvfp4:
      outputs = {{name(Part::kWeightPacked), DType::kU8, codes},
                 {name(Part::kWeightScale), DType::kF8E4m3, scales},
                 {name(Part::kWeightGlobalScale), DType::kF32, {1}}};
      if (matrix.has_input_scale) {
        outputs.push_back({name(Part::kInputGlobalScale), DType::kF32, {1}});
      }
      return outputs;
  }
  return outputs;
}

ResultEncoding EncodingOf(StoredFormat format) {
  if (IsNvfp4(format)) return ResultEncoding::kNvfp4;
  if (IsMxfp4(format)) return ResultEncoding::kMxfp4;
  return IsQuantized(format) ? ResultEncoding::kFp8 : ResultEncoding::kPlain;
}
ResultEncoding EncodingOf(TargetFormat format) {
  return format == TargetFormat::kBf16 ? ResultEncoding::kPlain : ResultEncoding::kNvfp4;
}

// "layers.3.attn.wq_a"; for all routed experts together "layers.3.ffn.experts".
std::string ModuleNameOf(const std::string& tensor, bool experts) {
  for (const std::string_view end : {".weight", ".weight_packed"}) {
    if (!experts && tensor.ends_with(end)) return tensor.substr(0, tensor.size() - end.size());
  }
  constexpr std::string_view kExperts = ".experts.";
  return experts ? tensor.substr(0, tensor.rfind(kExperts) + kExperts.size() - 1) : tensor;
}

// Gate and up of one expert share a global scale; every other matrix has its own.
ModuleKey ScaleGroupOf(ModuleKey key) {
  if (key.module == Module::kExpertUp) key.module = Module::kExpertGate;
  if (key.module == Module::kSharedUp) key.module = Module::kSharedGate;
  return key;
}

ModuleKey FusedExpertsOf(ModuleKey key) {
  key.module = key.module == Module::kExpertDown ? Module::kExpertDown : Module::kExpertGateUp;
  key.expert = kNoExpert;
  return key;
}

// What shares a scale of an FP8 matrix, 0 for all.
int64_t Fp8ScaleRows(const StoredWeight& weight) {
  return weight.format == StoredFormat::kFp8Tensor ? 0 : weight.matrix.scale_block_rows;
}
int64_t Fp8ScaleColumns(const StoredWeight& weight) {
  return weight.format == StoredFormat::kFp8Block ? weight.matrix.scale_block_columns : 0;
}

class Planner {
 public:
  Planner(const ModelCheckpoint& model, TargetFormat format, ConvertScope scope)
      : model_(model), scope_(scope) {
    plan_.format = format;
    for (const auto& file : model.checkpoint().files()) {
      shard_of_[file.get()] = plan_.shards.size();
      ShardPlan shard;
      shard.file = file->path().lexically_relative(model.checkpoint().directory()).string();
      plan_.shards.push_back(std::move(shard));
    }
  }

  Result<ConversionPlan> Plan() {
    std::vector<ModuleKey> keys;
    for (const auto& [key, tensors] : model_.modules()) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    FindInputScales();
    for (const ModuleKey& key : keys) HB_RETURN_IF_ERROR(Consider(key));
    NameExperts();
    HB_RETURN_IF_ERROR(MakeJobs());
    if (consumed_.empty()) {
      return MakeError("{}: nothing to convert to {}: {}", model_.checkpoint().directory().string(),
                       TargetFormatName(plan_.format),
                       plan_.format == TargetFormat::kBf16
                           ? "no tensor is quantized, and no expert is to be fused"
                           : "every matrix of the scope has that format or cannot have it");
    }
    AddCopies();
    LayOutShards();
    HB_RETURN_IF_ERROR(CheckNames());
    return std::move(plan_);
  }

 private:
  struct Candidate {
    MatrixPlan matrix;
    ConvertAction action = ConvertAction::kQuantize;
    const SafetensorsFile* file = nullptr;
    int64_t offset = 0;
  };

  bool InScope(const ModuleKey& key) const {
    if (key.scope != Scope::kLayer) return false;
    return IsRoutedExpert(key.module) ||
           (scope_ == ConvertScope::kExpertsAndShared && IsSharedExpert(key.module));
  }

  // Collects the module's matrices as candidates if they are to change.
  Status Consider(const ModuleKey& key) {
    const ModuleTensors& stored = model_.modules().at(key);
    const CheckpointTensor* main = stored.Main();
    const bool fused = IsRoutedExpert(key.module) && key.expert == kNoExpert;
    if (main == nullptr || (!IsMatrix(key.module) && !fused)) return {};
    const int64_t experts = fused ? main->info->shape.at(0) : 1;
    bool changes = false;
    for (int64_t e = 0; e < experts; ++e) {
      for (const Module module : MatricesIn(key.module)) {
        ModuleKey one = key;
        one.module = module;
        if (fused) one.expert = static_cast<int32_t>(e);
        HB_ASSIGN_OR_RETURN(const bool taken, Consider(one, *main));
        changes |= taken;
      }
      if (!changes) return {};  // all experts of a fused tensor have one format
    }
    for (const Part part : kMatrixParts) {
      if (const CheckpointTensor* tensor = stored.Get(part)) consumed_.insert(tensor->info);
    }
    return {};
  }

  static std::vector<Module> MatricesIn(Module module) {
    if (module == Module::kExpertGateUp) return {Module::kExpertGate, Module::kExpertUp};
    return {module};
  }

  // Whether the matrix changes.
  Result<bool> Consider(const ModuleKey& key, const CheckpointTensor& main) {
    HB_ASSIGN_OR_RETURN(const StoredWeight weight, model_.FindWeight(key));
    const TensorName stored = *ParseTensorName(main.name());
    const std::optional<ConvertAction> action = ActionFor(stored, weight, main.info->dtype);
    const bool keeps_input_scale =
        weight.input_scale.has_value() && plan_.format != TargetFormat::kBf16;
    ResultModule module{ModuleNameOf(main.name(), false),
                        action ? EncodingOf(plan_.format) : EncodingOf(weight.format), false,
                        keeps_input_scale};
    if (module.encoding == ResultEncoding::kFp8) {
      module.scale_rows = Fp8ScaleRows(weight);
      module.scale_columns = Fp8ScaleColumns(weight);
    }
    if (IsRoutedExpert(key.module)) {
      experts_[ModuleNameOf(main.name(), true)].emplace_back(key.module, std::move(module));
    } else {
      plan_.modules.insert(std::move(module));
    }
    if (!action) {
      if (plan_.format == TargetFormat::kCtNvfp4) RestateForCompressedTensors(stored, weight);
      return false;
    }
    Candidate candidate;
    candidate.action = *action;
    candidate.matrix.key = key;
    candidate.matrix.style = stored.style;
    candidate.matrix.from = weight.format;
    candidate.matrix.rows = weight.matrix.rows;
    candidate.matrix.columns = weight.matrix.columns;
    candidate.matrix.source_bytes = weight.matrix.bytes();
    candidate.matrix.has_input_scale = keeps_input_scale;
    candidate.file = weight.data_file;
    candidate.offset = main.info->offset + (weight.matrix.data - main.View().bytes.data());
    if (plan_.format != TargetFormat::kBf16) {
      groups_[ScaleGroupOf(key)].push_back(std::move(candidate));
      return true;
    }
    if (BecomesFused(stored)) {  // where its first expert lies
      candidate.file = home_.try_emplace(FusedExpertsOf(key), candidate.file).first->second;
    }
    groups_[key].push_back(std::move(candidate));
    return true;
  }

  // transformers has no names for single experts but the official ones.
  bool BecomesFused(const TensorName& stored) const {
    return plan_.format == TargetFormat::kBf16 && stored.key.expert != kNoExpert &&
           !HasOfficialNames(stored.style);
  }

  // What stays quantized under the names of compressed-tensors; no value changes.
  void RestateForCompressedTensors(const TensorName& stored, const StoredWeight& weight) {
    const ModuleTensors& tensors = model_.modules().at(stored.key);
    const bool fp8 = weight.matrix.format == WeightFormat::kFp8;
    if (!fp8 && weight.format != StoredFormat::kDeepSeekMxfp4) return;
    const auto name = [&](Part part) { return *FormatTensorName(stored.key, part, stored.style); };
    if (!fp8) {
      const CheckpointTensor& codes = *tensors.Main();
      const Shape packed = {weight.matrix.rows, weight.matrix.columns / 2};
      restated_[codes.info] = {name(Part::kWeightPacked), DType::kU8, packed};
    }
    for (const Part part : {Part::kScale, Part::kWeightScale, Part::kWeightScaleInv}) {
      const CheckpointTensor* scales = tensors.Get(part);
      if (scales == nullptr) continue;
      TensorSpec spec{name(Part::kWeightScale), DType::kU8, scales->info->shape};
      if (fp8) {
        spec.dtype =
            weight.matrix.scale_dtype == DType::kF8E8m0 ? DType::kF32 : weight.matrix.scale_dtype;
        if (weight.format == StoredFormat::kFp8Tensor) spec.shape = {1};
        if (weight.format == StoredFormat::kFp8Channel) spec.shape = {weight.matrix.rows, 1};
      }
      restated_[scales->info] = std::move(spec);
    }
  }

  // Nothing if the matrix stays as it is.
  std::optional<ConvertAction> ActionFor(const TensorName& stored, const StoredWeight& weight,
                                         DType codes) {
    if (plan_.format == TargetFormat::kBf16) {
      if (IsQuantized(weight.format)) return ConvertAction::kDequantize;
      if (BecomesFused(stored)) return ConvertAction::kFuse;
      return std::nullopt;
    }
    if (IsNvfp4(weight.format)) {
      const bool is_ct = weight.format == StoredFormat::kCtNvfp4;
      const bool same = is_ct == (plan_.format == TargetFormat::kCtNvfp4);
      if (same && codes == DType::kU8) return std::nullopt;
      return ConvertAction::kRewrap;
    }
    if (!InScope(stored.key)) return std::nullopt;
    if (IsMxfp4(weight.format)) return ConvertAction::kLossless;
    if (!weight.input_scale && with_input_scale_.contains(ProjectionOf(stored.key))) {
      plan_.kept.push_back(
          {weight.name, "it has no input scale, but other experts of its layer do"});
      return std::nullopt;
    }
    if (weight.matrix.columns % kNvfp4Block != 0) {
      plan_.kept.push_back({weight.name, fmt::format("{} columns are no multiple of {}",
                                                     weight.matrix.columns, kNvfp4Block)});
      return std::nullopt;
    }
    return ConvertAction::kQuantize;
  }

  static ModuleKey ProjectionOf(ModuleKey key) {
    key.expert = kNoExpert;
    return key;
  }

  // An expert without one among others with one would be an expert that was never calibrated.
  void FindInputScales() {
    for (const auto& [key, tensors] : model_.modules()) {
      if (!IsRoutedExpert(key.module)) continue;
      for (const Part part : {Part::kInputScale, Part::kInputGlobalScale}) {
        if (tensors.Get(part) != nullptr) with_input_scale_.insert(ProjectionOf(key));
      }
    }
  }

  // Most experts of a layer under the layer's name, those stored otherwise under their own.
  void NameExperts() {
    std::map<Module, std::set<ResultEncoding>> encodings;
    for (const auto& [layer, matrices] : experts_) {
      for (const auto& [module, matrix] : matrices) encodings[module].insert(matrix.encoding);
    }
    for (auto& [layer, matrices] : experts_) {
      std::map<ResultEncoding, int64_t> counts;
      for (const auto& [module, matrix] : matrices) ++counts[matrix.encoding];
      const ResultEncoding most =
          std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
            return a.second < b.second;
          })->first;
      for (auto& [module, matrix] : matrices) {
        if (matrix.encoding == most) {
          matrix.name = layer;
          matrix.routed_experts = true;
        } else {
          matrix.exact = encodings[module].size() > 1;
        }
        plan_.modules.insert(std::move(matrix));
      }
    }
  }

  // One job for what shares a global scale and a shard.
  Status MakeJobs() {
    for (auto& [group, candidates] : groups_) {
      std::map<const SafetensorsFile*, MatrixJob> jobs;
      std::vector<ModuleKey> scale_group;
      for (const Candidate& candidate : candidates) {
        scale_group.push_back(candidate.matrix.key);
        if (candidate.action != candidates[0].action && plan_.format != TargetFormat::kBf16) {
          return MakeError(
              "{}: {} is {} but {} is {}; the two share a global scale and must have one format",
              model_.checkpoint().directory().string(), Describe(candidates[0].matrix.key),
              StoredFormatName(candidates[0].matrix.from), Describe(candidate.matrix.key),
              StoredFormatName(candidate.matrix.from));
        }
      }
      for (Candidate& candidate : candidates) {
        MatrixJob& job = jobs[candidate.file];
        if (job.matrices.empty()) job.source_offset = candidate.offset;
        job.action = candidate.action;
        job.scale_group = scale_group;
        job.matrices.push_back(std::move(candidate.matrix));
      }
      for (auto& [file, job] : jobs) {
        plan_.shards[shard_of_.at(file)].matrices.push_back(std::move(job));
      }
    }
    return {};
  }

  void AddCopies() {
    for (const CheckpointTensor& tensor : model_.checkpoint().tensors()) {
      if (consumed_.contains(tensor.info)) continue;
      plan_.shards[shard_of_.at(tensor.file)].copies.push_back({&tensor, 0});
    }
  }

  void LayOutShards() {
    for (ShardPlan& shard : plan_.shards) {
      for (CopyJob& copy : shard.copies) {
        copy.output = shard.outputs.size();
        shard.outputs.push_back(CopyOf(*copy.source));
        copy.e8m0_to_f32 =
            shard.outputs.back().dtype == DType::kF32 && copy.source->info->dtype != DType::kF32;
      }
      std::stable_sort(
          shard.matrices.begin(), shard.matrices.end(),
          [](const MatrixJob& a, const MatrixJob& b) { return a.source_offset < b.source_offset; });
      for (MatrixJob& job : shard.matrices) {
        for (MatrixPlan& matrix : job.matrices) LayOut(matrix, shard);
      }
    }
    std::erase_if(plan_.shards, [](const ShardPlan& shard) { return shard.outputs.empty(); });
  }

  // Of a tensor that stays: its name and type may be another tool's.
  TensorSpec CopyOf(const CheckpointTensor& source) const {
    if (const auto it = restated_.find(source.info); it != restated_.end()) return it->second;
    TensorSpec spec = TensorSpec::Of(*source.info);
    const std::optional<TensorName> name = ParseTensorName(spec.name);
    if (!name) return spec;
    const auto usual = FormatTensorName(name->key, name->part, name->style);
    if (usual) spec.name = *usual;
    return spec;
  }

  void LayOut(MatrixPlan& matrix, ShardPlan& shard) {
    matrix.first_output = shard.outputs.size();
    const ModuleKey fused = FusedExpertsOf(matrix.key);
    const auto home = home_.find(fused);
    if (matrix.key.expert == kNoExpert || home == home_.end()) {
      for (TensorSpec& output : OutputsOf(matrix, plan_.format)) {
        shard.outputs.push_back(std::move(output));
      }
      matrix.name = shard.outputs[matrix.first_output].name;
      return;
    }
    const auto [place, first] = fused_output_.try_emplace(fused, matrix.first_output);
    matrix.first_output = place->second;
    if (first) {
      shard.outputs.push_back({*FormatTensorName(fused, Part::kWeight, matrix.style), DType::kBf16,
                               *ExpectedShape(model_.config(), fused)});
    }
    const Shape& shape = shard.outputs[matrix.first_output].shape;  // [experts, rows, columns]
    const int64_t row = matrix.key.module == Module::kExpertUp ? matrix.rows : 0;
    matrix.output_offset =
        (matrix.key.expert * shape[1] + row) * shape[2] * DTypeSize(DType::kBf16);
    matrix.name = fmt::format("{}[{}, {}:{}]", shard.outputs[matrix.first_output].name,
                              matrix.key.expert, row, row + matrix.rows);
  }

  // A leftover tensor may already have the name of a new one.
  Status CheckNames() const {
    std::unordered_set<std::string_view> names;
    for (const ShardPlan& shard : plan_.shards) {
      for (const TensorSpec& output : shard.outputs) {
        if (!names.insert(output.name).second) {
          return MakeError("{}: the result would hold {} twice; remove the leftover tensor first",
                           model_.checkpoint().directory().string(), output.name);
        }
      }
    }
    return {};
  }

  const ModelCheckpoint& model_;
  const ConvertScope scope_;
  ConversionPlan plan_;
  std::map<const SafetensorsFile*, size_t> shard_of_;
  std::map<ModuleKey, std::vector<Candidate>> groups_;
  std::set<ModuleKey> with_input_scale_;  // projections of routed experts, in all experts or some
  // Matrices of routed experts by the name of their layer's.
  std::map<std::string, std::vector<std::pair<Module, ResultModule>>> experts_;
  std::unordered_set<const TensorInfo*> consumed_;  // source tensors that do not appear as they are
  std::unordered_map<const TensorInfo*, TensorSpec> restated_;  // copies under another name or type
  std::map<ModuleKey, const SafetensorsFile*> home_;            // of experts that become fused
  std::map<ModuleKey, size_t> fused_output_;                    // in the shard of that file
};

}  // namespace

const char* TargetFormatName(TargetFormat format) {
  switch (format) {
    case TargetFormat::kModelOptNvfp4:
      return "nvfp4";
    case TargetFormat::kCtNvfp4:
      return "nvfp4-ct";
    case TargetFormat::kBf16:
      return "bf16";
  }
  return "?";
}

const char* ConvertScopeName(ConvertScope scope) {
  return scope == ConvertScope::kExperts ? "experts" : "experts+shared";
}

const char* ConvertActionName(ConvertAction action) {
  switch (action) {
    case ConvertAction::kQuantize:
      return "quantized";
    case ConvertAction::kLossless:
      return "lossless";
    case ConvertAction::kRewrap:
      return "rewrapped";
    case ConvertAction::kDequantize:
      return "dequantized";
    case ConvertAction::kFuse:
      return "fused";
  }
  return "?";
}

int64_t ShardPlan::source_bytes() const {
  int64_t bytes = 0;
  for (const CopyJob& copy : copies) bytes += copy.source->info->bytes;
  for (const MatrixJob& job : matrices) {
    for (const MatrixPlan& matrix : job.matrices) bytes += matrix.source_bytes;
  }
  return bytes;
}

int64_t ConversionPlan::source_bytes() const {
  int64_t bytes = 0;
  for (const ShardPlan& shard : shards) bytes += shard.source_bytes();
  return bytes;
}

int64_t ConversionPlan::output_bytes() const {
  int64_t bytes = 0;
  for (const ShardPlan& shard : shards) {
    for (const TensorSpec& output : shard.outputs) bytes += output.bytes();
  }
  return bytes;
}

Result<ConversionPlan> PlanConversion(const ModelCheckpoint& model, TargetFormat format,
                                      ConvertScope scope) {
  return Planner(model, format, scope).Plan();
}

}  // namespace halfbyte
