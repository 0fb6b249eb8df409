// exp in double precision, of fused multiply-adds and whole numbers only: the same bits with every
// C library, and a loop over it becomes vector instructions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace halfbyte {

// exp(x) = 2^n * exp(r), |r| <= ln(2)/2, with the Taylor series of degree 13 (its remainder is
// below 2^-57): within one unit in the last place, also of subnormal results; for x from -760,
// where it is 0, to 720, where it is infinity. NaN stays NaN.
inline double ExpWithinRange(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2Upper = 0x1.62e42fefa3p-1;  // few enough bits that n times it is exact
  constexpr double kLn2Lower = 0x1.3de6af278ece6p-42;
  constexpr double kRoundToInteger = 0x1.8p52;  // adding it leaves no bits for a fraction
  const double n = (x * kLog2E + kRoundToInteger) - kRoundToInteger;
  const double r = std::fma(n, -kLn2Lower, std::fma(n, -kLn2Upper, x));
  double p = std::fma(1.0 / 6227020800, r, 1.0 / 479001600);
  p = std::fma(p, r, 1.0 / 39916800);
  p = std::fma(p, r, 1.0 / 3628800);
  p = std::fma(p, r, 1.0 / 362880);
  p = std::fma(p, r, 1.0 / 40320);
  p = std::fma(p, r, 1.0 / 5040);
  p = std::fma(p, r, 1.0 / 720);
  p = std::fma(p, r, 1.0 / 120);
  p = std::fma(p, r, 1.0 / 24);
  p = std::fma(p, r, 1.0 / 6);
  p = std::fma(p, r, 0.5);
  p = std::fma(p, r, 1.0);
  p = std::fma(p, r, 1.0);
  // 2^n in two steps, as n may lie outside the range of exponents.
  const double half = (n * 0.5 + kRoundToInteger) - kRoundToInteger;
  const auto power_of_two = [](double exponent) {
    return std::bit_cast<double>((std::bit_cast<uint64_t>(exponent + kRoundToInteger) + 1023)
                                 << 52);
  };
  return p * power_of_two(half) * power_of_two(n - half);
}

// x[i] = exp(x[i]), for any numbers. (In three loops because g++ makes vector instructions of each,
// but not of all in one.)
inline void ExpAll(std::span<double> numbers) {
  for (double& x : numbers) x = x < -760.0 ? -760.0 : x;
  for (double& x : numbers) x = x > 720.0 ? 720.0 : x;
  for (double& x : numbers) x = ExpWithinRange(x);
}

}  // namespace halfbyte
