#include "moe/packed_products.h"

#include <algorithm>

#include "numerics/nvfp4_block.h"

namespace halfbyte {
namespace {

// Rows made into operands that outweigh the start of a piece of a parallel loop.
constexpr int64_t PreparedGrain(int64_t columns) {
  constexpr int64_t kMinPrepared = 1024;  // numbers
  return std::max<int64_t>(1, kMinPrepared / std::max<int64_t>(1, columns));
}

// operands, row_scales of a padded row = row `from` of x, or of its codes.
void PrepareOperand(const PackedKernel& kernel, MatrixView<const float> x, int64_t from,
                    bool quantized, int64_t row, MoeWorkspace& ws) {
  const int64_t width = x.columns;
  std::byte* operand = ws.operands.get() + row * OperandRowBytes(kernel.format, width);
  float& scale = ws.row_scales[static_cast<size_t>(row)];
  if (quantized) {
    PrepareNvfp4Row(ws.codes.get() + from * (width / 2),
                    ws.block_scales.get() + from * (width / kNvfp4Block), width, operand);
    scale = ws.quantized_scales[static_cast<size_t>(from)].value();
  } else {
    PrepareRow(kernel, x.row(from), width, operand);
    scale = 1.0f;
  }
}

// The same for all slots of a token: it is prepared once.
void PrepareToken(const PackedKernel& kernel, MatrixView<const float> x, int64_t token,
                  int64_t top_k, bool quantized, MoeWorkspace& ws) {
  const int64_t row_bytes = OperandRowBytes(kernel.format, x.columns);
  int64_t first = DispatchPlan::kNone;
  for (int64_t slot = token * top_k; slot < (token + 1) * top_k; ++slot) {
    const int64_t row = ws.plan.padded_row_of_slot(slot);
    if (row == DispatchPlan::kNone) continue;
    if (first == DispatchPlan::kNone) {
      first = row;
      PrepareOperand(kernel, x, token, quantized, row, ws);
    } else {
      std::copy_n(ws.operands.get() + first * row_bytes, row_bytes,
                  ws.operands.get() + row * row_bytes);
      ws.row_scales[static_cast<size_t>(row)] = ws.row_scales[static_cast<size_t>(first)];
    }
  }
}

}  // namespace

const PackedKernel* PackedProducts::kernel(const Context& context) const {
  return &BestPackedKernel(PackedArithmeticOf(arithmetic_, experts_.format()), context.isa());
}

const PackedMatrix& PackedProducts::Of(ExpertMatrix matrix, LocalExpert expert) const {
  const PackedExpert& e = experts_[expert];
  return matrix == ExpertMatrix::kGate ? e.gate : matrix == ExpertMatrix::kUp ? e.up : e.down;
}

void PackedProducts::PrepareTokens(const Context& context, MatrixView<const float> x, int64_t top_k,
                                   bool quantized, MoeWorkspace& ws) const {
  const PackedKernel& by = *kernel(context);
  context.pool().ParallelFor(x.rows, PreparedGrain(x.columns), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) PrepareToken(by, x, t, top_k, quantized, ws);
  });
}

void PackedProducts::PrepareH(const Context& context, MatrixView<float> h, bool quantized,
                              MoeWorkspace& ws) const {
  const PackedKernel& by = *kernel(context);
  context.pool().ParallelFor(h.rows, PreparedGrain(h.columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) PrepareOperand(by, h, row, quantized, row, ws);
  });
}

void PackedProducts::Multiply(const Context& context, ExpertMatrix matrix,
                              const MoeWorkspace::Task& task, const MoeWorkspace& ws,
                              MatrixView<float> y) const {
  const PackedKernel& by = *kernel(context);
  const PackedMatrix& w = Of(matrix, task.expert);
  const int64_t first = ws.plan.offsets().begin(task.expert);
  PackedLinearRange(by, w, ws.operands.get() + first * OperandRowBytes(by.format, w.columns),
                    task.begin, task.end, y);
}

}  // namespace halfbyte
