#include "kernels/rms_norm/rms_norm.h"

#include <algorithm>

#include "kernels/row_math.h"

namespace halfbyte {
namespace {

using namespace HB_SIMD_NAMESPACE;  // NOLINT: the baseline variants of simd16.h

void NormRow(const float* x, const float* weight, float factor, int64_t n, Rounding rounding,
             float* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    F32x16 normed = Mul(Load16(x + i), Set16(factor));
    if (weight != nullptr) normed = Mul(Load16(weight + i), normed);
    Store16(y + i, rounding == Rounding::kBf16 ? RoundBf16(normed) : normed);
  }
  for (; i < n; ++i) {
    const float normed = x[i] * factor;
    y[i] = Round(rounding, weight != nullptr ? weight[i] * normed : normed);
  }
}

}  // namespace

void RmsNorm(const Context& context, MatrixView<const float> x, const float* weight, float eps,
             Rounding rounding, MatrixView<float> y) {
  const int64_t n = x.columns;
  context.pool().ParallelFor(x.rows, RowsPerPiece(n), [&](int64_t begin, int64_t end) {
    constexpr int64_t kRows = 4;  // of NormFactors
    for (int64_t r = begin; r < end; r += kRows) {
      const int64_t count = std::min(kRows, end - r);
      float factors[kRows];
      NormFactors(x.row(r), count, n, eps, factors);
      for (int64_t i = 0; i < count; ++i) {
        NormRow(x.row(r + i), weight, factors[i], n, rounding, y.row(r + i));
      }
    }
  });
}

}  // namespace halfbyte
