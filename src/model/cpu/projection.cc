#include "model/cpu/projection.h"

#include <vector>

#include "kernels/elementwise/elementwise.h"
#include "kernels/grouped_linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/packed_linear/packed_linear.h"

namespace halfbyte {

Result<Projection> Projection::Create(const StoredWeight& stored, int64_t groups,
                                      ThreadPool* packing_pool) {
  Projection projection;
  projection.groups_ = groups;
  projection.stored_ = stored.matrix;
  const int64_t bytes = PackedBytes(stored.matrix);
  const bool whole_panels = groups == 1 || stored.matrix.rows / groups % kPanelRows == 0;
  if (packing_pool == nullptr || bytes == 0 || !whole_panels) return projection;
  HB_ASSIGN_OR_RETURN(projection.memory_,
                      ZeroedMemory::Allocate(bytes, "packed weights", Pages::kHuge));
  HB_ASSIGN_OR_RETURN(
      projection.packed_,
      PackMatrix(*packing_pool, stored.matrix,
                 reinterpret_cast<uint8_t*>(projection.memory_.data()), stored.name));
  if (projection.packed_) {
    stored.DropPages();
  } else {
    projection.memory_ = {};
  }
  return projection;
}

void Projection::ForwardAll(const Context& context, Arena& arena, MatrixView<const float> x,
                            std::span<const Output> outputs) {
  const Arena::Scope scope(arena);
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
    auto* operands = arena.Take<std::byte>(x.rows * groups * MaxOperandRowBytes(columns));
    PackedLinear(context, x, groups, *products, operands);
  }
}

}  // namespace halfbyte
