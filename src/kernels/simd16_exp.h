// exp in sixteen lanes, the same bits on every instruction set (see simd16.h).
#pragma once

#include "kernels/simd16.h"

namespace halfbyte::HB_SIMD_NAMESPACE {

// exp(x) = 2^n * exp(r), |r| <= ln(2)/2, with the Taylor series of degree 7 (its remainder is below
// 2^-27): within 4 units in the last place on [-87, 88]. n = 128 stands for infinity, n = -127
// for zero. NaN stays NaN.
inline F32x16 Exp(F32x16 x) {
  constexpr float kRoundToInteger = 0x1.8p23f;   // adding it leaves no bits for a fraction
  x = Max(Set16(-88.0f), Min(Set16(89.0f), x));  // beyond, n is what it is there
  F32x16 n = Mul(x, Set16(1.44269504f));
  n = Sub(Add(n, Set16(kRoundToInteger)), Set16(kRoundToInteger));
  // ln(2) in two parts; the upper has few enough bits that n times it is exact.
  F32x16 r = Fma(n, Set16(-0x1.62e4p-1f), x);
  r = Fma(n, Set16(-0x1.7f7d1cp-20f), r);
  constexpr float kCoefficients[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  F32x16 p = Set16(1.0f / 5040);
  for (const float c : kCoefficients) p = Fma(p, r, Set16(c));
  return Mul(p, PowerOfTwo(n));
}

}  // namespace halfbyte::HB_SIMD_NAMESPACE
