#include "model/projection.h"

#include <vector>

#include "kernels/elementwise/elementwise.h"
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

void Projection::Forward(const Step& step, MatrixView<const float> x, MatrixView<float> y,
                         Rounding rounding) const {
  const Output output{this, y, rounding};
  ForwardAll(step, x, {&output, 1});
}

void Projection::ForwardAll(const Step& step, MatrixView<const float> x,
                            std::span<const Output> outputs) {
  const Context& context = *step.context;
  const Arena::Scope scope(*step.arena);
  // Activations are prepared in one way for weights of four bits and in another for the rest.
  std::vector<PackedProduct> four_bit, wide;
  for (const Output& output : outputs) {
    const Projection& w = *output.w;
    if (w.packed_) {
      (w.packed_->format == PackedFormat::kFourBit ? four_bit : wide)
          .push_back({&*w.packed_, output.y, output.rounding});
      continue;
    }
    if (w.groups_ == 1) {
      Linear(context, x, w.stored_, output.y);
    } else {
      GroupedLinear(context, x, w.groups_, w.stored_, output.y);
    }
    RoundRows(context, output.rounding, output.y);
  }
  for (const std::vector<PackedProduct>* products : {&four_bit, &wide}) {
    if (products->empty()) continue;
    const int64_t columns = (*products)[0].w->columns;
    const int64_t groups = x.columns / columns;
    auto* operands = step.arena->Take<std::byte>(x.rows * groups * MaxOperandRowBytes(columns));
    PackedLinear(context, x, groups, *products, operands);
  }
}

}  // namespace halfbyte
