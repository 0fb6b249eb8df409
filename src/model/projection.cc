#include "model/projection.h"

#include "kernels/grouped_linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/packed_linear/packed_linear.h"

namespace halfbyte {

Result<Projection> Projection::Load(const WeightLoader& loader, const ModuleKey& key, int64_t rows,
                                    int64_t columns, int64_t groups) {
  HB_ASSIGN_OR_RETURN(const StoredWeight stored, loader.Stored(key, rows, columns));
  Projection projection;
  projection.groups_ = groups;
  projection.stored_ = stored.matrix;
  const int64_t bytes = PackedBytes(stored.matrix);
  const bool whole_panels = groups == 1 || rows / groups % kPanelRows == 0;
  if (loader.packing_pool() == nullptr || bytes == 0 || !whole_panels) return projection;
  HB_ASSIGN_OR_RETURN(projection.memory_,
                      ZeroedMemory::Allocate(bytes, "packed weights", Pages::kHuge));
  HB_ASSIGN_OR_RETURN(
      projection.packed_,
      PackMatrix(*loader.packing_pool(), stored.matrix,
                 reinterpret_cast<uint8_t*>(projection.memory_.data()), stored.name));
  if (projection.packed_) {
    stored.DropPages();
  } else {
    projection.memory_ = {};
  }
  return projection;
}

void Projection::Forward(const Step& step, MatrixView<const float> x, MatrixView<float> y) const {
  if (packed_) {
    const Arena::Scope scope(*step.arena);
    auto* operands =
        step.arena->Take<std::byte>(x.rows * groups_ * MaxOperandRowBytes(packed_->columns));
    return PackedLinear(*step.context, x, groups_, *packed_, operands, y);
  }
  if (groups_ == 1) return Linear(*step.context, x, stored_, y);
  GroupedLinear(*step.context, x, groups_, stored_, y);
}

}  // namespace halfbyte
