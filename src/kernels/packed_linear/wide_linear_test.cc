// W8a16 and W16a16 of packed_linear.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>

#include "kernels/packed_linear/packed_linear.h"
#include "kernels/packed_linear/packed_test_weights.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"

namespace halfbyte {
namespace {

// Random weights that own their bytes. FP8: every byte but NaN, a scale for every 128 columns and
// `scale_rows` rows.
struct WideWeights {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  WeightMatrix matrix;

  WideWeights(PackedFormat format, int64_t rows, int64_t columns, uint32_t seed,
              int64_t scale_rows = 128) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    matrix = {.format = format == PackedFormat::kFp8 ? WeightFormat::kFp8 : WeightFormat::kBf16,
              .rows = rows,
              .columns = columns};
    if (format == PackedFormat::kBf16) {
      std::vector<Bf16> values(static_cast<size_t>(rows * columns));
      for (Bf16& value : values) value = ToBf16(0.02f * normal(random));
      const std::span stored = std::as_bytes(std::span(values));
      bytes.assign(stored.begin(), stored.end());
    } else {
      std::uniform_int_distribution<int> magnitude(0, 0x7e), sign(0, 1);
      for (int64_t i = 0; i < rows * columns; ++i) {
        bytes.push_back(static_cast<std::byte>(magnitude(random) | sign(random) << 7));
      }
      matrix.scale_dtype = DType::kF32;
      matrix.scale_block_rows = scale_rows;
      matrix.scale_block_columns = 128;
      matrix.data = bytes.data();
      scales.resize(static_cast<size_t>(matrix.scale_rows() * matrix.scale_columns()));
      for (float& scale : scales) scale = std::exp(normal(random)) * 0x1p-10f;
      matrix.scales = reinterpret_cast<const std::byte*>(scales.data());
    }
    matrix.data = bytes.data();
  }
  WideWeights(const WideWeights&) = delete;

  float Number(int64_t n, int64_t k) const {
    const std::byte* row = matrix.data + n * matrix.row_bytes();
    if (matrix.format == WeightFormat::kFp8) return E4m3ToFloat(static_cast<uint8_t>(row[k]));
    Bf16 value;
    std::memcpy(&value, row + k * 2, sizeof(value));
    return ToFloat(value);
  }
  float Scale(int64_t n, int64_t k) const {
    return matrix.format == WeightFormat::kFp8 ? Fp8WeightScale(matrix, n, k) : 1.0f;
  }
};

std::vector<float> Rows(int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(rows * columns));
  for (float& value : x) value = ToFloat(ToBf16(normal(random)));
  return x;
}

std::vector<float> Product(const PackedKernel& kernel, const PackedMatrix& w, const float* x,
                           int64_t tokens) {
  const int64_t row_bytes = OperandRowBytes(kernel.format, w.columns);
  std::vector<std::byte> operand(static_cast<size_t>(tokens * row_bytes), std::byte{0xee});
  for (int64_t t = 0; t < tokens; ++t) {
    PrepareRow(kernel, x + t * w.columns, w.columns, operand.data() + t * row_bytes);
  }
  std::vector<float> y(static_cast<size_t>(tokens * w.rows), NAN);
  PackedLinearRange(kernel, w, operand.data(), 0, w.rows, {y.data(), tokens, w.rows});
  return y;
}

// The rule of the header from the stored bytes.
float Expected(const WideWeights& w, int64_t n, const float* x) {
  float sums[2] = {0, 0};
  for (int64_t b = 0; b < w.matrix.columns / 16; ++b) {
    float sum = 0;
    for (int64_t k = b * 16; k < (b + 1) * 16; ++k) sum = std::fma(w.Number(n, k), x[k], sum);
    sums[b % 2] = std::fma(sum, w.Scale(n, b * 16), sums[b % 2]);
  }
  return sums[0] + sums[1];
}

class WideLinear : public testing::TestWithParam<PackedFormat> {
 protected:
  static std::vector<PackedKernel> Kernels() {
    return PackedKernels(Bf16ArithmeticOf(GetParam()), SupportedCpuIsas().back());
  }
};

struct Case {
  int64_t rows, columns, tokens, scale_rows;
};
// Tails of rows, of columns and of strips; every number of tokens a kernel treats differently.
constexpr Case kCases[] = {{16, 64, 1, 128},  {1, 16, 3, 128},   {17, 80, 2, 1},   {40, 208, 5, 16},
                           {64, 576, 4, 128}, {33, 1040, 7, 8},  {16, 512, 15, 3}, {48, 528, 8, 48},
                           {32, 96, 130, 32}, {16, 128, 257, 16}};

TEST_P(WideLinear, EveryVariantGivesTheBitsOfTheRule) {
  for (const auto& [rows, columns, tokens, scale_rows] : kCases) {
    const WideWeights w(GetParam(), rows, columns, 1, scale_rows);
    const OwnedPacked packed(w.matrix);
    const std::vector<float> x = Rows(tokens, columns, 2);
    for (const PackedKernel& kernel : Kernels()) {
      const std::vector<float> y = Product(kernel, packed.matrix, x.data(), tokens);
      int64_t wrong = 0;
      for (int64_t i = 0; i < tokens * rows; ++i) {
        const float expected = Expected(w, i % rows, &x[static_cast<size_t>(i / rows * columns)]);
        wrong += std::memcmp(&y[static_cast<size_t>(i)], &expected, sizeof(expected)) != 0;
      }
      EXPECT_EQ(wrong, 0) << kernel.name << " [" << rows << ", " << columns << "], " << tokens;
    }
  }
}

TEST_P(WideLinear, StaysWithinTheBoundOfTheHeader) {
  const int64_t columns = 4096;
  const WideWeights w(GetParam(), 48, columns, 3);
  const OwnedPacked packed(w.matrix);
  const std::vector<float> x = Rows(2, columns, 4);
  double worst = 0;
  for (const PackedKernel& kernel : Kernels()) {
    const std::vector<float> y = Product(kernel, packed.matrix, x.data(), 2);
    for (int64_t i = 0; i < 2 * 48; ++i) {
      double exact = 0, magnitude = 0;
      for (int64_t k = 0; k < columns; ++k) {
        const double term = double{w.Number(i % 48, k)} * double{w.Scale(i % 48, k)} *
                            double{x[static_cast<size_t>(i / 48 * columns + k)]};
        exact += term;
        magnitude += std::abs(term);
      }
      const double error = std::abs(double{y[static_cast<size_t>(i)]} - exact);
      worst = std::max(worst, error / ((columns / 32 + 18) * 0x1p-24 * magnitude));
    }
  }
  EXPECT_LE(worst, 1);
  EXPECT_GT(worst, 0) << "random sums round somewhere";
}

TEST_P(WideLinear, ATokenAloneIsTheTokenInAnyBatch) {  // R49, R67
  const WideWeights w(GetParam(), 80, 1104, 5);
  const OwnedPacked packed(w.matrix);
  const std::vector<float> x = Rows(150, 1104, 6);
  for (const PackedKernel& kernel : Kernels()) {
    const std::vector<float> all = Product(kernel, packed.matrix, x.data(), 150);
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 1}, {149, 1}, {70, 2}, {127, 3}, {5, 4}, {9, 5}, {20, 127}}) {
      const std::vector<float> part =
          Product(kernel, packed.matrix, x.data() + first * 1104, count);
      EXPECT_EQ(std::memcmp(part.data(), all.data() + first * 80, part.size() * sizeof(float)), 0)
          << kernel.name << ' ' << first << ' ' << count;
    }
  }
}

TEST_P(WideLinear, TheWholeProductIsItsRangesOnAnyMachine) {
  const WideWeights w(GetParam(), 200, 320, 7);
  const OwnedPacked packed(w.matrix);
  for (const int64_t tokens : {1, 6, 40}) {
    const std::vector<float> x = Rows(tokens, 320, 8);
    const std::vector<float> expected = Product(Kernels().front(), packed.matrix, x.data(), tokens);
    std::vector<std::byte> operands(static_cast<size_t>(tokens * MaxOperandRowBytes(320)));
    for (const CpuIsa isa : SupportedCpuIsas()) {
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        std::vector<float> y(expected.size(), NAN);
        const PackedProduct product{&packed.matrix, {y.data(), tokens, 200}};
        PackedLinear(Context(pool, isa), {x.data(), tokens, 320}, /*groups=*/1, {&product, 1},
                     operands.data());
        EXPECT_EQ(y, expected) << CpuIsaName(isa) << ' ' << threads << ' ' << tokens;
      }
    }
  }
}

TEST_P(WideLinear, SeveralProductsOfTheSameRowsAreEachAsAlone) {
  const int64_t sizes[] = {200, 8, 16, 33, 512};
  for (const int64_t tokens : {1, 8, 11}) {
    const std::vector<float> x = Rows(tokens, 320, 12);
    std::vector<std::byte> operands(static_cast<size_t>(tokens * MaxOperandRowBytes(320)));
    std::vector<std::unique_ptr<WideWeights>> weights;
    std::vector<std::unique_ptr<OwnedPacked>> packed;
    std::vector<std::vector<float>> results;
    std::vector<PackedProduct> products;
    results.reserve(std::size(sizes));
    for (const int64_t rows : sizes) {
      weights.push_back(
          std::make_unique<WideWeights>(GetParam(), rows, 320, static_cast<uint32_t>(rows)));
      packed.push_back(std::make_unique<OwnedPacked>(weights.back()->matrix));
      results.emplace_back(static_cast<size_t>(tokens * rows), NAN);
      products.push_back({&packed.back()->matrix,
                          {results.back().data(), tokens, rows},
                          rows % 16 == 0 ? Rounding::kBf16 : Rounding::kNone});
    }
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      for (auto& y : results) std::ranges::fill(y, NAN);
      PackedLinear(Context(pool), {x.data(), tokens, 320}, /*groups=*/1, products, operands.data());
      for (size_t i = 0; i < products.size(); ++i) {
        std::vector<float> expected = Product(Kernels().front(), *products[i].w, x.data(), tokens);
        for (float& y : expected) y = Round(products[i].rounding, y);
        EXPECT_EQ(results[i], expected) << sizes[i] << ' ' << threads << ' ' << tokens;
      }
    }
  }
}

TEST_P(WideLinear, GroupsOfColumnsMeetTheirGroupsOfRows) {  // R124
  const int64_t groups = 3, rows = 32, columns = 160, tokens = 5;
  const WideWeights w(GetParam(), groups * rows, columns, 9, 16);
  const OwnedPacked packed(w.matrix);
  const std::vector<float> x = Rows(tokens, groups * columns, 10);
  std::vector<std::byte> operands(
      static_cast<size_t>(groups * tokens * MaxOperandRowBytes(columns)));
  std::vector<float> y(static_cast<size_t>(tokens * groups * rows), NAN);
  ThreadPool pool(2);
  const PackedProduct product{&packed.matrix, {y.data(), tokens, groups * rows}};
  PackedLinear(Context(pool), {x.data(), tokens, groups * columns}, groups, {&product, 1},
               operands.data());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t n = 0; n < groups * rows; ++n) {
      const float* group = &x[static_cast<size_t>((t * groups + n / rows) * columns)];
      EXPECT_EQ(y[static_cast<size_t>(t * groups * rows + n)], Expected(w, n, group));
    }
  }
}

TEST_P(WideLinear, NumbersBelowItsRangeCountAsZeroAndNanStaysInItsRow) {
  const WideWeights w(GetParam(), 16, 64, 11);
  const OwnedPacked packed(w.matrix);
  for (const PackedKernel& kernel : Kernels()) {
    std::vector<float> x = Rows(5, 64, 12);
    std::fill_n(x.begin(), 64, 0x1.fep-61f);
    std::fill_n(x.begin() + 64, 64, 0x1p-149f);
    x[2 * 64 + 9] = NAN;
    x[3 * 64 + 9] = std::numeric_limits<float>::infinity();
    const std::vector<float> y = Product(kernel, packed.matrix, x.data(), 5);
    const std::vector<float> last = Product(kernel, packed.matrix, x.data() + 4 * 64, 1);
    for (size_t n = 0; n < 16; ++n) {
      EXPECT_EQ(y[n], 0) << kernel.name;
      EXPECT_EQ(y[16 + n], 0);
      EXPECT_TRUE(std::isnan(y[2 * 16 + n])) << kernel.name;
      EXPECT_FALSE(std::isfinite(y[3 * 16 + n]));
      EXPECT_EQ(y[4 * 16 + n], last[n]);
    }
  }
}

// Products of the smallest numbers that count are no subnormal numbers, so no variant loses them.
TEST_P(WideLinear, TheSmallestNumbersOfItsRangeGiveTheSameBits) {
  const WideWeights w(GetParam(), 16, 64, 13);
  WeightMatrix matrix = w.matrix;
  std::vector<std::byte> bytes = w.bytes;
  if (GetParam() == PackedFormat::kBf16) {
    for (size_t i = 0; i < bytes.size(); i += 2) {
      const Bf16 value = ToBf16(std::ldexp(w.Number(0, static_cast<int64_t>(i / 2 % 64)), -44));
      std::memcpy(&bytes[i], &value, sizeof(value));
    }
  } else {
    for (std::byte& b : bytes) b &= std::byte{0x83};  // subnormal
  }
  matrix.data = bytes.data();
  const OwnedPacked packed(matrix);
  std::vector<float> x = Rows(3, 64, 14);
  for (float& value : x) value = ToFloat(ToBf16(value * 0x1p-59f));
  const std::vector<float> expected = Product(Kernels().front(), packed.matrix, x.data(), 3);
  EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), [](float v) { return v != 0; }));
  for (const PackedKernel& kernel : Kernels()) {
    EXPECT_EQ(Product(kernel, packed.matrix, x.data(), 3), expected) << kernel.name;
  }
}

TEST(PackedLinear4Bit, TheWholeProductCarriesTheGlobalScale) {
  FourBitWeights w(WeightFormat::kNvfp4, 72, 320, 18);
  w.matrix.global_scale = GlobalScale(0.37f);
  const OwnedPacked packed(w.matrix);
  const std::vector<float> x = Rows(6, 320, 19);
  const PackedKernel reference =
      PackedKernels(PackedArithmetic::kW4a16, SupportedCpuIsas().back()).front();
  std::vector<float> expected = Product(reference, packed.matrix, x.data(), 6);
  for (float& value : expected) value *= 0.37f;
  std::vector<std::byte> operands(static_cast<size_t>(6 * MaxOperandRowBytes(320)));
  for (const CpuIsa isa : SupportedCpuIsas()) {
    ThreadPool pool(2);
    std::vector<float> y(expected.size(), NAN);
    const PackedProduct product{&packed.matrix, {y.data(), 6, 72}};
    PackedLinear(Context(pool, isa), {x.data(), 6, 320}, /*groups=*/1, {&product, 1},
                 operands.data());
    EXPECT_EQ(y, expected) << CpuIsaName(isa);
  }
}

INSTANTIATE_TEST_SUITE_P(All, WideLinear, testing::Values(PackedFormat::kFp8, PackedFormat::kBf16),
                         [](const auto& suite) {
                           return suite.param == PackedFormat::kFp8 ? "W8a16" : "W16a16";
                         });

TEST(WideMatrix, EveryByteOfE4m3IsItsNumber) {  // R57
  WideWeights w(PackedFormat::kFp8, 256, 16, 15);
  for (size_t i = 0; i < w.bytes.size(); ++i) w.bytes[i] = std::byte{0};
  for (size_t n = 0; n < 256; ++n) {
    if (n % 128 != 127) w.bytes[n * 16 + n % 16] = static_cast<std::byte>(n);
  }
  std::fill(w.scales.begin(), w.scales.end(), 1.0f);
  const OwnedPacked packed(w.matrix);
  const std::vector<float> ones(16, 1.0f);
  for (const PackedKernel& kernel :
       PackedKernels(PackedArithmetic::kW8a16, SupportedCpuIsas().back())) {
    const std::vector<float> y = Product(kernel, packed.matrix, ones.data(), 1);
    for (size_t n = 0; n < 256; ++n) {
      if (n % 128 == 127) continue;
      EXPECT_EQ(y[n], E4m3ToFloat(static_cast<uint8_t>(n))) << kernel.name;
    }
  }
}

TEST(WideMatrix, WhatHasNoPackedFormIsLeftAlone) {
  ThreadPool pool(1);
  const auto packs = [&](const WeightMatrix& w) {
    PackMemory memory(PackedBytes(w));
    const auto packed = PackMatrix(pool, w, memory.data(), "w");
    return packed.has_value() && packed->has_value();
  };
  WideWeights fp8(PackedFormat::kFp8, 20, 256, 16);
  EXPECT_TRUE(packs(fp8.matrix));
  fp8.matrix.scale_block_columns = 32;
  EXPECT_FALSE(packs(fp8.matrix));
  EXPECT_EQ(PackedBytes(fp8.matrix), 0);
  fp8.matrix.scale_block_columns = 256;  // one scale per row
  EXPECT_TRUE(packs(fp8.matrix));
  fp8.bytes[19 * 256 + 200] = std::byte{0xff};
  EXPECT_FALSE(packs(fp8.matrix));
  WideWeights bf16(PackedFormat::kBf16, 20, 256, 17);
  bf16.matrix.format = WeightFormat::kF16;
  EXPECT_FALSE(packs(bf16.matrix));
  bf16.matrix.format = WeightFormat::kBf16;
  bf16.matrix.columns = 248;
  EXPECT_FALSE(packs(bf16.matrix));
}

}  // namespace
}  // namespace halfbyte
