// Row-sized building blocks that several kernels share. Baseline instruction set (AVX2 + FMA); sums
// follow the sixteen-lane contract of simd16.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/segment_sum.h"
#include "kernels/simd16.h"

namespace halfbyte {

namespace HB_SIMD_NAMESPACE {

// sum_i a[i] * b[i]
inline float Dot(const float* a, const float* b, int64_t n) {
  F32x16 acc = Zero16();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) acc = Fma(Load16(a + i), Load16(b + i), acc);
  if (i == n) return Sum(acc);
  float lanes[16];
  Store16(lanes, acc);
  for (int64_t l = 0; i + l < n; ++l) lanes[l] = std::fma(a[i + l], b[i + l], lanes[l]);
  return Sum(Load16(lanes));
}

// rsqrt(mean(x^2) + eps) of up to four neighbouring rows. The squares are added in the order of
// segment_sum.h, four segments in step, whichever rows they belong to: the next addition to a sum
// waits for the one before.
inline void NormFactors(const float* x, int64_t rows, int64_t n, float eps, float (&factors)[4]) {
  const int64_t segments = (n + kSegmentColumns - 1) / kSegmentColumns;  // of a row
  const int64_t width = n < kSegmentColumns ? n : kSegmentColumns;
  const bool whole = n % width == 0 && width % 16 == 0;
  TreeSum<1> trees[4];
  int64_t row = 0;
  int64_t segment = 0;
  const auto add = [&](float sum) {
    trees[row].Add(&sum);
    if (++segment < segments) return;
    segment = 0;
    ++row;
  };
  for (int64_t left = rows * segments; whole && left >= 4; left -= 4) {
    const float* first = x + row * n + segment * width;
    F32x16 acc[4] = {Zero16(), Zero16(), Zero16(), Zero16()};
    for (int64_t i = 0; i < width; i += 16) {
      for (int64_t s = 0; s < 4; ++s) {
        const F32x16 values = Load16(first + s * width + i);
        acc[s] = Fma(values, values, acc[s]);
      }
    }
    float sums[4];
    SumFour(acc, 1.0f, sums);
    for (const float sum : sums) add(sum);
  }
  while (row < rows) {
    const int64_t begin = segment * kSegmentColumns;
    const float* first = x + row * n + begin;
    add(Dot(first, first, n - begin < width ? n - begin : width));
  }
  float sums[4] = {};
  for (int64_t r = 0; r < rows; ++r) trees[r].Total(sums + r);
  const __m128 mean = _mm_div_ps(_mm_loadu_ps(sums), _mm_set1_ps(static_cast<float>(n)));
  const __m128 root = _mm_sqrt_ps(_mm_add_ps(mean, _mm_set1_ps(eps)));
  _mm_storeu_ps(factors, _mm_div_ps(_mm_set1_ps(1.0f), root));
}

// y[i] += a * x[i]
inline void AddScaled(float a, const float* x, float* y, int64_t n) {
  const F32x16 factor = Set16(a);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store16(y + i, Fma(factor, Load16(x + i), Load16(y + i)));
  for (; i < n; ++i) y[i] = std::fma(a, x[i], y[i]);
}

}  // namespace HB_SIMD_NAMESPACE

using HB_SIMD_NAMESPACE::AddScaled;
using HB_SIMD_NAMESPACE::Dot;
using HB_SIMD_NAMESPACE::NormFactors;

// Rows of `columns` elements that make a piece worth handing to another thread.
constexpr int64_t RowsPerPiece(int64_t columns) {
  return std::max<int64_t>(1, int64_t{1 << 14} / std::max<int64_t>(1, columns));
}

}  // namespace halfbyte
