#include "checkpoint/verify.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/quantization_config.h"
#include "checkpoint/weight_scan.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {
namespace {

// The largest block scale is normal where a block's largest value is within 3.6 % of the tensor's.
// That values were clipped only their source proves. Without it these many such blocks are looked
// at, and are suspicious if they hold so many more codes of the largest magnitude than other blocks
// that chance does not explain it: clipping makes large values equal.
constexpr double kSuspiciousShare = 0.05;
constexpr double kSuspiciousRatio = 1.5;
constexpr double kSuspiciousExcess = 8;  // over 1 / sqrt(blocks)
// NVFP4 of ordinary weights has about 20 dB; below this something else is wrong.
constexpr double kPoorSqnr = 10;

// What one module contributes.
struct ModuleResult {
  Findings findings;
  std::optional<FormatUse> use;
  std::optional<Comparison> comparison;
};

void Add(Findings& findings, Severity severity, std::string where, std::string message) {
  findings.push_back({severity, std::move(where), std::move(message)});
}

// Logical modules that are stored: fused tensors one expert at a time.
std::vector<ModuleKey> StoredKeys(const ModelCheckpoint& model) {
  std::set<ModuleKey> keys;
  for (const auto& [key, tensors] : model.modules()) {
    if (tensors.Main() == nullptr || model.Unread(key)) continue;
    const Shape& shape = tensors.Main()->info->shape;
    if (!IsRoutedExpert(key.module) || key.expert != kNoExpert) {
      keys.insert(key);
      continue;
    }
    for (int32_t e = 0; shape.size() == 3 && e < shape[0]; ++e) {
      ModuleKey expert = key;
      expert.expert = e;
      if (key.module == Module::kExpertDown) {
        keys.insert(expert);
        continue;
      }
      for (const Module module : {Module::kExpertGate, Module::kExpertUp}) {
        expert.module = module;
        keys.insert(expert);
      }
    }
  }
  return {keys.begin(), keys.end()};
}

// Which tensor of the module holds the block scales, for messages.
std::string ScalesName(const ModelCheckpoint& model, const ModuleKey& key,
                       const std::string& weight) {
  const auto it = model.modules().find(key);
  if (it == model.modules().end()) return weight;
  const Result<WeightLayout> layout = DetectLayout(it->second);
  const CheckpointTensor* scales = layout ? it->second.Get(layout->scale_part) : nullptr;
  return scales == nullptr ? weight : scales->name();
}

void CheckScaleBytes(const ModelCheckpoint& model, const ModuleKey& key, const StoredWeight& weight,
                     const ScaleScan& scan, Findings& findings) {
  if (scan.bad > 0) {
    const int64_t columns = weight.matrix.scale_columns();
    const int byte = static_cast<int>(weight.matrix.scales[scan.first_bad]);
    const bool one_byte = DTypeSize(weight.matrix.scale_dtype) == 1;
    Add(findings, Severity::kError, ScalesName(model, key, weight.name),
        fmt::format("{} of {} scales are invalid (NaN, signed, infinite or zero); the first at row "
                    "{}, block {}{}",
                    scan.bad, scan.scales, scan.first_bad / columns, scan.first_bad % columns,
                    one_byte ? fmt::format(": byte 0x{:02x}", byte) : ""));
  }
}

// For NVFP4 without a reference.
void SuspectClipping(const ModelCheckpoint& model, const ModuleKey& key, const StoredWeight& weight,
                     const ScaleScan& scan, const ElementScan& elements, Findings& findings) {
  const auto full = static_cast<double>(scan.at_max);
  const auto others = static_cast<double>(scan.scales - scan.at_max - elements.zero_blocks);
  if (full <= kSuspiciousShare * static_cast<double>(scan.scales)) return;
  const double in_full = static_cast<double>(elements.at_max_under_max_scale) / full;
  const double in_others =
      static_cast<double>(elements.at_max - elements.at_max_under_max_scale) / std::max(others, 1.);
  if (in_full < kSuspiciousRatio * in_others) return;
  if ((in_full - in_others) * std::sqrt(full) < kSuspiciousExcess) return;
  Add(findings, Severity::kWarning, ScalesName(model, key, weight.name),
      fmt::format("{} of {} block scales are at the maximum 448, with {:.1f} values of the largest "
                  "magnitude each where other blocks have {:.1f}: the global scale {} may be too "
                  "small and have clipped them (--reference SOURCE tells)",
                  scan.at_max, scan.scales, in_full, in_others,
                  weight.matrix.global_scale.value()));
}

void CheckElements(const std::string& name, int64_t columns, const ElementScan& scan,
                   Findings& findings) {
  if (scan.bad == 0) return;
  Add(findings, Severity::kError, name,
      fmt::format("{} of {} elements are NaN or infinite; the first at row {}, column {}", scan.bad,
                  scan.elements, scan.first_bad / columns, scan.first_bad % columns));
}

FormatUse UseOf(const std::string& format, const ScaleScan& scales, const ElementScan& elements) {
  return {format,
          1,
          elements.elements,
          elements.zero,
          elements.at_max,
          scales.scales,
          std::max(scales.zero, elements.zero_blocks),
          scales.at_max};
}

bool AllZero(const ScaleScan& scales, const ElementScan& elements) {
  return elements.zero == elements.elements || (scales.scales > 0 && scales.zero == scales.scales);
}

bool IsAllZero(const ModelCheckpoint& model, const ModuleKey& key) {
  const Result<StoredWeight> weight = model.FindWeight(key);
  return weight && AllZero(ScanScales(weight->matrix), ScanElements(weight->matrix));
}

// Whether what down multiplies is zero whatever the token.
bool HasZeroInput(const ModelCheckpoint& model, ModuleKey key) {
  const bool routed = key.module == Module::kExpertDown;
  if (!routed && key.module != Module::kSharedDown) return false;
  key.module = routed ? Module::kExpertGate : Module::kSharedGate;
  if (IsAllZero(model, key)) return true;
  key.module = routed ? Module::kExpertUp : Module::kSharedUp;
  return IsAllZero(model, key);
}

// A multiplier above 1 or a divisor below 1 looks like the other convention (CNV-01). Exactly 1 is
// what tools leave where there was nothing to scale: no data, or a matrix of zeros
// (checkpoints.md §3).
void CheckConvention(const ModelCheckpoint& model, const ModuleKey& key, Part part, bool divisor,
                     bool all_zero, Findings& findings) {
  const CheckpointTensor* tensor = model.modules().at(key).Get(part);
  if (tensor == nullptr) return;
  const Result<float> value = ReadScalar(*tensor);
  if (!value || !std::isfinite(*value)) return;  // reported with the weight
  const bool of_input = part == Part::kInputScale || part == Part::kInputGlobalScale;
  if (*value == 1) {
    if (all_zero || (of_input && HasZeroInput(model, key))) return;
    Add(findings, of_input ? Severity::kWarning : Severity::kNote, tensor->name(),
        of_input ? "is exactly 1, which marks an expert that calibration never reached"
                 : "is exactly 1: the block scales alone carry the range of the values");
  } else if (divisor ? *value < 1 : *value > 1) {
    Add(findings, Severity::kWarning, tensor->name(),
        fmt::format("is {}: a {} {} 1 looks like the other convention", *value,
                    divisor ? "divisor" : "multiplier", divisor ? "below" : "above"));
  }
}

void CheckConventions(const ModelCheckpoint& model, const ModuleKey& key, bool all_zero,
                      Findings& findings) {
  if (!model.modules().contains(key)) return;  // part of a fused tensor
  for (const auto& [part, divisor] :
       {std::pair{Part::kWeightScale2, false}, std::pair{Part::kInputScale, false},
        std::pair{Part::kWeightGlobalScale, true}, std::pair{Part::kInputGlobalScale, true}}) {
    CheckConvention(model, key, part, divisor, all_zero, findings);
  }
}

// Gate and up share one product; unequal scales need two factors there (CNV-02).
void CheckGateAndUp(const ModelCheckpoint& model, ModuleKey key, const StoredWeight& gate,
                    Findings& findings) {
  if (key.module != Module::kExpertGate && key.module != Module::kSharedGate) return;
  key.module = key.module == Module::kExpertGate ? Module::kExpertUp : Module::kSharedUp;
  const Result<StoredWeight> up = model.FindWeight(key);
  if (!up) return;  // reported in its own turn
  if (gate.format == up->format && gate.matrix.global_scale != up->matrix.global_scale) {
    Add(findings, Severity::kWarning, gate.name,
        fmt::format("gate and up have different global scales, {} and {}",
                    gate.matrix.global_scale.value(), up->matrix.global_scale.value()));
  }
  if (gate.input_scale && up->input_scale && *gate.input_scale != *up->input_scale) {
    Add(findings, Severity::kWarning, gate.name,
        fmt::format("gate and up have different input scales, {} and {}", gate.input_scale->value(),
                    up->input_scale->value()));
  }
}

void CompareWeights(const ModuleKey& key, const StoredWeight& weight,
                    const ModelCheckpoint& reference, ModuleResult& result) {
  if (!reference.Has(key)) {
    Add(result.findings, Severity::kNote, weight.name, "not in the reference");
    return;
  }
  const Result<StoredWeight> other = reference.FindWeight(key);
  if (!other) {
    result.findings.push_back(FindingOf(Error{"reference: " + other.error().message}));
    return;
  }
  const int64_t rows = weight.matrix.rows;
  const int64_t columns = weight.matrix.columns;
  if (other->matrix.rows != rows || other->matrix.columns != columns) {
    Add(result.findings, Severity::kError, weight.name,
        fmt::format("is [{}, {}], but [{}, {}] in the reference", rows, columns, other->matrix.rows,
                    other->matrix.columns));
    return;
  }
  Comparison comparison{
      key,     weight.name, StoredFormatName(weight.format), StoredFormatName(other->format),
      columns, {}};
  const bool nvfp4 = weight.matrix.format == WeightFormat::kNvfp4;
  const float per_scale = 1.0f / weight.matrix.global_scale.value() / kE2m1Max;
  std::vector<float> mine(static_cast<size_t>(columns)), theirs(mine.size());
  for (int64_t r = 0; r < rows; ++r) {
    DequantizeRow(weight.matrix, r, mine.data());
    DequantizeRow(other->matrix, r, theirs.data());
    for (int64_t c = 0; c < columns; ++c) {
      const auto at = static_cast<size_t>(c);
      comparison.error.Add(r * columns + c, mine[at], theirs[at]);
    }
    for (int64_t c = 0; nvfp4 && c < columns; c += kNvfp4Block) {
      const float wanted = BlockAmax(&theirs[static_cast<size_t>(c)]) * per_scale;
      comparison.clipped_blocks += wanted > kE4m3ClipThreshold;
    }
  }
  other->DropPages();
  result.comparison = std::move(comparison);
}

void VerifyMatrix(const ModelCheckpoint& model, const ModuleKey& key,
                  const ModelCheckpoint* reference, ModuleResult& result) {
  const Result<StoredWeight> weight = model.FindWeight(key);
  if (!weight) {
    result.findings.push_back(FindingOf(weight.error()));
    return;
  }
  const ScaleScan scales = ScanScales(weight->matrix);
  const ElementScan elements = ScanElements(weight->matrix);
  CheckScaleBytes(model, key, *weight, scales, result.findings);
  CheckElements(weight->name, weight->matrix.columns, elements, result.findings);
  CheckConventions(model, key, AllZero(scales, elements), result.findings);
  CheckGateAndUp(model, key, *weight, result.findings);
  result.use = UseOf(StoredFormatName(weight->format), scales, elements);
  if (reference != nullptr) CompareWeights(key, *weight, *reference, result);
  if (!result.comparison && weight->matrix.format == WeightFormat::kNvfp4) {
    SuspectClipping(model, key, *weight, scales, elements, result.findings);
  }
  weight->DropPages();
}

void ComparePlain(const ModuleKey& key, const CheckpointTensor& tensor,
                  const ModelCheckpoint& reference, ModuleResult& result) {
  const Result<CheckpointTensor> other = reference.FindTensor(key);
  if (!other) {
    if (reference.Has(key)) {
      result.findings.push_back(FindingOf(Error{"reference: " + other.error().message}));
    } else {
      Add(result.findings, Severity::kNote, tensor.name(), "not in the reference");
    }
    return;
  }
  const TensorView mine = tensor.View();
  const TensorView theirs = other->View();
  if (mine.shape != theirs.shape) {
    Add(result.findings, Severity::kError, tensor.name(),
        fmt::format("is {}, but {} in the reference", ShapeString(mine.shape),
                    ShapeString(theirs.shape)));
    return;
  }
  const auto value = [&](const TensorView& view, int64_t i) {
    if (view.dtype == DType::kI64) return static_cast<float>(view.Load<int64_t>(i));
    if (view.dtype == DType::kI32) return static_cast<float>(view.Load<int32_t>(i));
    return FloatAt(view, i);
  };
  Comparison comparison{key,
                        tensor.name(),
                        PlainFormatName(mine.dtype),
                        PlainFormatName(theirs.dtype),
                        mine.shape.size() == 2 ? mine.shape[1] : mine.elements(),
                        {}};
  for (int64_t i = 0; i < mine.elements(); ++i) {
    comparison.error.Add(i, value(mine, i), value(theirs, i));
  }
  other->DropPages();
  result.comparison = std::move(comparison);
}

void VerifyPlain(const ModelCheckpoint& model, const ModuleKey& key,
                 const ModelCheckpoint* reference, ModuleResult& result) {
  const Result<CheckpointTensor> tensor = model.FindTensor(key);
  if (!tensor) {
    result.findings.push_back(FindingOf(tensor.error()));
    return;
  }
  const TensorView view = tensor->View();
  if (key.module == Module::kRouterTable) {
    const int64_t experts =
        model.has_config() ? model.config().routed_experts : std::numeric_limits<int32_t>::max();
    if (view.shape.size() == 2) {
      if (const auto problem = RouterTableProblem(view, experts)) {
        Add(result.findings, Severity::kError, tensor->name(), *problem);
      }
    }
  } else {
    const int64_t columns =
        view.shape.size() == 2 ? view.shape[1] : std::max<int64_t>(view.elements(), 1);
    const ElementScan scan = ScanFloats(view);
    CheckElements(tensor->name(), columns, scan, result.findings);
    result.use = UseOf(PlainFormatName(view.dtype), {}, scan);
  }
  if (reference != nullptr) ComparePlain(key, *tensor, *reference, result);
  tensor->DropPages();
}

void JudgeComparison(const Comparison& comparison, Findings& findings) {
  const ErrorStats& error = comparison.error;
  if (comparison.clipped_blocks > 0) {
    Add(findings, Severity::kWarning, comparison.tensor,
        fmt::format("{} blocks of the reference hold values beyond what the global scale reaches: "
                    "they are clipped",
                    comparison.clipped_blocks));
  }
  if (comparison.key.module == Module::kRouterTable) {
    if (!error.exact()) {
      Add(findings, Severity::kError, comparison.tensor, "differs from the reference");
    }
    return;
  }
  if (error.exact() || error.sqnr_db() >= kPoorSqnr) return;
  const bool foreign = !(error.sqnr_db() > 0);
  Add(findings, foreign ? Severity::kError : Severity::kWarning, comparison.tensor,
      fmt::format("{:.1f} dB from the reference: {}", error.sqnr_db(),
                  foreign ? "these are other numbers" : "more than quantization explains"));
}

void Collect(std::vector<ModuleResult>& results, Verification& verification) {
  std::map<std::string, FormatUse> uses;
  for (ModuleResult& result : results) {
    for (Finding& finding : result.findings) verification.findings.push_back(std::move(finding));
    if (result.use) {
      FormatUse& sum = uses[result.use->format];
      sum.format = result.use->format;
      sum.matrices += result.use->matrices;
      sum.elements += result.use->elements;
      sum.zero += result.use->zero;
      sum.at_max += result.use->at_max;
      sum.scales += result.use->scales;
      sum.zero_blocks += result.use->zero_blocks;
      sum.max_scales += result.use->max_scales;
    }
    if (!result.comparison) continue;
    JudgeComparison(*result.comparison, verification.findings);
    verification.comparisons.push_back(std::move(*result.comparison));
  }
  for (auto& [name, use] : uses) verification.formats.push_back(std::move(use));
}

// Headers and data notice some faults twice; one report is enough.
void DropRepeats(Findings& findings) {
  std::set<std::pair<std::string, std::string>> seen;
  std::erase_if(findings, [&](const Finding& finding) {
    return !seen.emplace(finding.where, finding.message).second;
  });
}

int64_t BytesOf(const ModelCheckpoint& model, const ModuleKey& key) {
  const auto it = model.modules().find(key);
  if (it == model.modules().end()) return 0;
  int64_t bytes = 0;
  for (const CheckpointTensor& part : it->second.parts) {
    if (part.info != nullptr) bytes += part.info->bytes;
  }
  return bytes;
}

}  // namespace

bool Verification::loads_everywhere() const {
  return std::none_of(tools.begin(), tools.end(),
                      [](const ToolVerdict& tool) { return tool.loads == Loads::kNo; });
}

Result<Verification> Verify(const std::filesystem::path& directory, const VerifyOptions& options) {
  Verification verification;
  verification.directory = directory.string();
  HB_ASSIGN_OR_RETURN(const ModelCheckpoint model,
                      ModelCheckpoint::OpenWithFindings(directory, verification.findings));
  std::optional<ModelCheckpoint> reference;
  if (options.reference) {
    HB_ASSIGN_OR_RETURN(reference, ModelCheckpoint::Open(*options.reference));
  }
  CheckInventory(model, verification.findings);
  CheckQuantizationConfig(model, verification.findings);
  CheckCompanionFiles(directory, verification.findings);
  verification.tensors = std::ssize(model.checkpoint().tensors());
  verification.bytes = model.checkpoint().tensor_bytes();

  const std::vector<ModuleKey> keys = StoredKeys(model);
  std::vector<ModuleResult> results(keys.size());
  ThreadPool pool(options.threads);
  Progress progress("verify", verification.bytes);
  const ModelCheckpoint* other = reference ? &*reference : nullptr;
  pool.ParallelFor(std::ssize(keys), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ModuleKey& key = keys[static_cast<size_t>(i)];
      ModuleResult& result = results[static_cast<size_t>(i)];
      if (IsMatrix(key.module)) {
        VerifyMatrix(model, key, other, result);
      } else {
        VerifyPlain(model, key, other, result);
      }
      progress.Advance(BytesOf(model, key));
    }
  });
  Collect(results, verification);
  for (const ModuleKey& key : reference ? StoredKeys(*reference) : std::vector<ModuleKey>{}) {
    if (model.Has(key)) continue;
    Add(verification.findings, Severity::kNote, Describe(key), "only in the reference");
  }
  DropRepeats(verification.findings);
  std::stable_sort(verification.findings.begin(), verification.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  verification.tools = JudgeTools(model, verification.findings, options.tools);
  return verification;
}

}  // namespace halfbyte
