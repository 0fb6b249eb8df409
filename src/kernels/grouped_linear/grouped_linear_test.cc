#include "kernels/grouped_linear/grouped_linear.h"

#include <gtest/gtest.h>

#include "kernels/linear/linear.h"
#include "kernels/test_rows.h"
#include "numerics/bf16.h"

namespace halfbyte {
namespace {

struct OwnedWeight {
  std::vector<std::byte> data, scales;
  WeightMatrix matrix;
};

// Random valid bytes; block scales differ much from block to block.
OwnedWeight RandomWeight(WeightFormat format, int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  OwnedWeight w;
  w.matrix = {.format = format, .rows = rows, .columns = columns};
  if (format == WeightFormat::kNvfp4) w.matrix.global_scale = GlobalScale(0.02f);
  if (format == WeightFormat::kFp8) {
    w.matrix.scale_dtype = DType::kF8E8m0;
    w.matrix.scale_block_rows = w.matrix.scale_block_columns = 128;
  }
  if (format == WeightFormat::kMxfp4) w.matrix.scale_dtype = DType::kF8E8m0;
  w.data.resize(static_cast<size_t>(rows * w.matrix.row_bytes()));
  for (std::byte& byte : w.data) byte = static_cast<std::byte>(random() & 0x77);  // no NaN
  if (format == WeightFormat::kF32 && !w.data.empty()) {
    const std::vector<float> values = RandomNormal(rows * columns, seed);
    std::memcpy(w.data.data(), values.data(), w.data.size());
  }
  if (format == WeightFormat::kBf16) {
    const std::vector<float> values = RandomNormal(rows * columns, seed);
    for (size_t i = 0; i < values.size(); ++i) {
      const Bf16 value = ToBf16(values[i]);
      std::memcpy(w.data.data() + 2 * i, &value, 2);
    }
  }
  w.scales.resize(static_cast<size_t>(w.matrix.scale_rows() * w.matrix.scale_columns()));
  for (std::byte& byte : w.scales) {
    byte = static_cast<std::byte>(format == WeightFormat::kNvfp4 ? random() % 0x7f
                                                                 : 118 + random() % 16);
  }
  w.matrix.data = w.data.data();
  if (!w.scales.empty()) w.matrix.scales = w.scales.data();
  return w;
}

std::vector<float> Compute(int threads, const std::vector<float>& x, int64_t tokens, int64_t groups,
                           const WeightMatrix& w) {
  ThreadPool pool(threads);
  std::vector<float> y(static_cast<size_t>(tokens * w.rows), NAN);
  GroupedLinear(Context(pool), {x.data(), tokens, groups * w.columns}, groups, w,
                {y.data(), tokens, w.rows});
  return y;
}

// Each group by Linear on copies of its columns and rows.
std::vector<float> ByGroup(const std::vector<float>& x, int64_t tokens, int64_t groups,
                           const WeightMatrix& w) {
  ThreadPool pool(1);
  const int64_t k = w.columns, n = w.rows / groups;
  std::vector<float> y(static_cast<size_t>(tokens * w.rows));
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<float> part, out(static_cast<size_t>(tokens * n));
    for (int64_t t = 0; t < tokens; ++t) {
      const auto begin = x.begin() + (t * groups + g) * k;
      part.insert(part.end(), begin, begin + k);
    }
    Linear(Context(pool), {part.data(), tokens, k}, w.Rows(g * n, n), {out.data(), tokens, n});
    for (int64_t t = 0; t < tokens; ++t) {
      std::copy_n(out.begin() + t * n, n, y.begin() + (t * groups + g) * n);
    }
  }
  return y;
}

TEST(GroupedLinear, EqualsLinearOfEachGroupBitForBit) {  // R124
  struct Shape {
    WeightFormat format;
    int64_t groups, n, k;
  };
  for (const Shape& s : {Shape{WeightFormat::kF32, 3, 5, 33},
                         {WeightFormat::kBf16, 4, 67, 129},
                         {WeightFormat::kFp8, 3, 128, 272},
                         {WeightFormat::kFp8, 2, 256, 128},
                         {WeightFormat::kNvfp4, 5, 11, 96},
                         {WeightFormat::kMxfp4, 2, 9, 64},
                         {WeightFormat::kBf16, 1, 40, 16},
                         {WeightFormat::kBf16, 8, 1, 24}}) {
    const OwnedWeight w = RandomWeight(s.format, s.groups * s.n, s.k, 3);
    for (const int64_t tokens : {1, 2, 5, 64}) {
      const std::vector<float> x = RandomNormal(tokens * s.groups * s.k, 7);
      const std::vector<float> expected = ByGroup(x, tokens, s.groups, w.matrix);
      for (const int threads : {1, 2, 3}) {
        EXPECT_TRUE(SameBits(Compute(threads, x, tokens, s.groups, w.matrix), expected))
            << WeightFormatName(s.format) << ' ' << s.groups << " groups, " << tokens << " tokens, "
            << threads << " threads";
      }
    }
  }
}

TEST(GroupedLinear, EqualsTheDefinition) {
  const int64_t groups = 3, n = 7, k = 50, tokens = 4;
  const OwnedWeight w = RandomWeight(WeightFormat::kBf16, groups * n, k, 5);
  const std::vector<float> x = RandomNormal(tokens * groups * k, 6);
  std::vector<double> expected(static_cast<size_t>(tokens * groups * n)), size(expected.size());
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t r = 0; r < groups * n; ++r) {
    DequantizeRow(w.matrix, r, row.data());
    for (int64_t t = 0; t < tokens; ++t) {
      const auto at = static_cast<size_t>(t * groups * n + r);
      for (int64_t i = 0; i < k; ++i) {
        const double product = double{row[static_cast<size_t>(i)]} *
                               double{x[static_cast<size_t>((t * groups + r / n) * k + i)]};
        expected[at] += product;
        size[at] += std::abs(product);
      }
    }
  }
  EXPECT_TRUE(Near(Compute(2, x, tokens, groups, w.matrix), expected,
                   [&](size_t i) { return (k / 16 + 6) * kF32Unit * size[i]; }));
}

TEST(GroupedLinear, EmptyDimensionsAreValid) {
  const OwnedWeight w = RandomWeight(WeightFormat::kF32, 6, 8, 1);
  EXPECT_TRUE(Compute(2, {}, 0, 3, w.matrix).empty());
  const OwnedWeight no_rows = RandomWeight(WeightFormat::kF32, 0, 8, 1);
  EXPECT_TRUE(Compute(2, std::vector<float>(3 * 24), 3, 3, no_rows.matrix).empty());
}

TEST(GroupedLinearDeathTest, ShapesThatDisagreeAbort) {
  const OwnedWeight w = RandomWeight(WeightFormat::kF32, 7, 8, 1);  // 7 rows in 3 groups
  EXPECT_DEATH(Compute(1, std::vector<float>(24), 1, 3, w.matrix), "3 groups");
}

}  // namespace
}  // namespace halfbyte
