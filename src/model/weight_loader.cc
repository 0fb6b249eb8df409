#include "model/weight_loader.h"

#include <cmath>

#include "moe/router.h"
#include "numerics/bf16.h"
#include "numerics/fp16.h"

namespace halfbyte {
namespace {

Result<float> LoadNumber(const TensorView& view, int64_t index, std::string_view name) {
  switch (view.dtype) {
    case DType::kF32:
      return view.Load<float>(index);
    case DType::kBf16:
      return ToFloat(view.Load<Bf16>(index));
    case DType::kF16:
      return ToFloat(view.Load<Fp16>(index));
    default:
      return MakeError("{}: dtype {} where F32, BF16 or F16 is expected", name,
                       DTypeName(view.dtype));
  }
}

}  // namespace

Result<WeightMatrix> WeightLoader::Matrix(const ModuleKey& key, int64_t rows,
                                          int64_t columns) const {
  HB_ASSIGN_OR_RETURN(const StoredWeight stored, checkpoint_->FindWeight(key));
  if (stored.matrix.rows != rows || stored.matrix.columns != columns) {
    return MakeError("{}: shape [{}, {}] where config.json makes it [{}, {}]", stored.name,
                     stored.matrix.rows, stored.matrix.columns, rows, columns);
  }
  return stored.matrix;
}

Result<std::vector<float>> WeightLoader::Vector(const ModuleKey& key, int64_t count) const {
  HB_ASSIGN_OR_RETURN(const CheckpointTensor tensor, checkpoint_->FindTensor(key));
  const TensorView view = tensor.View();
  const std::string_view name = tensor.info->name;
  if (view.elements() != count) {
    return MakeError("{}: shape {} where {} elements are expected", name, ShapeString(view.shape),
                     count);
  }
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    HB_ASSIGN_OR_RETURN(values[static_cast<size_t>(i)], LoadNumber(view, i, name));
    if (!std::isfinite(values[static_cast<size_t>(i)])) {
      return MakeError("{}: element {} is not finite", name, i);
    }
  }
  return values;
}

Result<std::vector<int32_t>> WeightLoader::RouterTable(const ModuleKey& key) const {
  HB_ASSIGN_OR_RETURN(const CheckpointTensor tensor, checkpoint_->FindTensor(key));
  return ReadHashTable(tensor.View(), config().routed_experts, config().experts_per_token,
                       tensor.info->name);
}

}  // namespace halfbyte
