#include "kernels/linear/linear.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/error_stats.h"
#include "numerics/mxfp4_block.h"
#include "numerics/nvfp4_block.h"
#include "tensor/gate_up_interleave.h"

namespace halfbyte {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32,   WeightFormat::kBf16,
                                     WeightFormat::kF16,   WeightFormat::kFp8,
                                     WeightFormat::kNvfp4, WeightFormat::kMxfp4};

// A weight with its bytes, one byte off any alignment, as checkpoints may have it.
struct OwnedWeight {
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  WeightMatrix matrix;
};

struct Fp8Scales {
  DType dtype = DType::kF8E8m0;
  int64_t block_rows = 1;
  int64_t block_columns = 128;
};

template <class T>
void Put(std::vector<std::byte>& bytes, int64_t index, T value) {
  std::memcpy(bytes.data() + 1 + index * int64_t{sizeof(T)}, &value, sizeof(T));
}

// Every code and every valid scale byte may occur; values are made from random bits, not rounded
// from a distribution, so subnormals and extremes are there.
OwnedWeight RandomWeight(WeightFormat format, int64_t rows, int64_t columns, uint32_t seed,
                         Fp8Scales fp8 = {}) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  OwnedWeight w;
  w.matrix = {.format = format, .rows = rows, .columns = columns};
  w.matrix.scale_dtype = format == WeightFormat::kMxfp4 ? DType::kF8E8m0
                         : format == WeightFormat::kFp8 ? fp8.dtype
                                                        : DType::kF8E4m3;
  w.matrix.scale_block_rows = fp8.block_rows;
  w.matrix.scale_block_columns = fp8.block_columns;
  if (format == WeightFormat::kNvfp4) w.matrix.global_scale = GlobalScale(0.0371f);
  w.data.resize(static_cast<size_t>(rows * w.matrix.row_bytes() + 1));
  for (int64_t i = 0; i < rows * w.matrix.row_bytes(); ++i) {
    w.data[static_cast<size_t>(i + 1)] = static_cast<std::byte>(random());
  }
  for (int64_t i = 0; i < rows * columns; ++i) {
    if (format == WeightFormat::kF32) Put(w.data, i, normal(random));
    if (format == WeightFormat::kBf16) Put(w.data, i, ToBf16(normal(random)));
    if (format == WeightFormat::kF16) Put(w.data, i, static_cast<uint16_t>(random() & 0xbbffu));
    if (format == WeightFormat::kFp8) {
      const auto code = static_cast<uint8_t>(random());
      Put(w.data, i, static_cast<uint8_t>((code & 0x7f) == 0x7f ? 0x3c : code));
    }
  }
  const int64_t scales = w.matrix.scale_rows() * w.matrix.scale_columns();
  w.scales.resize(static_cast<size_t>(scales * DTypeSize(w.matrix.scale_dtype) + 1));
  for (int64_t i = 0; i < scales; ++i) {
    const float value = std::exp2(normal(random));
    switch (w.matrix.scale_dtype) {
      case DType::kF8E8m0:
        Put(w.scales, i, static_cast<uint8_t>(120 + random() % 12));
        break;
      case DType::kF32:
        Put(w.scales, i, value);
        break;
      case DType::kBf16:
        Put(w.scales, i, ToBf16(value));
        break;
      default:
        Put(w.scales, i, static_cast<uint8_t>(random() % 0x7f));
    }
  }
  w.matrix.data = w.data.data() + 1;
  w.matrix.scales = w.matrix.scale_columns() > 0 ? w.scales.data() + 1 : nullptr;
  return w;
}

std::vector<float> RandomActivations(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = RoundToBf16(normal(random));
  return x;
}

std::vector<float> Compute(const Context& context, const std::vector<float>& x, int64_t tokens,
                           const WeightMatrix& w) {
  std::vector<float> y(static_cast<size_t>(tokens * w.rows), NAN);
  Linear(context, {x.data(), tokens, w.columns}, w, {y.data(), tokens, w.rows});
  return y;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string Describe(const WeightMatrix& w, int64_t tokens, CpuIsa isa) {
  return fmt::format("{} [{}, {}] x {} tokens, {}", WeightFormatName(w.format), w.rows, w.columns,
                     tokens, CpuIsaName(isa));
}

// Fast variants on every instruction set, against the plain loops, for one weight.
void ExpectReferenceBits(const OwnedWeight& w, std::initializer_list<int64_t> token_counts) {
  ThreadPool pool(2);
  for (const int64_t tokens : token_counts) {
    const std::vector<float> x = RandomActivations(tokens * w.matrix.columns, 7);
    const MatrixView<const float> rows{x.data(), tokens, w.matrix.columns};
    std::vector<float> expected(static_cast<size_t>(tokens * w.matrix.rows));
    const MatrixView<float> y{expected.data(), tokens, w.matrix.rows};
    LinearReference(rows, w.matrix, y);
    for (const CpuIsa isa : SupportedCpuIsas()) {
      EXPECT_TRUE(SameBits(Compute(Context(pool, isa), x, tokens, w.matrix), expected))
          << Describe(w.matrix, tokens, isa);
    }
    LinearSegmentsReference(rows, w.matrix, y);
    for (const CpuIsa isa : SupportedCpuIsas()) {
      std::vector<float> in_segments(expected.size(), NAN);
      LinearSegments(Context(pool, isa), rows, w.matrix, {in_segments.data(), y.rows, y.columns});
      EXPECT_TRUE(SameBits(in_segments, expected))
          << "in segments: " << Describe(w.matrix, tokens, isa);
    }
  }
}

TEST(Linear, SegmentsAreAddedAsPairsOfNeighboursLevelByLevel) {
  // One number per segment, so large and small that every other order gives another sum.
  const float a = 0x1p24f;
  for (const auto& [segments, expected] : std::vector<std::pair<std::vector<float>, float>>{
           {{a, 1, 1, -a}, (a + 1) + (1 - a)},
           {{a, 1, 1}, (a + 1) + 1},
           {{1, 1, a, 1, 1}, ((1 + 1.0f) + (a + 1)) + 1},
           {{1, 1, 1, 1, a, 3, 1}, 4 + ((a + 3) + 1)},
           {{1, 1, 1, 1, a, 1, 1, 1, -a}, (4 + ((a + 1) + 2.0f)) + -a}}) {
    const auto k = static_cast<int64_t>(segments.size()) * 256 - 200;  // the last one is shorter
    std::vector<float> row(static_cast<size_t>(k)), y(1);
    for (size_t s = 0; s < segments.size(); ++s) row[s * 256 + 5 * s] = segments[s];
    const std::vector<float> ones(row.size(), 1.0f);
    const WeightMatrix w{.format = WeightFormat::kF32,
                         .rows = 1,
                         .columns = k,
                         .data = reinterpret_cast<const std::byte*>(row.data())};
    LinearSegmentsReference({ones.data(), 1, k}, w, {y.data(), 1, 1});
    EXPECT_EQ(y[0], expected) << segments.size() << " segments";
  }
}

TEST(Linear, EveryFormatOnEveryInstructionSetEqualsThePlainLoopBitForBit) {
  for (const WeightFormat format : kFormats) {
    const bool packed = format == WeightFormat::kNvfp4 || format == WeightFormat::kMxfp4;
    const std::vector<int64_t> columns_to_try = packed ? std::vector<int64_t>{32, 96, 544, 1120}
                                                       : std::vector<int64_t>{1, 15, 33, 529, 1117};
    for (const int64_t rows : {1, 3, 9, 37}) {
      for (const int64_t columns : columns_to_try) {
        ExpectReferenceBits(RandomWeight(format, rows, columns, 11), {1, 2, 3, 4, 5, 8, 17});
      }
    }
  }
  // NVFP4 of an odd number of blocks; more tokens and rows than one block of the inner loops.
  ExpectReferenceBits(RandomWeight(WeightFormat::kNvfp4, 21, 16 * 37, 3), {1, 6, 100, 193});
}

TEST(Linear, Fp8TakesAnyGridAndTypeOfScales) {
  const int64_t rows = 45, columns = 300;
  for (const DType dtype : {DType::kF8E8m0, DType::kF32, DType::kBf16}) {
    for (const Fp8Scales scales :
         {Fp8Scales{dtype, 16, 128}, Fp8Scales{dtype, 1, columns}, Fp8Scales{dtype, rows, columns},
          Fp8Scales{dtype, 128, 128}, Fp8Scales{dtype, 7, 16}, Fp8Scales{dtype, 5, 24},
          Fp8Scales{dtype, 1, 5}}) {
      ExpectReferenceBits(RandomWeight(WeightFormat::kFp8, rows, columns, 5, scales), {1, 3, 7});
    }
  }
}

TEST(Linear, EveryCodeOfEveryByteFormatDecodesAsTheNumbersRoomSays) {  // R57
  // One weight per row and x = 1: y is the weight itself.
  ThreadPool pool(1);
  std::vector<std::byte> codes(256);
  for (int i = 0; i < 256; ++i) codes[static_cast<size_t>(i)] = static_cast<std::byte>(i);
  const float one = 1;
  const std::byte unit_scale{127};
  const WeightMatrix w{.format = WeightFormat::kFp8,
                       .rows = 256,
                       .columns = 1,
                       .data = codes.data(),
                       .scales = &unit_scale,
                       .scale_dtype = DType::kF8E8m0,
                       .scale_block_rows = 256,
                       .scale_block_columns = 1};
  for (const CpuIsa isa : SupportedCpuIsas()) {
    std::vector<float> y(256);
    Linear(Context(pool, isa), {&one, 1, 1}, w, {y.data(), 1, 256});
    for (int i = 0; i < 256; ++i) {
      const float expected = E4m3ToFloat(static_cast<uint8_t>(i));
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(y[static_cast<size_t>(i)])) << i;
      } else {
        EXPECT_EQ(y[static_cast<size_t>(i)], expected) << i;
      }
    }
  }
}

TEST(Linear, OnesTimesOnesCountsTheColumnsTailIncluded) {  // CPU-03
  ThreadPool pool(1);
  for (const int64_t k : {16, 48, 80, 112, 1856, 1857}) {
    const std::vector<float> ones(static_cast<size_t>(k), 1.0f);
    const WeightMatrix w{
        .rows = 1, .columns = k, .data = reinterpret_cast<const std::byte*>(ones.data())};
    for (const CpuIsa isa : SupportedCpuIsas()) {
      EXPECT_EQ(Compute(Context(pool, isa), ones, 1, w)[0], static_cast<float>(k));
    }
  }
}

TEST(Linear, StaysWithinTheRoundingBoundOfFp64) {
  ThreadPool pool(2);
  const Context context(pool);
  for (const WeightFormat format : kFormats) {
    const int64_t rows = 40, columns = 4096, tokens = 9;
    const OwnedWeight w = RandomWeight(format, rows, columns, 23);
    const std::vector<float> x = RandomActivations(tokens * columns, 29);
    const std::vector<float> y = Compute(context, x, tokens, w.matrix);
    std::vector<float> exact(y.size());
    LinearF64(context, {x.data(), tokens, columns}, w.matrix, {exact.data(), tokens, rows});
    // Each lane rounds K/16 times, then the tree four times, then the factor and the reference
    // once: |error| <= (K/16 + 6) u * sum |x w|, u = 2^-24 (one u more for the rounded FP8
    // product).
    const double bound_factor = (static_cast<double>(columns) / 16 + 7) * 0x1p-24;
    ErrorStats stats;
    std::vector<float> row(static_cast<size_t>(columns));
    for (int64_t n = 0; n < rows; ++n) {
      DequantizeRow(w.matrix, n, row.data());
      for (int64_t t = 0; t < tokens; ++t) {
        double magnitude = 0;
        for (int64_t k = 0; k < columns; ++k) {
          magnitude += std::abs(double{x[static_cast<size_t>(t * columns + k)]} *
                                double{row[static_cast<size_t>(k)]});
        }
        const auto i = static_cast<size_t>(t * rows + n);
        stats.Add(static_cast<int64_t>(i), y[i], exact[i]);
        EXPECT_LE(std::abs(double{y[i]} - double{exact[i]}), bound_factor * magnitude)
            << Describe(w.matrix, tokens, context.isa()) << " at " << t << ", " << n;
      }
    }
    EXPECT_GT(stats.signal, 0);
    EXPECT_LT(stats.relative_l2(), 3e-6) << WeightFormatName(format) << " worst "
                                         << stats.worst_value << " for " << stats.worst_reference;
  }
}

TEST(Linear, ARowDoesNotDependOnItsBatchOrTheThreads) {  // MDL-07
  const int64_t tokens = 131, columns = 1056;
  for (const WeightFormat format : kFormats) {
    const OwnedWeight w = RandomWeight(format, 203, columns, 31);
    const std::vector<float> x = RandomActivations(tokens * columns, 37);
    ThreadPool one(1), three(3);
    const std::vector<float> all = Compute(Context(one), x, tokens, w.matrix);
    EXPECT_TRUE(SameBits(Compute(Context(three), x, tokens, w.matrix), all));
    for (const int64_t t : {0, 6, 95, 96, 130}) {
      const std::vector<float> alone(x.begin() + t * columns, x.begin() + (t + 1) * columns);
      const std::vector<float> y = Compute(Context(three), alone, 1, w.matrix);
      EXPECT_EQ(std::memcmp(y.data(), all.data() + t * 203, y.size() * sizeof(float)), 0)
          << Describe(w.matrix, t, CpuIsa::kAvx512);
    }
  }
}

TEST(Linear, ANanInOneRowStaysInThatRow) {
  ThreadPool pool(1);
  for (const CpuIsa isa : SupportedCpuIsas()) {
    const OwnedWeight w = RandomWeight(WeightFormat::kNvfp4, 11, 64, 41);
    std::vector<float> x = RandomActivations(3 * 64, 43);
    const std::vector<float> clean = Compute(Context(pool, isa), x, 3, w.matrix);
    x[64 + 5] = NAN;
    const std::vector<float> y = Compute(Context(pool, isa), x, 3, w.matrix);
    for (size_t n = 0; n < 11; ++n) {
      EXPECT_EQ(y[n], clean[n]);
      EXPECT_TRUE(std::isnan(y[11 + n]));
      EXPECT_EQ(y[22 + n], clean[22 + n]);
    }
  }
}

TEST(Linear, GlobalScaleMultipliesTheSumOnce) {  // R117, R61: equal codes, another scale
  ThreadPool pool(1);
  OwnedWeight w = RandomWeight(WeightFormat::kNvfp4, 5, 64, 47);
  const std::vector<float> x = RandomActivations(64, 53);
  w.matrix.global_scale = GlobalScale(1.0f);
  const std::vector<float> unit = Compute(Context(pool), x, 1, w.matrix);
  w.matrix.global_scale = GlobalScale(0.0123f);
  const std::vector<float> scaled = Compute(Context(pool), x, 1, w.matrix);
  for (size_t n = 0; n < 5; ++n) {
    EXPECT_NE(unit[n], 0);
    EXPECT_EQ(scaled[n], unit[n] * 0.0123f);
  }
}

// R82. Rows of gate and up in the interleaved order: the same numbers at the places of that order.
TEST(Linear, AnInterleavedGateUpGivesTheBitsOfThePlainOnes) {
  const int64_t channels = 48, columns = 80, tokens = 3;
  const OwnedWeight gate = RandomWeight(WeightFormat::kNvfp4, channels, columns, 71);
  const OwnedWeight up = RandomWeight(WeightFormat::kNvfp4, channels, columns, 72);
  const auto interleave = [&](const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    const size_t size = a.size() - 1;  // a byte to misalign stands in front
    std::vector<std::byte> both(2 * size);
    const auto bytes = [size](const std::vector<std::byte>& v) {
      return std::span(reinterpret_cast<const uint8_t*>(v.data() + 1), size);
    };
    InterleaveGateUp(bytes(a), bytes(b), channels,
                     {reinterpret_cast<uint8_t*>(both.data()), both.size()});
    return both;
  };
  const std::vector<std::byte> codes = interleave(gate.data, up.data);
  const std::vector<std::byte> scales = interleave(gate.scales, up.scales);
  WeightMatrix both = gate.matrix;
  both.rows = 2 * channels;
  both.data = codes.data();
  both.scales = scales.data();
  const std::vector<float> x = RandomActivations(tokens * columns, 73);
  ThreadPool pool(2);
  for (const CpuIsa isa : SupportedCpuIsas()) {
    const Context context(pool, isa);
    const std::vector<float> y = Compute(context, x, tokens, both);
    const std::vector<float> gates = Compute(context, x, tokens, gate.matrix);
    const std::vector<float> ups = Compute(context, x, tokens, up.matrix);
    for (int64_t i = 0; i < tokens * channels; ++i) {
      const float* row = y.data() + i / channels * 2 * channels;
      EXPECT_EQ(row[InterleavedGateRow(i % channels)], gates[static_cast<size_t>(i)]);
      EXPECT_EQ(row[InterleavedUpRow(i % channels)], ups[static_cast<size_t>(i)]);
    }
  }
}

// R56. Groups of rows as uneven as experts get them, one weight for each; every sum is an integer
// that fp32 holds, so any order of additions gives it.
TEST(Linear, SmallIntegersAreExact) {
  std::mt19937 random(83);
  std::gamma_distribution<double> gamma(0.5);
  const int64_t rows = 13, columns = 272;
  ThreadPool pool(2);
  for (int expert = 0; expert < 6; ++expert) {
    const auto count = 1 + static_cast<int64_t>(20 * gamma(random));
    OwnedWeight w = RandomWeight(WeightFormat::kNvfp4, rows, columns, 89);
    w.matrix.global_scale = GlobalScale(1.0f);
    for (int64_t i = 0; i < rows * columns / 2; ++i) {
      constexpr uint8_t kCodes[] = {0x0, 0x2, 0xa};  // 0, 1, -1
      Put(w.data, i, PackE2m1(kCodes[random() % 3], kCodes[random() % 3]));
    }
    for (int64_t i = 0; i < rows * columns / 16; ++i) {
      Put(w.scales, i, E4m3FromFloat(random() % 2 ? 1.0f : 2.0f));
    }
    std::vector<float> x(static_cast<size_t>(count * columns));
    for (float& value : x) value = static_cast<float>(static_cast<int>(random() % 3) - 1);
    std::vector<float> decoded(static_cast<size_t>(columns));
    std::vector<std::vector<float>> weights;
    for (int64_t n = 0; n < rows; ++n) {
      DequantizeRow(w.matrix, n, decoded.data());
      weights.push_back(decoded);
    }
    for (const CpuIsa isa : SupportedCpuIsas()) {
      const std::vector<float> y = Compute(Context(pool, isa), x, count, w.matrix);
      for (int64_t i = 0; i < count * rows; ++i) {
        int64_t sum = 0;
        for (int64_t k = 0; k < columns; ++k) {
          sum +=
              static_cast<int64_t>(x[static_cast<size_t>(i / rows * columns + k)]) *
              static_cast<int64_t>(weights[static_cast<size_t>(i % rows)][static_cast<size_t>(k)]);
        }
        ASSERT_EQ(y[static_cast<size_t>(i)], static_cast<float>(sum)) << CpuIsaName(isa);
      }
    }
  }
}

TEST(Linear, TakesTheWidthOfGptOss) {  // R66: 2880 = 180 blocks of 16, 22.5 of 128
  ExpectReferenceBits(RandomWeight(WeightFormat::kNvfp4, 11, 2880, 97), {1, 5});
  ExpectReferenceBits(RandomWeight(WeightFormat::kMxfp4, 11, 2880, 98), {1, 5});
  ExpectReferenceBits(RandomWeight(WeightFormat::kNvfp4, 11, 16 * 33, 99), {1, 5});
}

TEST(Linear, EmptyDimensionsAreValid) {
  ThreadPool pool(2);
  for (const CpuIsa isa : SupportedCpuIsas()) {
    const Context context(pool, isa);
    for (const WeightFormat format : kFormats) {
      EXPECT_TRUE(Compute(context, {}, 0, RandomWeight(format, 9, 64, 1).matrix).empty());
      EXPECT_TRUE(Compute(context, std::vector<float>(64), 1, RandomWeight(format, 0, 64, 1).matrix)
                      .empty());
      for (const int64_t tokens : {1, 7}) {
        for (const float value :
             Compute(context, {}, tokens, RandomWeight(format, 9, 0, 1).matrix)) {
          EXPECT_EQ(value, 0);
        }
      }
    }
  }
}

TEST(Linear, ARangeWritesItsOwnColumnsOnly) {  // R64
  ThreadPool pool(1);
  const OwnedWeight w = RandomWeight(WeightFormat::kBf16, 20, 40, 59);
  const std::vector<float> x = RandomActivations(2 * 40, 61);
  const std::vector<float> whole = Compute(Context(pool), x, 2, w.matrix);
  std::vector<float> y(40, -7.0f);
  LinearRange(Context(pool), {x.data(), 2, 40}, w.matrix, 3, 14, {y.data(), 2, 20});
  for (size_t i = 0; i < 40; ++i) {
    const bool inside = i % 20 >= 3 && i % 20 < 14;
    EXPECT_EQ(y[i], inside ? whole[i] : -7.0f) << i;
  }
}

TEST(LinearDeathTest, ShapesThatDisagreeAbort) {
  ThreadPool pool(1);
  const OwnedWeight w = RandomWeight(WeightFormat::kF32, 3, 8, 1);
  std::vector<float> x(9), y(3);
  EXPECT_DEATH(Linear(Context(pool), {x.data(), 1, 9}, w.matrix, {y.data(), 1, 3}), "x \\[1, 9\\]");
}

}  // namespace
}  // namespace halfbyte
