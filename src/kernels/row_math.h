// Row-sized building blocks that several kernels share. Baseline instruction set (AVX2 + FMA); sums
// follow the sixteen-lane contract of simd16.h.
#pragma once

#include <algorithm>
#include <cstdint>

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

inline float SumOfSquares(const float* x, int64_t n) { return Dot(x, x, n); }

// rsqrt(mean(x^2) + eps) of up to four neighbouring rows, in step: the next addition to a sum waits
// for the one before.
inline void NormFactors(const float* x, int64_t rows, int64_t n, float eps, float (&factors)[4]) {
  float sums[4] = {};
  if (rows == 4 && n % 16 == 0) {
    F32x16 acc[4] = {Zero16(), Zero16(), Zero16(), Zero16()};
    for (int64_t i = 0; i < n; i += 16) {
      for (int64_t r = 0; r < 4; ++r) {
        const F32x16 values = Load16(x + r * n + i);
        acc[r] = Fma(values, values, acc[r]);
      }
    }
    SumFour(acc, 1.0f, sums);
  } else {
    for (int64_t r = 0; r < rows; ++r) sums[r] = SumOfSquares(x + r * n, n);
  }
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
using HB_SIMD_NAMESPACE::SumOfSquares;

// Rows of `columns` elements that make a piece worth handing to another thread.
constexpr int64_t RowsPerPiece(int64_t columns) {
  return std::max<int64_t>(1, int64_t{1 << 14} / std::max<int64_t>(1, columns));
}

}  // namespace halfbyte
