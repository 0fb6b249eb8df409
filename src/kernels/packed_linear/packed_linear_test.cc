#include "kernels/packed_linear/packed_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/packed_linear/packed_test_weights.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"

namespace halfbyte {
namespace {

constexpr PackedArithmetic kArithmetics[] = {PackedArithmetic::kW4a4, PackedArithmetic::kW4a8,
                                             PackedArithmetic::kW4a16};

// A block of W4a8 by the rule of the header.
struct Int8Block {
  std::array<int, 16> codes = {};
  float scale = 0;

  explicit Int8Block(const float* x) {
    float amax = 0;
    for (int i = 0; i < 16; ++i) amax = std::max(amax, std::abs(x[i]));
    if (amax < 0x1p-52f) return;
    scale = amax / 127;
    const float inverse = 127 / amax;
    for (size_t i = 0; i < 16; ++i) codes[i] = static_cast<int>(std::nearbyint(x[i] * inverse));
  }
};

// A block of W4a16 by the rule of the header.
struct UnitBlock {
  std::array<double, 16> values = {};
  double unit = 0;

  explicit UnitBlock(const float* x) {
    float amax = 0;
    for (int i = 0; i < 16; ++i) amax = std::max(amax, std::abs(x[i]));
    if (amax < 0x1p-63f) return;
    const float next = amax + std::ldexp(1.0f, std::ilogb(amax) - 7);
    unit = std::ldexp(1.0, std::ilogb(next) - 14);
    for (size_t i = 0; i < 16; ++i) values[i] = std::nearbyint(double{x[i]} / unit) * unit;
  }
};

// Activations of all arithmetics: NVFP4 rows and rows of bf16 numbers.
struct Activations {
  int64_t rows, columns;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
  std::vector<float> values;

  Activations(int64_t rows_in, int64_t columns_in, uint32_t seed)
      : rows(rows_in), columns(columns_in) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> byte(0, 255), scale(0, 0x7e);
    std::normal_distribution<float> normal;
    codes.resize(static_cast<size_t>(rows * columns / 2));
    scales.resize(static_cast<size_t>(rows * columns / 16));
    values.resize(static_cast<size_t>(rows * columns));
    for (uint8_t& b : codes) b = static_cast<uint8_t>(byte(random));
    for (uint8_t& b : scales) b = static_cast<uint8_t>(scale(random));
    for (float& x : values) x = ToFloat(ToBf16(normal(random)));
  }

  // What stands for element i.
  double Value(PackedArithmetic arithmetic, size_t i) const {
    switch (arithmetic) {
      case PackedArithmetic::kW4a4:
        return double{E2m1ToFloat(UnpackE2m1(codes.data(), static_cast<int64_t>(i)))} *
               double{E4m3ToFloat(scales[i / 16])};
      case PackedArithmetic::kW4a8: {
        const Int8Block block(&values[i / 16 * 16]);
        return block.codes[i % 16] * double{block.scale};
      }
      case PackedArithmetic::kW4a16:
        return UnitBlock(&values[i / 16 * 16]).values[i % 16];
      default:
        return 0;
    }
  }

  std::vector<std::byte> Operand(const PackedKernel& kernel, int64_t first, int64_t count) const {
    const int64_t bytes = OperandRowBytes(kernel.format, columns);
    std::vector<std::byte> out(static_cast<size_t>(count * bytes), std::byte{0xee});
    for (int64_t r = 0; r < count; ++r) {
      if (kernel.arithmetic == PackedArithmetic::kW4a4) {
        PrepareNvfp4Row(codes.data() + (first + r) * columns / 2,
                        scales.data() + (first + r) * columns / 16, columns,
                        out.data() + r * bytes);
      } else {
        PrepareRow(kernel, values.data() + (first + r) * columns, columns, out.data() + r * bytes);
      }
    }
    return out;
  }
};

std::vector<float> Product(const PackedKernel& kernel, const PackedMatrix& w, const Activations& x,
                           int64_t first, int64_t count) {
  const std::vector<std::byte> operand = x.Operand(kernel, first, count);
  std::vector<float> y(static_cast<size_t>(count * w.rows), NAN);
  PackedLinearRange(kernel, w, operand.data(), 0, w.rows, {y.data(), count, w.rows});
  return y;
}

// The rule of the header from the stored bytes, without operand or packed forms, and its exact
// value with the sum of the magnitudes that the error bound needs.
struct Expected {
  float value = 0;
  double exact = 0;
  double magnitude = 0;
};

Expected W4a4Of(const FourBitWeights& w, int64_t n, const Activations& x, int64_t t) {
  const int64_t blocks = x.columns / 16;
  const auto* codes = reinterpret_cast<const uint8_t*>(w.codes.data());
  Expected e;
  float sums[2] = {0, 0};
  for (int64_t b = 0; b < blocks; ++b) {
    float dot = 0;  // exact: multiples of 1/4
    for (int64_t k = b * 16; k < (b + 1) * 16; ++k) {
      dot += E2m1ToFloat(UnpackE2m1(codes, n * x.columns + k)) *
             E2m1ToFloat(UnpackE2m1(x.codes.data(), t * x.columns + k));
    }
    const float scale =
        E4m3ToFloat(static_cast<uint8_t>(w.scales[static_cast<size_t>(n * blocks + b)])) *
        E4m3ToFloat(x.scales[static_cast<size_t>(t * blocks + b)]);
    EXPECT_EQ(double{dot * scale}, double{dot} * double{scale});
    sums[b % 2] += dot * scale;
    e.exact += double{dot} * double{scale};
    e.magnitude += std::abs(double{dot} * double{scale});
  }
  e.value = sums[0] + sums[1];
  return e;
}

Expected W4a8Of(const FourBitWeights& w, int64_t n, const Activations& x, int64_t t) {
  const int64_t blocks = x.columns / 16;
  const auto* codes = reinterpret_cast<const uint8_t*>(w.codes.data());
  Expected e;
  float sums[2] = {0, 0};
  for (int64_t b = 0; b < blocks; ++b) {
    const Int8Block block(&x.values[static_cast<size_t>(t * x.columns + b * 16)]);
    float dot = 0;  // exact: multiples of 1/2 below 2^14
    for (int64_t k = 0; k < 16; ++k) {
      dot += E2m1ToFloat(UnpackE2m1(codes, n * x.columns + b * 16 + k)) *
             static_cast<float>(block.codes[static_cast<size_t>(k)]);
    }
    const float scale =
        E4m3ToFloat(static_cast<uint8_t>(w.scales[static_cast<size_t>(n * blocks + b)]));
    sums[b % 2] = std::fma(dot, scale * block.scale, sums[b % 2]);
    e.exact += double{dot} * double{scale} * double{block.scale};
    e.magnitude += std::abs(double{dot} * double{scale} * double{block.scale});
  }
  e.value = sums[0] + sums[1];
  return e;
}

Expected W4a16Of(const FourBitWeights& w, int64_t n, const Activations& x, int64_t t) {
  const int64_t blocks = x.columns / 16;
  const auto* codes = reinterpret_cast<const uint8_t*>(w.codes.data());
  Expected e;
  float sums[2] = {0, 0};
  for (int64_t b = 0; b < blocks; ++b) {
    const UnitBlock block(&x.values[static_cast<size_t>(t * x.columns + b * 16)]);
    double dot = 0;
    for (int64_t k = 0; k < 16; ++k) {
      dot += double{E2m1ToFloat(UnpackE2m1(codes, n * x.columns + b * 16 + k))} *
             block.values[static_cast<size_t>(k)];
    }
    EXPECT_EQ(double{static_cast<float>(dot)}, dot);
    const float scale =
        E4m3ToFloat(static_cast<uint8_t>(w.scales[static_cast<size_t>(n * blocks + b)]));
    sums[b % 2] = std::fma(static_cast<float>(dot), scale, sums[b % 2]);
    e.exact += dot * double{scale};
    e.magnitude += std::abs(dot * double{scale});
  }
  e.value = sums[0] + sums[1];
  return e;
}

Expected ExpectedOf(PackedArithmetic arithmetic, const FourBitWeights& w, int64_t n,
                    const Activations& x, int64_t t) {
  switch (arithmetic) {
    case PackedArithmetic::kW4a4:
      return W4a4Of(w, n, x, t);
    case PackedArithmetic::kW4a8:
      return W4a8Of(w, n, x, t);
    case PackedArithmetic::kW4a16:
      return W4a16Of(w, n, x, t);
    default:
      return {};
  }
}

// Of the header's bound, in units of 2^-24 of the sum of magnitudes.
double RoundingsOf(PackedArithmetic arithmetic, int64_t columns) {
  const double additions = static_cast<double>(columns) / 32;
  return additions + (arithmetic == PackedArithmetic::kW4a8 ? 2 : 1);
}

class PackedLinear : public testing::TestWithParam<PackedArithmetic> {
 protected:
  static std::vector<PackedKernel> Kernels() {
    return PackedKernels(GetParam(), SupportedCpuIsas().back());
  }
};

struct Case {
  int64_t rows, columns, tokens;
};
// Tails of rows, of columns and of strips; every number of tokens a kernel treats differently.
constexpr Case kCases[] = {{16, 64, 1},   {1, 16, 3},    {17, 80, 2},   {40, 208, 5},
                           {64, 576, 4},  {33, 1040, 7}, {16, 512, 15}, {48, 528, 8},
                           {32, 96, 130}, {16, 64, 257}, {33, 272, 17}, {24, 208, 43}};

TEST_P(PackedLinear, EveryVariantGivesTheBitsOfTheRule) {
  for (const auto& [rows, columns, tokens] : kCases) {
    const FourBitWeights w(WeightFormat::kNvfp4, rows, columns, 1);
    const OwnedPacked packed(w.matrix);
    const Activations x(tokens, columns, 2);
    for (const PackedKernel& kernel : Kernels()) {
      const std::vector<float> y = Product(kernel, packed.matrix, x, 0, tokens);
      int64_t wrong = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t n = 0; n < rows; ++n) {
          const float expected = ExpectedOf(GetParam(), w, n, x, t).value;
          const float value = y[static_cast<size_t>(t * rows + n)];
          wrong += std::memcmp(&value, &expected, sizeof(value)) != 0;
        }
      }
      EXPECT_EQ(wrong, 0) << kernel.name << " [" << rows << ", " << columns << "], " << tokens;
    }
  }
}

TEST_P(PackedLinear, StaysWithinTheBoundOfTheHeader) {
  const int64_t columns = 4096;
  const FourBitWeights w(WeightFormat::kNvfp4, 48, columns, 3);
  const OwnedPacked packed(w.matrix);
  const Activations x(2, columns, 4);
  const double roundings = RoundingsOf(GetParam(), columns);
  double worst = 0;
  for (const PackedKernel& kernel : Kernels()) {
    const std::vector<float> y = Product(kernel, packed.matrix, x, 0, 2);
    for (int64_t i = 0; i < 2 * 48; ++i) {
      const Expected e = ExpectedOf(GetParam(), w, i % 48, x, i / 48);
      const double error = std::abs(double{y[static_cast<size_t>(i)]} - e.exact);
      worst = std::max(worst, error / (roundings * 0x1p-24 * e.magnitude));
    }
  }
  EXPECT_LE(worst, 1);
  EXPECT_GT(worst, 0) << "random sums round somewhere";
}

TEST_P(PackedLinear, ATokenAloneIsTheTokenInAnyBatch) {  // R49, R67
  const FourBitWeights w(WeightFormat::kNvfp4, 80, 1104, 5);
  const OwnedPacked packed(w.matrix);
  const Activations x(150, 1104, 6);
  for (const PackedKernel& kernel : Kernels()) {
    const std::vector<float> all = Product(kernel, packed.matrix, x, 0, 150);
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 1}, {149, 1}, {70, 2}, {127, 3}, {5, 4}, {9, 5}, {20, 127}}) {
      const std::vector<float> part = Product(kernel, packed.matrix, x, first, count);
      EXPECT_EQ(std::memcmp(part.data(), all.data() + first * 80, part.size() * sizeof(float)), 0)
          << kernel.name << ' ' << first << ' ' << count;
    }
  }
}

TEST_P(PackedLinear, ARangeWritesItsColumnsOnly) {  // R64
  const FourBitWeights w(WeightFormat::kNvfp4, 72, 256, 7);
  const OwnedPacked packed(w.matrix);
  const Activations x(6, 256, 8);
  for (const PackedKernel& kernel : Kernels()) {
    const std::vector<float> all = Product(kernel, packed.matrix, x, 0, 6);
    const std::vector<std::byte> operand = x.Operand(kernel, 0, 6);
    for (const auto& [begin, end] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 16}, {16, 48}, {48, 72}, {32, 32}}) {
      std::vector<float> y(all.size(), -1.5f);
      PackedLinearRange(kernel, packed.matrix, operand.data(), begin, end, {y.data(), 6, 72});
      for (int64_t i = 0; i < 6 * 72; ++i) {
        const bool inside = begin <= i % 72 && i % 72 < end;
        EXPECT_EQ(y[static_cast<size_t>(i)], inside ? all[static_cast<size_t>(i)] : -1.5f);
      }
    }
  }
}

TEST_P(PackedLinear, Mxfp4WeightsAreTheirValuesTimesTheGlobalScale) {
  const FourBitWeights w(WeightFormat::kMxfp4, 32, 192, 9, 110, 127);
  const OwnedPacked packed(w.matrix);
  const Activations x(3, 192, 10);
  const PackedKernel reference = Kernels().front();
  const std::vector<float> y = Product(reference, packed.matrix, x, 0, 3);
  std::vector<float> row(192);
  for (int64_t n = 0; n < 32; ++n) {
    DequantizeRow(w.matrix, n, row.data());
    for (int64_t t = 0; t < 3; ++t) {
      double exact = 0, magnitude = 0;
      for (int64_t k = 0; k < 192; ++k) {
        const auto i = static_cast<size_t>(t * 192 + k);
        const double value = x.Value(GetParam(), i);
        exact += double{row[static_cast<size_t>(k)]} * value;
        magnitude += std::abs(double{row[static_cast<size_t>(k)]} * value);
      }
      const double scaled =
          double{y[static_cast<size_t>(t * 32 + n)]} * double{packed.matrix.global_scale.value()};
      EXPECT_NEAR(scaled, exact, RoundingsOf(GetParam(), 192) * 0x1p-24 * magnitude);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PackedLinear, testing::ValuesIn(kArithmetics), [](const auto& suite) {
  return suite.param == PackedArithmetic::kW4a4   ? "W4a4"
         : suite.param == PackedArithmetic::kW4a8 ? "W4a8"
                                                  : "W4a16";
});

TEST(PackedLinearW4a8, QuantizesWithinHalfAStep) {
  // One row picks out x: with weights of 1 at column k and 0 elsewhere, y is x' of column k.
  FourBitWeights w(WeightFormat::kNvfp4, 16, 16, 15, 0x38, 0x38);
  std::fill(w.codes.begin(), w.codes.end(), std::byte{0});
  for (size_t n = 0; n < 16; ++n)
    w.codes[n * 8 + n / 2] = n % 2 == 0 ? std::byte{0x02} : std::byte{0x20};
  const OwnedPacked packed(w.matrix);
  const PackedKernel& kernel = BestPackedKernel(PackedArithmetic::kW4a8, SupportedCpuIsas().back());
  for (const float factor : {1.0f, 0x1p-50f, 0x1p60f}) {
    Activations x(64, 16, 16);
    for (float& value : x.values) value *= factor;
    x.values[3] = -x.values[7];
    const std::vector<float> y = Product(kernel, packed.matrix, x, 0, 64);
    for (size_t i = 0; i < y.size(); ++i) {
      const double step = Int8Block(&x.values[i / 16 * 16]).scale;
      EXPECT_LE(std::abs(double{y[i]} - double{x.values[i]}), (0.5 + 0x1p-15) * step) << i;
    }
  }
}

TEST(PackedLinearW4a8, TinyBlocksAreZeroAndWhatIsNotFiniteStaysInItsRow) {
  const FourBitWeights w(WeightFormat::kNvfp4, 16, 64, 11, 0x38, 0x40);
  const OwnedPacked packed(w.matrix);
  for (const PackedKernel& kernel :
       PackedKernels(PackedArithmetic::kW4a8, SupportedCpuIsas().back())) {
    Activations x(5, 64, 12);
    std::fill_n(x.values.begin(), 64, 0x1.fep-53f);
    std::fill_n(x.values.begin() + 64, 64, 0.0f);
    x.values[2 * 64 + 9] = NAN;
    x.values[3 * 64 + 9] = -std::numeric_limits<float>::infinity();
    const std::vector<float> y = Product(kernel, packed.matrix, x, 0, 5);
    const std::vector<float> last = Product(kernel, packed.matrix, x, 4, 1);
    for (size_t n = 0; n < 16; ++n) {
      EXPECT_EQ(y[n], 0) << kernel.name;
      EXPECT_EQ(y[16 + n], 0);
      EXPECT_TRUE(std::isnan(y[2 * 16 + n])) << kernel.name;
      EXPECT_TRUE(std::isnan(y[3 * 16 + n])) << kernel.name;
      EXPECT_EQ(y[4 * 16 + n], last[n]);
    }
  }
}

TEST(PackedLinearW4a16, TinyBlocksAreZeroAndWhatIsNotFiniteStaysInItsRow) {
  const FourBitWeights w(WeightFormat::kNvfp4, 16, 64, 11, 0x38, 0x40);
  const OwnedPacked packed(w.matrix);
  for (const PackedKernel& kernel :
       PackedKernels(PackedArithmetic::kW4a16, SupportedCpuIsas().back())) {
    Activations x(6, 64, 12);
    std::fill_n(x.values.begin(), 64, 0x1.fep-64f);
    std::fill_n(x.values.begin() + 64, 64, 0x1p-149f);
    x.values[2 * 64 + 9] = NAN;
    x.values[3 * 64 + 9] = std::numeric_limits<float>::infinity();
    x.values[4 * 64 + 9] = 0x1p64f;
    const std::vector<float> y = Product(kernel, packed.matrix, x, 0, 6);
    const std::vector<float> last = Product(kernel, packed.matrix, x, 5, 1);
    for (size_t n = 0; n < 16; ++n) {
      EXPECT_EQ(y[n], 0) << kernel.name;
      EXPECT_EQ(y[16 + n], 0);
      for (size_t t = 2; t < 5; ++t) EXPECT_TRUE(std::isnan(y[t * 16 + n])) << kernel.name << t;
      EXPECT_EQ(y[5 * 16 + n], last[n]);
    }
  }
}

TEST(PackedLinearW4a16, ActivationsAreRoundedToBf16) {
  const FourBitWeights w(WeightFormat::kNvfp4, 16, 16, 13, 0x38, 0x38);
  const OwnedPacked packed(w.matrix);
  for (const PackedKernel& kernel :
       PackedKernels(PackedArithmetic::kW4a16, SupportedCpuIsas().back())) {
    Activations x(1, 16, 14);
    for (float& value : x.values) value *= 1.001f;
    const std::vector<float> y = Product(kernel, packed.matrix, x, 0, 1);
    for (float& value : x.values) value = ToFloat(ToBf16(value));
    EXPECT_EQ(y, Product(kernel, packed.matrix, x, 0, 1)) << kernel.name;
  }
}

// Blocks whose numbers differ by up to forty binades, with the extremes of the unit among them.
TEST(PackedLinearW4a16, ActivationsOfAnyRangeKeepFifteenBitsOfTheirBlock) {
  FourBitWeights w(WeightFormat::kNvfp4, 16, 16, 15, 0x38, 0x38);
  std::fill(w.codes.begin(), w.codes.end(), std::byte{0});
  for (size_t n = 0; n < 16; ++n)
    w.codes[n * 8 + n / 2] = n % 2 == 0 ? std::byte{0x02} : std::byte{0x20};
  const OwnedPacked packed(w.matrix);
  Activations x(512, 16, 17);
  std::mt19937 random(18);
  for (size_t i = 0; i < x.values.size(); ++i) {
    const int exponent = static_cast<int>(random() % (i % 3 == 0 ? 8 : 40));
    x.values[i] = std::ldexp(static_cast<float>(128 + random() % 128) / 128, -exponent);
    if (random() % 2 != 0) x.values[i] = -x.values[i];
  }
  for (const PackedKernel& kernel :
       PackedKernels(PackedArithmetic::kW4a16, SupportedCpuIsas().back())) {
    const std::vector<float> y = Product(kernel, packed.matrix, x, 0, 512);
    for (size_t i = 0; i < y.size(); ++i) {
      const float* block = &x.values[i / 16 * 16];
      const float amax = std::abs(*std::max_element(
          block, block + 16, [](float a, float b) { return std::abs(a) < std::abs(b); }));
      ASSERT_EQ(double{y[i]}, UnitBlock(block).values[i % 16]) << kernel.name << ' ' << i;
      const double change = std::abs(double{y[i]} - double{x.values[i]});
      ASSERT_LE(change, std::abs(x.values[i]) >= amax / 127 ? 0 : double{amax} * 0x1.12p-15);
    }
  }
}

// What makes all variants agree: the sum of a block is the same number in the orders of
// packed_linear.h's kBf16AndInt16, of AMX's TDPBF16PS (even columns, odd columns, then both) and in
// fp64.
TEST(PackedLinearW4a16, TheSumOfABlockIsExactInAnyOrder) {
  constexpr int kOrder[16] = {2, 0, 6, 4, 3, 1, 7, 5, 10, 8, 14, 12, 11, 9, 15, 13};
  std::mt19937 random(19);
  for (int round = 0; round < 20000; ++round) {
    std::array<float, 16> x, code;
    for (size_t k = 0; k < 16; ++k) {
      const int exponent = static_cast<int>(random() % (round % 4 == 0 ? 1 : 12));
      x[k] = std::ldexp(static_cast<float>(128 + random() % 128) / 128, -exponent);
      if (random() % 2 != 0) x[k] = -x[k];
      code[k] = round % 4 == 0 ? 6 : E2m1ToFloat(static_cast<uint8_t>(random() % 16));
    }
    const UnitBlock block(x.data());
    double exact = 0;
    float chain = 0, even = 0, odd = 0;
    for (size_t k = 0; k < 16; ++k) exact += double{code[k]} * block.values[k];
    for (const int k : kOrder) {
      const auto i = static_cast<size_t>(k);
      chain = std::fma(code[i], static_cast<float>(block.values[i]), chain);
    }
    for (size_t k = 0; k < 16; k += 2) {
      even = std::fma(code[k], static_cast<float>(block.values[k]), even);
      odd = std::fma(code[k + 1], static_cast<float>(block.values[k + 1]), odd);
    }
    ASSERT_EQ(double{chain}, exact);
    ASSERT_EQ(double{even + odd}, exact);
  }
}

TEST(PackedKernels, GoFromTheReferenceToTheBest) {
  for (const PackedArithmetic a : kArithmetics) {
    EXPECT_EQ(PackedKernels(a, CpuIsa::kScalar).size(), 1u);
    for (const CpuIsa isa : SupportedCpuIsas()) {
      EXPECT_STREQ(BestPackedKernel(a, isa).name, PackedKernels(a, isa).back().name);
      EXPECT_EQ(BestPackedKernel(a, isa).arithmetic, a);
    }
    EXPECT_GT(PackedKernels(a, CpuIsa::kAvx2).size(), 1u);
  }
}

}  // namespace
}  // namespace halfbyte
