#include "numerics/exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace halfbyte {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double Exp(double x) {
  ExpAll({&x, 1});
  return x;
}

// In units of the last place of the exact result.
double ErrorOf(double x) {
  const long double exact = std::exp(static_cast<long double>(x));
  const auto nearest = static_cast<double>(exact);
  const long double unit = std::nextafter(nearest, kInf) - nearest;
  return static_cast<double>(std::abs(static_cast<long double>(Exp(x)) - exact) / unit);
}

TEST(Exp, StaysWithinOneUnitInTheLastPlace) {
  std::mt19937_64 random(1);
  double worst = 0;
  for (const double range : {1e-6, 1.0, 50.0, 709.0, 745.0}) {
    std::uniform_real_distribution<double> uniform(-range, std::min(range, 709.7));
    for (int i = 0; i < 50000; ++i) {
      const double x = uniform(random);
      const double error = ErrorOf(x);
      ASSERT_LT(error, 1) << x;
      worst = std::max(worst, error);
    }
  }
  RecordProperty("worst_error_in_units", std::to_string(worst));
}

TEST(Exp, IsExactAtTheEndsOfItsRange) {
  EXPECT_EQ(Exp(0.0), 1);
  EXPECT_EQ(Exp(-0.0), 1);
  EXPECT_EQ(Exp(-745.13), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(Exp(-745.14), 0);
  EXPECT_EQ(Exp(-kInf), 0);
  EXPECT_EQ(Exp(-1e308), 0);
  EXPECT_LT(Exp(709.78), kInf);
  EXPECT_EQ(Exp(709.79), kInf);
  EXPECT_EQ(Exp(kInf), kInf);
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<double>::quiet_NaN())));
}

}  // namespace
}  // namespace halfbyte
