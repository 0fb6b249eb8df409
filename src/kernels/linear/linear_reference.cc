#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/linear/linear.h"
#include "kernels/segment_sum.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {
namespace {

constexpr int kLanes = 16;

// The rows of w in fp32 without the global scale of NVFP4.
void DecodeRow(WeightMatrix w, int64_t row, float* out) {
  w.global_scale = GlobalScale(1.0f);
  DequantizeRow(w, row, out);
}

float LaneDot(const float* x, const float* w, int64_t k, float factor) {
  float lanes[kLanes] = {};
  for (int64_t begin = 0; begin < k; begin += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const bool inside = begin + l < k;
      lanes[l] = std::fma(inside ? x[begin + l] : 0.0f, inside ? w[begin + l] : 0.0f, lanes[l]);
    }
  }
  for (int width = kLanes / 2; width >= 1; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0] * factor;
}

float SegmentsDot(const float* x, const float* w, int64_t k, float factor) {
  std::vector<float> sums;
  for (int64_t begin = 0; begin < k; begin += kSegmentColumns) {
    sums.push_back(LaneDot(x + begin, w + begin, std::min(kSegmentColumns, k - begin), factor));
  }
  while (sums.size() > 1) {
    std::vector<float> pairs;
    for (size_t i = 0; i < sums.size(); i += 2) {
      pairs.push_back(i + 1 < sums.size() ? sums[i] + sums[i + 1] : sums[i]);
    }
    sums = pairs;
  }
  return sums.empty() ? 0.0f : sums[0];
}

void MultiplyByReference(MatrixView<const float> x, const WeightMatrix& w, MatrixView<float> y,
                         float (*dot)(const float* x, const float* w, int64_t k, float factor)) {
  const float factor = w.format == WeightFormat::kNvfp4 ? w.global_scale.value() : 1.0f;
  std::vector<float> row(static_cast<size_t>(w.columns));
  for (int64_t n = 0; n < w.rows; ++n) {
    DecodeRow(w, n, row.data());
    for (int64_t t = 0; t < x.rows; ++t) {
      y.row(t)[n] = dot(x.row(t), row.data(), w.columns, factor);
    }
  }
}

// The rows of w in double: products with a scale are exact there.
void DecodeRowF64(const WeightMatrix& w, int64_t row, double* out) {
  std::vector<float> exact(static_cast<size_t>(w.columns));
  if (w.format != WeightFormat::kFp8) {
    DecodeRow(w, row, exact.data());
    for (int64_t k = 0; k < w.columns; ++k) out[k] = exact[static_cast<size_t>(k)];
    return;
  }
  const auto* codes = reinterpret_cast<const uint8_t*>(w.data + row * w.row_bytes());
  for (int64_t k = 0; k < w.columns; ++k) {
    out[k] = double{E4m3ToFloat(codes[k])} * double{Fp8WeightScale(w, row, k)};
  }
}

}  // namespace

void LinearReference(MatrixView<const float> x, const WeightMatrix& w, MatrixView<float> y) {
  MultiplyByReference(x, w, y, LaneDot);
}

void LinearSegmentsReference(MatrixView<const float> x, const WeightMatrix& w,
                             MatrixView<float> y) {
  MultiplyByReference(x, w, y, SegmentsDot);
}

void LinearF64Range(MatrixView<const float> x, const WeightMatrix& w, int64_t begin, int64_t end,
                    MatrixView<float> y) {
  HB_CHECK(x.columns == w.columns && y.rows == x.rows && y.columns == w.rows,
           "x [{}, {}], w [{}, {}], y [{}, {}]", x.rows, x.columns, w.rows, w.columns, y.rows,
           y.columns);
  std::vector<double> row(static_cast<size_t>(w.columns));
  for (int64_t n = begin; n < end; ++n) {
    DecodeRowF64(w, n, row.data());
    for (int64_t t = 0; t < x.rows; ++t) {
      double sum = 0;
      for (int64_t k = 0; k < w.columns; ++k) {
        sum += double{x.row(t)[k]} * row[static_cast<size_t>(k)];
      }
      if (w.format == WeightFormat::kNvfp4) sum *= double{w.global_scale.value()};
      y.row(t)[n] = static_cast<float>(sum);
    }
  }
}

void LinearF64(const Context& context, MatrixView<const float> x, const WeightMatrix& w,
               MatrixView<float> y) {
  context.pool().ParallelFor(
      w.rows, LinearGrain(context, x.rows, w),
      [&](int64_t begin, int64_t end) { LinearF64Range(x, w, begin, end, y); });
}

}  // namespace halfbyte
