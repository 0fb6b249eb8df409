// For kernel tests: random rows, rows in shuffled pages, and a comparison with a double-precision
// reference that names the worst element.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "kernels/kv_row/kv_row.h"
#include "numerics/rounding.h"

namespace halfbyte {

// Half a unit in the last place of fp32 and of bf16, relative to the value.
inline constexpr double kF32Unit = 0x1p-24;
inline constexpr double kBf16Unit = 0x1p-8;

inline std::vector<float> RandomNormal(int64_t count, uint32_t seed, double deviation = 1,
                                       Rounding rounding = Rounding::kNone) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = Round(rounding, static_cast<float>(normal(random)));
  return x;
}

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

inline bool AllBf16(std::span<const float> x) {
  return std::ranges::all_of(x, [](float v) { return RoundToBf16(v) == v; });
}

// |values[i] - reference[i]| <= tolerance(i) for all i; a message about the worst i otherwise.
// A reference without any signal is refused: comparing nothing with nothing proves nothing.
template <class Tolerance>
testing::AssertionResult Near(std::span<const float> values, std::span<const double> reference,
                              const Tolerance& tolerance) {
  if (values.size() != reference.size()) {
    return testing::AssertionFailure() << values.size() << " values, " << reference.size();
  }
  size_t worst = 0;
  double worst_ratio = -1;
  bool signal = false;
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(double{values[i]} - reference[i]);
    const double ratio = std::isnan(error) ? INFINITY : error == 0 ? 0 : error / tolerance(i);
    signal = signal || reference[i] != 0;
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      worst = i;
    }
  }
  if (!signal) return testing::AssertionFailure() << "the reference is all zero";
  if (worst_ratio <= 1) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "worst element " << worst << ": " << values[worst] << " for " << reference[worst]
         << ", error " << worst_ratio << " times the tolerance " << tolerance(worst);
}

// Memory for `rows` rows in pages that lie in random order, with unused pages between them. Every
// byte starts as 0xff: NaN in fp32, bf16, E4M3 and E8M0, so a row that nobody wrote shows.
struct ShuffledPages {
  std::vector<std::byte> pool;
  std::vector<int32_t> table;
  PagedRows view;

  ShuffledPages(int64_t rows, int64_t rows_per_page, int64_t row_bytes, uint32_t seed) {
    const int64_t pages = (rows + rows_per_page - 1) / rows_per_page;
    std::vector<int32_t> ids(static_cast<size_t>(2 * pages + 1));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    table.assign(ids.begin(), ids.begin() + pages);
    pool.assign(ids.size() * static_cast<size_t>(rows_per_page * row_bytes), std::byte{0xff});
    view = {pool.data(), table.data(), rows_per_page, row_bytes};
  }
  ShuffledPages(const ShuffledPages&) = delete;
  ShuffledPages& operator=(const ShuffledPages&) = delete;

  void Poison(int64_t row) {
    std::memset(view.row(row), 0xff, static_cast<size_t>(view.row_bytes));
  }
};

}  // namespace halfbyte
