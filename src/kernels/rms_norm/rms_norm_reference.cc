#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/rms_norm/rms_norm.h"
#include "kernels/segment_sum.h"

namespace halfbyte {
namespace {

float SegmentSquares(const float* x, int64_t n) {
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  for (int width = 8; width >= 1; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

float RowSquares(const float* x, int64_t n) {
  std::vector<float> sums;
  for (int64_t begin = 0; begin < n; begin += kSegmentColumns) {
    sums.push_back(SegmentSquares(x + begin, std::min(kSegmentColumns, n - begin)));
  }
  for (size_t width = 1; width < sums.size(); width *= 2) {
    for (size_t i = 0; i + width < sums.size(); i += 2 * width) sums[i] += sums[i + width];
  }
  return sums[0];
}

}  // namespace

void RmsNormReference(MatrixView<const float> x, const float* weight, float eps, Rounding rounding,
                      MatrixView<float> y) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const float mean = RowSquares(x.row(r), x.columns) / static_cast<float>(x.columns);
    const float factor = 1.0f / std::sqrt(mean + eps);
    for (int64_t i = 0; i < x.columns; ++i) {
      const float normed = x.row(r)[i] * factor;
      y.row(r)[i] = Round(rounding, weight != nullptr ? weight[i] * normed : normed);
    }
  }
}

}  // namespace halfbyte
