// exp in double precision, of fused multiply-adds and whole numbers only: the same bits with every
// C library, and a loop over it becomes vector instructions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace halfbyte {

// exp(x) = 2^n * exp(r), |r| <= ln(2)/2, with the Taylor series of degree 13 (its remainder is
// below 2^-57): within one unit in the last place, also of subnormal results. 0 and infinity where
// exp leaves the range of a double; NaN stays NaN.
inline double Exp(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2Upper = 0x1.62e42fefa3p-1;  // few enough bits that n times it is exact
  constexpr double kLn2Lower = 0x1.3de6af278ece6p-42;
  constexpr double kRoundToInteger = 0x1.8p52;  // adding it leaves no bits for a fraction
  const double bounded = x < -760.0 ? -760.0 : x > 720.0 ? 720.0 : x;
  const double n = (bounded * kLog2E + kRoundToInteger) - kRoundToInteger;
  const double r = std::fma(n, -kLn2Lower, std::fma(n, -kLn2Upper, bounded));
  constexpr double kCoefficients[] = {1.0 / 479001600,
                                      1.0 / 39916800,
                                      1.0 / 3628800,
                                      1.0 / 362880,
                                      1.0 / 40320,
                                      1.0 / 5040,
                                      1.0 / 720,
                                      1.0 / 120,
                                      1.0 / 24,
                                      1.0 / 6,
                                      0.5,
                                      1.0,
                                      1.0};
  double p = 1.0 / 6227020800;
  for (const double c : kCoefficients) p = std::fma(p, r, c);
  // 2^n in two steps, as n may lie outside the range of exponents.
  const double half = (n * 0.5 + kRoundToInteger) - kRoundToInteger;
  const auto power_of_two = [](double exponent) {
    return std::bit_cast<double>((std::bit_cast<uint64_t>(exponent + kRoundToInteger) + 1023)
                                 << 52);
  };
  return p * power_of_two(half) * power_of_two(n - half);
}

}  // namespace halfbyte
