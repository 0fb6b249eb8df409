#include "model/checkpoint_weights.h"

#include <cmath>

#include "checkpoint/weight_scan.h"

namespace halfbyte {

Result<StoredWeight> CheckpointWeights::Stored(const ModuleKey& key) const {
  HB_ASSIGN_OR_RETURN(StoredWeight stored, Unread(key));
  HB_RETURN_IF_ERROR(stored.CheckScales());
  stored.DropScalePages();
  return stored;
}

Result<std::vector<float>> CheckpointWeights::Vector(const ModuleKey& key, int64_t count) const {
  HB_ASSIGN_OR_RETURN(const CheckpointTensor tensor, checkpoint_.FindTensor(key));
  const TensorView view = tensor.View();
  const std::string_view name = tensor.info->name;
  if (view.elements() != count) {
    return MakeError("{}: shape {} where {} elements are expected", name, ShapeString(view.shape),
                     count);
  }
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = FloatAt(view, i);
    if (!std::isfinite(values[static_cast<size_t>(i)])) {
      return MakeError("{}: element {} is not finite", name, i);
    }
  }
  return values;
}

Result<std::vector<int32_t>> CheckpointWeights::RouterTable(const ModuleKey& key) const {
  HB_ASSIGN_OR_RETURN(const CheckpointTensor tensor, checkpoint_.FindTensor(key));
  const TensorView view = tensor.View();
  if (const auto problem = RouterTableProblem(view, config().routed_experts)) {
    return MakeError("{}: {}", tensor.name(), *problem);
  }
  std::vector<int32_t> table(static_cast<size_t>(view.elements()));
  for (int64_t i = 0; i < view.elements(); ++i) {
    table[static_cast<size_t>(i)] = view.dtype == DType::kI64
                                        ? static_cast<int32_t>(view.Load<int64_t>(i))
                                        : view.Load<int32_t>(i);
  }
  return table;
}

std::vector<int64_t> CheckpointWeights::LayerBytes() const {
  const int64_t layers = config().layer_count();
  std::vector<int64_t> bytes(static_cast<size_t>(layers) + 1);
  for (const auto& [key, tensors] : checkpoint_.modules()) {
    const bool global = key.scope == Scope::kGlobal;
    if (key.scope == Scope::kMtp || (!global && key.layer >= layers)) continue;
    int64_t& sum = global ? bytes.back() : bytes[static_cast<size_t>(key.layer)];
    for (const CheckpointTensor& part : tensors.parts) {
      if (part.info != nullptr) sum += part.info->bytes;
    }
  }
  return bytes;
}

}  // namespace halfbyte
