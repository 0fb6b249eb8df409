#include "kernels/elementwise/elementwise.h"

#include <algorithm>

#include "kernels/row_math.h"

namespace halfbyte {
namespace {

template <class Function>
void ForEachElement(const Context& context, MatrixView<float> x, const Function& function) {
  context.pool().ParallelFor(x.rows * x.columns, int64_t{1} << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) function(i);
  });
}

}  // namespace

void RoundRows(const Context& context, Rounding rounding, MatrixView<float> x) {
  if (rounding == Rounding::kNone) return;
  ForEachElement(context, x, [&](int64_t i) { x.data[i] = RoundToBf16(x.data[i]); });
}

void ScaleRows(const Context& context, float factor, Rounding rounding, MatrixView<float> x) {
  ForEachElement(context, x, [&](int64_t i) { x.data[i] = Round(rounding, factor * x.data[i]); });
}

void AddRows(const Context& context, MatrixView<const float> y, Rounding rounding,
             MatrixView<float> x) {
  ForEachElement(context, x,
                 [&](int64_t i) { x.data[i] = Round(rounding, x.data[i] + y.data[i]); });
}

void EmbedTokens(const Context& context, const WeightMatrix& table, std::span<const int32_t> ids,
                 int64_t copies, Rounding rounding, MatrixView<float> out) {
  const int64_t dim = table.columns;
  context.pool().ParallelFor(out.rows, RowsPerPiece(out.columns), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = out.row(t);
      DequantizeRow(table, ids[static_cast<size_t>(t)], row);
      for (int64_t i = 0; i < dim; ++i) row[i] = Round(rounding, row[i]);
      for (int64_t copy = 1; copy < copies; ++copy) std::copy_n(row, dim, row + copy * dim);
    }
  });
}

}  // namespace halfbyte
