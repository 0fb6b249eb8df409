#include "kernels/quantize_nvfp4/quantize_nvfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/memory_limited_child.h"
#include "kernels/quantize_nvfp4/row_kernels.h"
#include "numerics/error_stats.h"
#include "numerics/fp16.h"

namespace halfbyte {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ThreadPool& Pool() {
  static ThreadPool pool(2);
  return pool;
}

std::vector<float> Gaussian(int64_t count, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

// Values over the whole range of fp32 exponents that matter, zeros, and rounding boundaries.
std::vector<float> Wild(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> x(static_cast<size_t>(count));
  int exponent = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 16 == 0) exponent = static_cast<int>(random() % 60) - 40;
    const int form = static_cast<int>(random() % 8);
    float value = static_cast<float>(random() % 25) * 0.25f;  // E2M1 numbers and midpoints
    if (form >= 3) value = static_cast<float>(random()) * 0x1p-30f;
    if (form == 7) value = 0;
    x[i] = std::ldexp(random() % 2 ? value : -value, exponent);
    if (random() % 5 == 0) x[i] = std::nextafter(x[i], random() % 2 ? kInf : -kInf);
  }
  return x;
}

// A matrix of some dtype in bytes of its own, one byte off any alignment.
struct Source {
  std::vector<std::byte> storage;
  FloatRows rows;

  Source(DType dtype, int64_t count, int64_t k, const std::vector<float>& x) {
    const int64_t size = DTypeSize(dtype);
    storage.resize(static_cast<size_t>(count * k * size) + 1);
    for (size_t i = 0; i < static_cast<size_t>(count * k); ++i) {
      std::byte* out = storage.data() + 1 + i * static_cast<size_t>(size);
      if (dtype == DType::kF32) {
        std::memcpy(out, &x[i], 4);
      } else if (dtype == DType::kBf16) {
        const Bf16 value = ToBf16(x[i]);
        std::memcpy(out, &value, 2);
      } else {
        const auto value = static_cast<_Float16>(x[i]);
        std::memcpy(out, &value, 2);
      }
    }
    rows = {dtype, count, k, storage.data() + 1, k * size};
  }

  float at(int64_t row, int64_t column) const {
    const std::byte* p = rows.row(row) + column * DTypeSize(rows.dtype);
    float x32;
    Bf16 x16;
    Fp16 half;
    switch (rows.dtype) {
      case DType::kF32:
        std::memcpy(&x32, p, 4);
        return x32;
      case DType::kBf16:
        std::memcpy(&x16, p, 2);
        return ToFloat(x16);
      default:
        std::memcpy(&half, p, 2);
        return ToFloat(half);
    }
  }
};

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> block_scales;
  Nvfp4BlockStats stats;
};

// One block after the other through numerics/nvfp4_block.h.
Quantized Oracle(const Source& source, GlobalScale global_scale, Nvfp4Rule rule) {
  Quantized result;
  for (int64_t r = 0; r < source.rows.rows; ++r) {
    for (int64_t c = 0; c < source.rows.k; c += kNvfp4Block) {
      float x[kNvfp4Block];
      for (int i = 0; i < kNvfp4Block; ++i) x[i] = source.at(r, c + i);
      const Nvfp4Block block = rule == Nvfp4Rule::k4Over6
                                   ? QuantizeNvfp4Block4Over6(x, global_scale, &result.stats)
                                   : QuantizeNvfp4Block(x, global_scale, &result.stats);
      result.codes.insert(result.codes.end(), std::begin(block.codes), std::end(block.codes));
      result.block_scales.push_back(block.scale);
    }
  }
  return result;
}

Quantized Quantize(const Context& context, const FloatRows& rows, GlobalScale global_scale,
                   Nvfp4Rule rule) {
  // A byte of guard behind each buffer, and nothing left of what was there before.
  Quantized result{std::vector<uint8_t>(static_cast<size_t>(rows.rows * rows.k / 2) + 1, 0xab),
                   std::vector<uint8_t>(static_cast<size_t>(rows.rows * rows.k / 16) + 1, 0xcd),
                   {}};
  const auto stats = QuantizeNvfp4(context, rows, global_scale, rule,
                                   {result.codes.data(), result.block_scales.data()});
  EXPECT_TRUE(stats.has_value()) << stats.error().message;
  result.stats = *stats;
  EXPECT_EQ(result.codes.back(), 0xab);
  EXPECT_EQ(result.block_scales.back(), 0xcd);
  result.codes.pop_back();
  result.block_scales.pop_back();
  return result;
}

void ExpectSame(const Quantized& actual, const Quantized& expected, const std::string& what) {
  EXPECT_EQ(actual.block_scales, expected.block_scales) << what;
  EXPECT_EQ(actual.codes, expected.codes) << what;
  EXPECT_EQ(actual.stats.blocks, expected.stats.blocks) << what;
  EXPECT_EQ(actual.stats.zero, expected.stats.zero) << what;
  EXPECT_EQ(actual.stats.flushed, expected.stats.flushed) << what;
  EXPECT_EQ(actual.stats.at_max, expected.stats.at_max) << what;
  EXPECT_EQ(actual.stats.clipped, expected.stats.clipped) << what;
  EXPECT_EQ(actual.stats.non_finite, expected.stats.non_finite) << what;
  EXPECT_EQ(actual.stats.amax, expected.stats.amax) << what;
}

TEST(QuantizeNvfp4, EveryVariantWritesTheBytesOfTheBlockRule) {  // R20
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const auto& [rows, k] : {std::pair<int64_t, int64_t>{1, 16},
                                  {3, 48},
                                  {7, 272},
                                  {5, 512},
                                  {33, 2896},
                                  {1, 0},
                                  {0, 64}}) {
      for (const float factor : {1.0f, 0.25f, 4096.0f}) {
        const Source source(dtype, rows, k, Wild(rows * k, 7 + static_cast<uint32_t>(k)));
        const GlobalScale global_scale(0.003f * factor);
        for (const Nvfp4Rule rule : {Nvfp4Rule::kAmaxTo6, Nvfp4Rule::k4Over6}) {
          const Quantized expected = Oracle(source, global_scale, rule);
          for (const CpuIsa isa : SupportedCpuIsas()) {
            ExpectSame(Quantize(Context(Pool(), isa), source.rows, global_scale, rule), expected,
                       fmt::format("{} {} [{}, {}] x{} rule {}", CpuIsaName(isa), DTypeName(dtype),
                                   rows, k, factor, static_cast<int>(rule)));
          }
        }
      }
    }
  }
}

TEST(QuantizeNvfp4, ExtremeGlobalScalesGiveTheBytesOfTheBlockRule) {
  const Source source(DType::kF32, 4, 64, Wild(4 * 64, 3));
  for (const float scale : {0x1p-149f, 0x1p-130f, 0x1p-126f, 0x1p-60f, 0x1p60f, 0x1p127f}) {
    for (const Nvfp4Rule rule : {Nvfp4Rule::kAmaxTo6, Nvfp4Rule::k4Over6}) {
      const Quantized expected = Oracle(source, GlobalScale(scale), rule);
      for (const uint8_t byte : expected.block_scales) EXPECT_LE(byte, 0x7e);
      for (const CpuIsa isa : SupportedCpuIsas()) {
        ExpectSame(Quantize(Context(Pool(), isa), source.rows, GlobalScale(scale), rule), expected,
                   fmt::format("{} {}", CpuIsaName(isa), scale));
      }
    }
  }
}

// R18. Each row has one value that is not finite, at a place of its own.
TEST(QuantizeNvfp4, NanAndInfinityStayInTheirBlockAndAreCounted) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kK = 320;
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    std::vector<float> x = Gaussian(kRows * kK, 1, 11);
    const Source clean(dtype, kRows, kK, x);
    const float bad[] = {kNan, kInf, -kInf, -kNan};
    for (int64_t r = 0; r < kRows; r += 2) {
      x[static_cast<size_t>(r * kK + (r * 37) % kK)] = bad[r / 2 % 4];
    }
    const Source dirty(dtype, kRows, kK, x);
    const GlobalScale global_scale = GlobalScale::FromAmax(4);
    for (const CpuIsa isa : SupportedCpuIsas()) {
      const Context context(Pool(), isa);
      const Quantized before = Quantize(context, clean.rows, global_scale, Nvfp4Rule::kAmaxTo6);
      const Quantized after = Quantize(context, dirty.rows, global_scale, Nvfp4Rule::kAmaxTo6);
      ExpectSame(after, Oracle(dirty, global_scale, Nvfp4Rule::kAmaxTo6),
                 std::string(CpuIsaName(isa)));
      EXPECT_EQ(after.stats.non_finite, kRows / 2);
      EXPECT_EQ(before.stats.non_finite, 0);
      for (size_t b = 0; b < after.block_scales.size(); ++b) {
        EXPECT_LE(after.block_scales[b], 0x7e);
        const auto row = static_cast<int64_t>(b) / (kK / 16);
        const bool hit =
            row % 2 == 0 && static_cast<int64_t>(b) % (kK / 16) == (row * 37) % kK / 16;
        if (hit) continue;
        EXPECT_EQ(after.block_scales[b], before.block_scales[b]);
        EXPECT_EQ(std::memcmp(&after.codes[b * 8], &before.codes[b * 8], 8), 0);
      }
      const MatrixAmax amax = AmaxOf(context, dirty.rows);
      EXPECT_EQ(amax.non_finite, kRows / 2);
      EXPECT_TRUE(std::isfinite(amax.amax));
    }
  }
}

TEST(QuantizeNvfp4, AmaxSeesEveryElementAlsoBehindTheLastWholeBlock) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const int64_t k : {1, 15, 16, 17, 47, 1000}) {
      for (const int64_t place : {int64_t{0}, k / 2, k - 1}) {
        std::vector<float> x(static_cast<size_t>(2 * k), 0.5f);
        x[static_cast<size_t>(k + place)] = -3;
        const Source source(dtype, 2, k, x);
        for (const CpuIsa isa : SupportedCpuIsas()) {
          EXPECT_EQ(AmaxOf(Context(Pool(), isa), source.rows).amax, 3) << k << " " << place;
        }
      }
    }
  }
}

// R10: the static and the dynamic quantizer agree when their scales do.
TEST(QuantizeNvfp4, StaticAndDynamicQuantizersReturnTheSameBytes) {
  const Source source(DType::kBf16, 9, 352, Gaussian(9 * 352, 0.02f, 5));
  const Context context(Pool());
  for (const Nvfp4Rule rule : {Nvfp4Rule::kAmaxTo6, Nvfp4Rule::k4Over6}) {
    auto dynamic = QuantizeNvfp4FromAmax(context, source.rows, rule);
    ASSERT_TRUE(dynamic.has_value());
    const Nvfp4View view = dynamic->matrix.view();
    EXPECT_EQ(view.global_scale, GlobalScaleFor(AmaxOf(context, source.rows).amax, rule));
    const Quantized fixed = Quantize(context, source.rows, view.global_scale, rule);
    EXPECT_EQ(std::memcmp(fixed.codes.data(), view.codes, fixed.codes.size()), 0);
    EXPECT_EQ(std::memcmp(fixed.block_scales.data(), view.block_scales, fixed.block_scales.size()),
              0);
    EXPECT_EQ(fixed.stats.clipped, 0);
    EXPECT_EQ(dynamic->stats.blocks, 9 * 352 / 16);
  }
}

TEST(QuantizeNvfp4, ARowOfItsOwnScaleIsAMatrixOfOneRow) {
  std::vector<float> x = Gaussian(6 * 80, 1, 17);
  for (int64_t c = 0; c < 80; ++c) x[static_cast<size_t>(2 * 80 + c)] = 0;          // a zero row
  for (int64_t c = 0; c < 80; ++c) x[static_cast<size_t>(3 * 80 + c)] *= 0x1p-40f;  // a small one
  const Source source(DType::kF32, 6, 80, x);
  for (const CpuIsa isa : SupportedCpuIsas()) {
    const Context context(Pool(), isa);
    Nvfp4Matrix all(6, 80, GlobalScale(1));
    std::vector<GlobalScale> scales(6, GlobalScale(0));
    const auto stats = QuantizeNvfp4PerRow(context, source.rows, Nvfp4Rule::kAmaxTo6,
                                           Nvfp4Output::Of(all), scales.data());
    ASSERT_TRUE(stats.has_value());
    EXPECT_EQ(stats->zero, 5);
    EXPECT_EQ(stats->flushed, 0);
    EXPECT_EQ(scales[2].value(), 1);  // R16
    for (int64_t r = 0; r < 6; ++r) {
      auto alone = QuantizeNvfp4FromAmax(context, source.rows.Rows(r, 1), Nvfp4Rule::kAmaxTo6);
      ASSERT_TRUE(alone.has_value());
      EXPECT_TRUE(scales[static_cast<size_t>(r)].IsUsable());
      EXPECT_EQ(alone->matrix.view().global_scale, scales[static_cast<size_t>(r)]);
      EXPECT_EQ(std::memcmp(alone->matrix.codes(), all.view().row_codes(r), 40), 0);
      EXPECT_EQ(std::memcmp(alone->matrix.block_scales(), all.view().row_scales(r), 5), 0);
    }
  }
}

TEST(QuantizeNvfp4, RowsMayLieApart) {  // R19: a slice of columns
  const Source wide(DType::kBf16, 5, 96, Gaussian(5 * 96, 1, 23));
  FloatRows slice = wide.rows;
  slice.k = 32;
  slice.data += 48 * 2;
  std::vector<float> dense;
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t c = 0; c < 32; ++c) dense.push_back(wide.at(r, 48 + c));
  }
  const Source copy(DType::kBf16, 5, 32, dense);
  const Context context(Pool());
  ExpectSame(Quantize(context, slice, GlobalScale(0.001f), Nvfp4Rule::kAmaxTo6),
             Oracle(copy, GlobalScale(0.001f), Nvfp4Rule::kAmaxTo6), "slice");
}

TEST(QuantizeNvfp4, ATransposedSourceGivesTheBytesOfItsTranspose) {  // R11
  // The last is more than one piece of the transpose; the first has a single column.
  for (const auto& [k, n] :
       {std::pair<int64_t, int64_t>{16, 1}, {48, 37}, {272, 5}, {0, 3}, {32, 0}, {1024, 1100}}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      const std::vector<float> x = Gaussian(k * n, 1, 29);
      std::vector<float> turned(x.size());
      for (int64_t i = 0; i < k * n; ++i) {
        turned[static_cast<size_t>(i % n * k + i / n)] = x[static_cast<size_t>(i)];
      }
      const Source source(dtype, k, n, x), transposed(dtype, n, k, turned);
      for (const Nvfp4Rule rule : {Nvfp4Rule::kAmaxTo6, Nvfp4Rule::k4Over6}) {
        Quantized result{std::vector<uint8_t>(static_cast<size_t>(n * k / 2)),
                         std::vector<uint8_t>(static_cast<size_t>(n * k / 16)),
                         {}};
        const auto stats =
            QuantizeNvfp4Transposed(Context(Pool()), source.rows, GlobalScale(0.002f), rule,
                                    {result.codes.data(), result.block_scales.data()});
        ASSERT_TRUE(stats.has_value()) << stats.error().message;
        result.stats = *stats;
        ExpectSame(result, Oracle(transposed, GlobalScale(0.002f), rule),
                   fmt::format("{} [{}, {}]", DTypeName(dtype), k, n));
      }
    }
  }
  const Source odd(DType::kF32, 12, 32, Gaussian(12 * 32, 1, 1));
  EXPECT_FALSE(
      QuantizeNvfp4Transposed(Context(Pool()), odd.rows, GlobalScale(1), Nvfp4Rule::kAmaxTo6, {})
          .has_value());
}

// R9. With global scale 1, amax at, just above, and at twice the smallest scale that is kept.
TEST(QuantizeNvfp4, FlushesOnlyWhereTheScaleByteIsZeroUnlessParityIsAskedFor) {
  std::vector<float> x;
  const float smallest = 6 * 0x1p-10f;
  for (const float amax : {smallest, std::nextafter(smallest, kInf), 6 * 0x1p-9f}) {
    x.push_back(-amax);
    x.insert(x.end(), 15, amax / 2);
  }
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    // fp16 cannot hold the number just above; twice 2^-10 of its mantissa can.
    if (dtype == DType::kF16) x[16] = -6 * 0x1p-10f * (1 + 0x1p-8f);
    const Source source(dtype, 3, 16, x);
    for (const CpuIsa isa : SupportedCpuIsas()) {
      const Context context(Pool(), isa);
      const Quantized ours = Quantize(context, source.rows, GlobalScale(1), Nvfp4Rule::kAmaxTo6);
      EXPECT_EQ(ours.block_scales, (std::vector<uint8_t>{0, 1, 1}));
      EXPECT_EQ(ours.stats.flushed, 1);
      const Quantized parity =
          Quantize(context, source.rows, GlobalScale(1), Nvfp4Rule::kFlushEarly);
      EXPECT_EQ(parity.block_scales, (std::vector<uint8_t>{0, 0, 1}));
      EXPECT_EQ(parity.stats.flushed, 2);
      EXPECT_EQ(std::vector<uint8_t>(parity.codes.begin(), parity.codes.begin() + 16),
                std::vector<uint8_t>(16, 0));
      EXPECT_EQ(std::memcmp(&ours.codes[16], &parity.codes[16], 8), 0);
    }
  }
  // Where no block is that small the two agree.
  const Source source(DType::kBf16, 9, 352, Gaussian(9 * 352, 0.02f, 5));
  const Context context(Pool());
  ExpectSame(Quantize(context, source.rows, GlobalScale(1e-5f), Nvfp4Rule::kFlushEarly),
             Quantize(context, source.rows, GlobalScale(1e-5f), Nvfp4Rule::kAmaxTo6), "parity");
}

// R75. Rows of falling size; block scale bytes fall to 0x08 and below under the largest headroom.
TEST(QuantizeNvfp4, HeadroomLowersTheScaleBytesByEightPerPowerAndLeavesTheCodes) {
  std::vector<float> x = Gaussian(8 * 160, 1, 41);
  for (int64_t i = 0; i < 8 * 160; ++i) x[static_cast<size_t>(i)] *= std::ldexp(1.0f, -(i / 160));
  const Source source(DType::kF32, 8, 160, x);
  const GlobalScale scale = GlobalScale::FromAmax(AmaxOf(Context(Pool()), source.rows).amax);
  for (const CpuIsa isa : SupportedCpuIsas()) {
    const Context context(Pool(), isa);
    const Quantized base = Quantize(context, source.rows, scale, Nvfp4Rule::kAmaxTo6);
    int64_t compared = 0;
    for (int h = 0; h <= 6; ++h) {
      const GlobalScale larger(std::ldexp(scale.value(), h));
      const Quantized q = Quantize(context, source.rows, larger, Nvfp4Rule::kAmaxTo6);
      for (size_t b = 0; b < q.block_scales.size(); ++b) {
        if (base.block_scales[b] < 8 * h + 8) continue;  // its byte would be below 0x08
        EXPECT_EQ(q.block_scales[b], base.block_scales[b] - 8 * h);
        EXPECT_EQ(std::memcmp(&q.codes[b * 8], &base.codes[b * 8], 8), 0);
        for (int i = 0; i < 16; ++i) {
          EXPECT_EQ(
              DequantizeNvfp4(UnpackE2m1(&q.codes[b * 8], i), q.block_scales[b], larger),
              DequantizeNvfp4(UnpackE2m1(&base.codes[b * 8], i), base.block_scales[b], scale));
        }
        ++compared;
      }
    }
    EXPECT_GT(compared, 7 * 80 / 2);
  }
}

#if HALFBYTE_CAN_LIMIT_MEMORY
TEST(QuantizeNvfp4, TakesNoMoreMemoryThanItsOutput) {  // R99
  constexpr int64_t kSize = 2048;
  const std::vector<float> x(kSize * kSize, 1.5f);
  const int64_t output = kSize * kSize / 2 + kSize * kSize / kNvfp4Block;
  const int64_t limit = output + (int64_t{1} << 20);
  test::ExpectWithin(
      {.private_bytes = limit, .resident_bytes = limit + (int64_t{4} << 20), .threads = 2},
      [&]() -> std::string {
        ThreadPool pool(2);
        const auto quantized = QuantizeNvfp4FromAmax(
            Context(pool), FloatRows::Of(MatrixView<const float>{x.data(), kSize, kSize}),
            Nvfp4Rule::kAmaxTo6);
        return quantized ? "" : quantized.error().message;
      });
}
#endif

TEST(QuantizeNvfp4, RefusesWhatHasNoBlocksOrNoScale) {  // R19
  const Context context(Pool());
  const std::vector<float> x(64, 1);
  uint8_t codes[32];
  uint8_t scales[4];
  FloatRows rows = FloatRows::Of(MatrixView<const float>{x.data(), 4, 12});
  const auto odd =
      QuantizeNvfp4(context, rows, GlobalScale(1), Nvfp4Rule::kAmaxTo6, {codes, scales});
  ASSERT_FALSE(odd.has_value());
  EXPECT_NE(odd.error().message.find("multiple of 16"), std::string::npos);
  EXPECT_FALSE(QuantizeNvfp4FromAmax(context, rows, Nvfp4Rule::kAmaxTo6).has_value());
  std::vector<GlobalScale> row_scales(4, GlobalScale(1));
  EXPECT_FALSE(
      QuantizeNvfp4PerRow(context, rows, Nvfp4Rule::kAmaxTo6, {codes, scales}, row_scales.data())
          .has_value());

  rows = FloatRows::Of(MatrixView<const float>{x.data(), 4, 16});
  for (const float bad : {0.0f, -1.0f, kInf, kNan}) {
    EXPECT_FALSE(
        QuantizeNvfp4(context, rows, GlobalScale(bad), Nvfp4Rule::kAmaxTo6, {codes, scales})
            .has_value());
  }
  const TensorView integers{DType::kI32, {4, 16}, std::as_bytes(std::span(x))};
  const auto tensor = FloatRows::Of(integers, "model.w1.weight");
  ASSERT_FALSE(tensor.has_value());
  EXPECT_NE(tensor.error().message.find("model.w1.weight"), std::string::npos);
  EXPECT_FALSE(FloatRows::Of(TensorView{DType::kF32, {}, {}}, "s").has_value());
}

TEST(QuantizeNvfp4, ATensorOfAnyRankIsRowsOfItsLastDimension) {
  const std::vector<float> x = Gaussian(3 * 5 * 32, 1, 2);
  const auto rows = FloatRows::Of({DType::kF32, {3, 5, 32}, std::as_bytes(std::span(x))}, "x");
  ASSERT_TRUE(rows.has_value());
  EXPECT_EQ(rows->rows, 15);
  EXPECT_EQ(rows->k, 32);
}

// R15, R22-like: what is decoded is (code * block scale) * global scale, in every variant.
TEST(DequantizeNvfp4, EveryVariantGivesTheProductRoundedOnce) {
  for (const auto& [rows, k] : {std::pair<int64_t, int64_t>{1, 16}, {3, 272}, {9, 1040}}) {
    const Source source(DType::kF32, rows, k, Wild(rows * k, 31));
    Nvfp4Matrix matrix(rows, k, GlobalScale(0.0037f));
    const auto stats = QuantizeNvfp4(Context(Pool()), source.rows, matrix.view().global_scale,
                                     Nvfp4Rule::kAmaxTo6, Nvfp4Output::Of(matrix));
    ASSERT_TRUE(stats.has_value());
    for (const CpuIsa isa : SupportedCpuIsas()) {
      const Context context(Pool(), isa);
      std::vector<float> full(static_cast<size_t>(rows * k) + 1, -7.0f);
      std::vector<Bf16> half(static_cast<size_t>(rows * k) + 1, Bf16{0x1234});
      DequantizeNvfp4(context, matrix.view(), full.data());
      DequantizeNvfp4(context, matrix.view(), half.data());
      EXPECT_EQ(full.back(), -7.0f);
      EXPECT_EQ(half.back().bits, 0x1234);
      int64_t nonzero = 0;
      for (int64_t i = 0; i < rows * k; ++i) {
        const float expected = matrix.view().at(i / k, i % k);
        nonzero += expected != 0;
        ASSERT_EQ(std::bit_cast<uint32_t>(full[static_cast<size_t>(i)]),
                  std::bit_cast<uint32_t>(expected))
            << CpuIsaName(isa) << " " << i;
        ASSERT_EQ(half[static_cast<size_t>(i)], ToBf16(expected)) << CpuIsaName(isa) << " " << i;
      }
      EXPECT_GT(nonzero, rows * k / 4);  // not nothing compared with nothing (QNT-04)
    }
  }
}

TEST(DequantizeNvfp4, EveryCodeUnderEveryScaleByte) {  // R106
  Nvfp4Matrix matrix(0x7f, 16, GlobalScale(0.75f));
  for (int64_t r = 0; r < 0x7f; ++r) {
    for (int i = 0; i < 8; ++i) {
      matrix.codes()[r * 8 + i] =
          PackE2m1(static_cast<uint8_t>(2 * i), static_cast<uint8_t>(2 * i + 1));
    }
    matrix.block_scales()[r] = static_cast<uint8_t>(r);
  }
  for (const CpuIsa isa : SupportedCpuIsas()) {
    std::vector<float> out(0x7f * 16);
    DequantizeNvfp4(Context(Pool(), isa), matrix.view(), out.data());
    for (int r = 0; r < 0x7f; ++r) {
      for (int c = 0; c < 16; ++c) {
        EXPECT_EQ(
            out[static_cast<size_t>(r * 16 + c)],
            E2m1ToFloat(static_cast<uint8_t>(c)) * E4m3ToFloat(static_cast<uint8_t>(r)) * 0.75f);
      }
    }
  }
}

}  // namespace
}  // namespace halfbyte
