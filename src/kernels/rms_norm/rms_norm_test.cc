#include "kernels/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

constexpr float kEps = 1e-6f;

std::vector<double> Reference(const std::vector<float>& x, int64_t columns, const float* weight,
                              double eps) {
  std::vector<double> y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(columns)) {
    double sum = 0;
    for (size_t i = begin; i < begin + static_cast<size_t>(columns); ++i) {
      sum += double{x[i]} * double{x[i]};
    }
    for (size_t i = begin; i < begin + static_cast<size_t>(columns); ++i) {
      y[i] = double{x[i]} / std::sqrt(sum / static_cast<double>(columns) + eps);
      if (weight != nullptr) y[i] *= double{weight[i - begin]};
    }
  }
  return y;
}

std::vector<float> Compute(int threads, const std::vector<float>& x, int64_t columns,
                           const float* weight, Rounding rounding) {
  ThreadPool pool(threads);
  std::vector<float> y(x.size(), NAN);
  const int64_t rows = static_cast<int64_t>(x.size()) / columns;
  RmsNorm(Context(pool), {x.data(), rows, columns}, weight, kEps, rounding,
          {y.data(), rows, columns});
  return y;
}

// A sum of n squares in sixteen lanes has a relative error of n/16 + 5 units, the root half of it;
// the remaining operations add at most six.
double Units(int64_t columns) { return static_cast<double>(columns / 16 + 6) / 2 + 6; }

TEST(RmsNorm, EqualsTheDefinitionOverOddShapes) {
  for (const int64_t columns : {1, 3, 16, 17, 31, 128, 129, 1536}) {
    for (const int64_t rows : {1, 2, 7}) {
      for (const double size : {1e-4, 1.0, 3e4}) {
        const std::vector<float> x = RandomNormal(rows * columns, 1, size);
        const std::vector<float> weight = RandomNormal(columns, 2);
        for (const float* w : {weight.data(), static_cast<const float*>(nullptr)}) {
          const std::vector<double> expected = Reference(x, columns, w, kEps);
          EXPECT_TRUE(
              Near(Compute(1, x, columns, w, Rounding::kNone), expected,
                   [&](size_t i) { return Units(columns) * kF32Unit * std::abs(expected[i]); }))
              << rows << " x " << columns << " of size " << size;
        }
      }
    }
  }
}

TEST(RmsNorm, EqualsThePlainLoopsBitForBit) {
  for (const int64_t columns : {1, 17, 128, 255, 256, 257, 512, 700, 768, 1536, 4096, 4100}) {
    for (const int64_t rows : {1, 2, 4, 7}) {
      const std::vector<float> x = RandomNormal(rows * columns, 11);
      const std::vector<float> weight = RandomNormal(columns, 12);
      std::vector<float> expected(x.size());
      RmsNormReference({x.data(), rows, columns}, weight.data(), kEps, Rounding::kBf16,
                       {expected.data(), rows, columns});
      EXPECT_TRUE(SameBits(Compute(1, x, columns, weight.data(), Rounding::kBf16), expected))
          << rows << " x " << columns;
      RmsNormReference({x.data(), rows, columns}, nullptr, kEps, Rounding::kNone,
                       {expected.data(), rows, columns});
      EXPECT_TRUE(SameBits(Compute(1, x, columns, nullptr, Rounding::kNone), expected))
          << rows << " x " << columns;
    }
  }
}

TEST(RmsNorm, EpsKeepsZeroRowsFiniteAndShrinksTinyOnes) {
  const std::vector<float> zeros(33);
  EXPECT_EQ(Compute(1, zeros, 33, nullptr, Rounding::kNone), zeros);
  // mean(x^2) = eps: the row comes out at 1/sqrt(2) of unit size.
  const std::vector<float> tiny(33, 1e-3f);
  for (const float value : Compute(1, tiny, 33, nullptr, Rounding::kNone)) {
    EXPECT_NEAR(value, std::sqrt(0.5), 1e-6);
  }
}

TEST(RmsNorm, RoundsOnceAtTheEnd) {
  const std::vector<float> x = RandomNormal(5 * 130, 3);
  const std::vector<float> weight = RandomNormal(130, 4);
  std::vector<float> exact = Compute(1, x, 130, weight.data(), Rounding::kNone);
  for (float& value : exact) value = RoundToBf16(value);
  EXPECT_TRUE(SameBits(Compute(1, x, 130, weight.data(), Rounding::kBf16), exact));
}

TEST(RmsNorm, ARowDependsOnItselfAloneWithAnyNumberOfThreads) {
  const int64_t rows = 203;
  for (const int64_t columns : {515, 256}) {  // 256: rows are summed four at a time
    const std::vector<float> x = RandomNormal(rows * columns, 5);
    const std::vector<float> weight = RandomNormal(columns, 6);
    const std::vector<float> all = Compute(1, x, columns, weight.data(), Rounding::kNone);
    EXPECT_TRUE(SameBits(Compute(2, x, columns, weight.data(), Rounding::kNone), all));
    EXPECT_TRUE(SameBits(Compute(3, x, columns, weight.data(), Rounding::kNone), all));
    for (const int64_t r : {0, 31, 32, 202}) {
      const std::vector<float> alone(x.begin() + r * columns, x.begin() + (r + 1) * columns);
      EXPECT_TRUE(SameBits(
          Compute(2, alone, columns, weight.data(), Rounding::kNone),
          std::span(all).subspan(static_cast<size_t>(r * columns), static_cast<size_t>(columns))));
    }
  }
}

TEST(RmsNorm, WorksInPlace) {
  ThreadPool pool(1);
  std::vector<float> x = RandomNormal(3 * 40, 7);
  const std::vector<float> apart = Compute(1, x, 40, nullptr, Rounding::kNone);
  const MatrixView<float> view{x.data(), 3, 40};
  RmsNorm(Context(pool), view, nullptr, kEps, Rounding::kNone, view);
  EXPECT_TRUE(SameBits(x, apart));
}

}  // namespace
}  // namespace halfbyte
