#include "kernels/rms_norm/rms_norm.h"

#include <cmath>

#include "kernels/row_math.h"

namespace halfbyte {

void RmsNorm(const Context& context, MatrixView<const float> x, const float* weight, float eps,
             Rounding rounding, MatrixView<float> y) {
  const int64_t n = x.columns;
  context.pool().ParallelFor(x.rows, RowsPerPiece(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* in = x.row(r);
      float* out = y.row(r);
      const float factor = 1.0f / std::sqrt(SumOfSquares(in, n) / static_cast<float>(n) + eps);
      for (int64_t i = 0; i < n; ++i) {
        const float normed = in[i] * factor;
        out[i] = Round(rounding, weight != nullptr ? weight[i] * normed : normed);
      }
    }
  });
}

}  // namespace halfbyte
