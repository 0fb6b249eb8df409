#include "kernels/kv_row/kv_row.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

// Formats in double, by their definitions (nvfp4.md §2, §4), not by our code.

// Nearest of the magnitudes of a small float format, ties to the even code; codes ascend.
double RoundToGrid(double x, const std::vector<double>& grid) {
  size_t best = 0;
  for (size_t code = 1; code < grid.size(); ++code) {
    const double gain = std::abs(std::abs(x) - grid[best]) - std::abs(std::abs(x) - grid[code]);
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  return std::copysign(grid[best], x);
}

const std::vector<double>& E4m3Grid() {
  static const std::vector<double> grid = [] {
    std::vector<double> values;
    for (int code = 0; code <= 0x7e; ++code) {
      const int exponent = code >> 3, mantissa = code & 7;
      values.push_back(exponent == 0 ? std::ldexp(mantissa, -9)
                                     : std::ldexp(8 + mantissa, exponent - 10));
    }
    return values;
  }();
  return grid;
}
const std::vector<double> kE2m1Grid{0, 0.5, 1, 1.5, 2, 3, 4, 6};

double Amax(std::span<const double> x) {
  double amax = 0;
  for (const double value : x) amax = std::max(amax, std::abs(value));
  return amax;
}

// §2.3, fp8_roundtrip_64 of one block.
void Fp8Roundtrip(std::span<double> x) {
  const double s = std::exp2(std::ceil(std::log2(std::max(Amax(x), double{1e-4f}) / 448)));
  for (double& v : x) v = RoundToGrid(std::clamp(v / s, -448.0, 448.0), E4m3Grid()) * s;
}

// §2.5, the FP4 round trip of one block of 32.
void Fp4Roundtrip(std::span<double> x) {
  const double s = std::exp2(std::ceil(std::log2(std::max(Amax(x), 6 * 0x1p-126) / 6)));
  for (double& v : x) v = RoundToGrid(std::clamp(v / s, -6.0, 6.0), kE2m1Grid) * s;
}

std::vector<float> StoreAndLoad(const KvRow& layout, const std::vector<float>& row) {
  std::vector<std::byte> stored(static_cast<size_t>(layout.bytes()), std::byte{0xff});
  EncodeKvRow(layout, row.data(), stored.data());
  std::vector<float> loaded(row.size(), NAN);
  DecodeKvRow(layout, stored.data(), loaded.data());
  return loaded;
}

void ExpectFp8Definition(const KvRow& layout, const std::vector<float>& row) {
  std::vector<double> expected(row.begin(), row.end());
  for (int64_t begin = 0; begin < layout.fp8_dim(); begin += 64) {
    const int64_t count = std::min<int64_t>(64, layout.fp8_dim() - begin);
    Fp8Roundtrip(
        std::span(expected).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
  }
  for (size_t i = static_cast<size_t>(layout.fp8_dim()); i < row.size(); ++i) {
    expected[i] = std::abs(row[i]) < 0x1p-52f ? 0 : RoundToBf16(row[i]);
  }
  const std::vector<float> loaded = StoreAndLoad(layout, row);
  for (size_t i = 0; i < row.size(); ++i) {
    ASSERT_EQ(double{loaded[i]}, expected[i]) << "element " << i << ", stored from " << row[i];
  }
}

constexpr KvRow kReal{.format = KvFormat::kFp8, .head_dim = 512, .rope_dim = 64};

TEST(KvRow, HasTheSizesOfTheSpecification) {  // R133: §3.1
  EXPECT_EQ(kReal.bytes(), 584);
  EXPECT_EQ(kReal.scale_count(), 7);
  EXPECT_EQ((KvRow{KvFormat::kFp8, 128, 32}.bytes()), 168);  // 96 + 64 + 2, rounded up to 8
  EXPECT_EQ((KvRow{KvFormat::kFp8, 128, 32}.scale_count()), 2);
  EXPECT_EQ((KvRow{KvFormat::kF32, 512, 64}.bytes()), 2048);
  EXPECT_EQ((IndexRow{IndexFormat::kMxfp4, 128}.bytes()), 68);
  EXPECT_EQ((IndexRow{IndexFormat::kMxfp4, 16}.bytes()), 12);  // 8 + 1, rounded up to 4
  EXPECT_EQ((IndexRow{IndexFormat::kF32, 128}.bytes()), 512);
}

TEST(KvRow, Fp8IsTheModelsOwnRounding) {  // R122
  for (const KvRow& layout : {kReal, KvRow{KvFormat::kFp8, 128, 32}, KvRow{KvFormat::kFp8, 40, 8},
                              KvRow{KvFormat::kFp8, 64, 64}}) {
    for (uint32_t seed = 1; seed < 12; ++seed) {
      std::vector<float> row = RandomNormal(layout.head_dim, seed, 1, Rounding::kBf16);
      // Blocks of very different size: a scale taken from the wrong block shows.
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] *= std::ldexp(1.0f, static_cast<int>(i / 64 * 5 + seed) % 23 - 11);
      }
      ExpectFp8Definition(layout, row);
    }
  }
}

TEST(KvRow, Fp8HoldsAtTheEdgesOfItsRange) {
  // Amax below, at and above 1e-4; at and beside 448 * 2^k, where the scale steps.
  for (const float amax :
       {0.0f, 1e-30f, 9.9e-5f, 1e-4f, 1.1e-4f, 1.0f, 447.9f, 448.0f, std::nextafter(448.0f, 500.0f),
        std::nextafter(896.0f, 0.0f), 896.0f, 3e4f, 1e30f, 3e38f}) {
    std::vector<float> row(512);
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = amax * (static_cast<float>(static_cast<int>(i * 37 % 129) - 64) / 64);
    }
    ExpectFp8Definition(kReal, row);
  }
  std::vector<float> mixed(512);  // zeros, and one block with a single tiny value
  mixed[70] = 1e-7f;
  mixed[500] = -0.0f;
  ExpectFp8Definition(kReal, mixed);
}

TEST(KvRow, PairsAreTheDecodedNumbers) {
  const std::vector<CpuIsa> isas = SupportedCpuIsas();
  if (std::ranges::find(isas, CpuIsa::kAvx512) == isas.end()) GTEST_SKIP() << "no AVX-512";
  for (const KvRow& layout : {kReal, KvRow{KvFormat::kFp8, 128, 32}, KvRow{KvFormat::kFp8, 64, 64},
                              KvRow{KvFormat::kFp8, 32, 0}}) {
    // Every byte of E4M3 at scales from the smallest to the largest, and any bf16 numbers.
    std::vector<std::byte> bytes(static_cast<size_t>(64 * layout.bytes()));
    std::vector<const std::byte*> stored;
    for (int64_t i = 0; i < 64; ++i) {
      std::byte* row = bytes.data() + i * layout.bytes();
      for (int64_t k = 0; k < layout.bytes(); ++k) {
        row[k] = static_cast<std::byte>(k * 37 + i * 101 + k * i / 3);
      }
      for (int64_t b = 0; b < layout.scale_count(); ++b) {
        row[layout.fp8_dim() + 2 * layout.rope_dim + b] =
            static_cast<std::byte>(105 + i * 149 / 63);
      }
      stored.push_back(row);
    }
    std::vector<uint32_t> words(static_cast<size_t>(64 * layout.head_dim / 2));
    simd_avx512::DecodeKvRowPairs(layout, stored.data(), 64, words.data());
    std::vector<float> row(static_cast<size_t>(layout.head_dim));
    for (size_t i = 0; i < 64; ++i) {
      DecodeKvRow(layout, stored[i], row.data());
      for (size_t k = 0; k < row.size(); ++k) {
        const uint32_t word = words[i * row.size() / 2 + k / 32 * 16 + k % 16];
        const float number = std::bit_cast<float>(k % 32 < 16 ? word & 0xffff0000 : word << 16);
        if (std::isnan(row[k])) {
          ASSERT_TRUE(std::isnan(number)) << "row " << i << ", number " << k;
        } else {
          ASSERT_EQ(number, row[k]) << "row " << i << ", number " << k;
        }
      }
    }
  }
}

TEST(KvRow, StoredBytesFollowTheWrittenLayout) {  // values, rotary part, exponent bytes
  std::vector<float> row(512, 0.0f);
  row[0] = 448;
  row[64] = -1.0f;
  row[447] = 896;
  row[448] = 1.0078125f;  // a bf16 number that E4M3 does not have
  std::vector<std::byte> stored(584, std::byte{0xff});
  EncodeKvRow(kReal, row.data(), stored.data());
  const auto byte = [&](size_t i) { return static_cast<int>(stored[i]); };
  EXPECT_EQ(byte(0), 0x7e);    // 448 at scale 1
  EXPECT_EQ(byte(64), 0xf8);   // -256 at scale 2^-8, the first with 1 / s <= 448
  EXPECT_EQ(byte(447), 0x7e);  // 448 at scale 2
  EXPECT_EQ(byte(448), 0x81);  // 0x3f81, little endian
  EXPECT_EQ(byte(449), 0x3f);
  EXPECT_EQ(byte(576), 127);
  EXPECT_EQ(byte(577), 127 - 8);
  EXPECT_EQ(byte(582), 128);
  EXPECT_EQ(byte(578), 127 - 22);  // all zero: 1e-4 / 448 rounded up to 2^-22
}

TEST(KvRow, TheRotaryPartIsExactInBf16) {
  const std::vector<float> row = RandomNormal(512, 5, 100, Rounding::kBf16);
  const std::vector<float> loaded = StoreAndLoad(kReal, row);
  EXPECT_TRUE(SameBits(std::span(loaded).last(64), std::span(row).last(64)));
  EXPECT_FALSE(SameBits(loaded, row));
}

TEST(KvRow, StoringTwiceChangesNothingMore) {
  const std::vector<float> once = StoreAndLoad(kReal, RandomNormal(512, 6, 3));
  EXPECT_TRUE(SameBits(StoreAndLoad(kReal, once), once));
}

TEST(KvRow, F32IsExact) {
  const KvRow layout{KvFormat::kF32, 48, 16};
  const std::vector<float> row = RandomNormal(48, 7, 1e20);
  EXPECT_TRUE(SameBits(StoreAndLoad(layout, row), row));
}

TEST(KvRow, ANanComesBackAsNan) {
  std::vector<float> row = RandomNormal(512, 8);
  row[3] = NAN;
  row[490] = NAN;
  const std::vector<float> loaded = StoreAndLoad(kReal, row);
  EXPECT_TRUE(std::isnan(loaded[3]) && std::isnan(loaded[490]));
  for (size_t i = 64; i < 490; ++i) EXPECT_FALSE(std::isnan(loaded[i])) << i;
}

// Sylvester's matrix: entry (i, j) is -1 to the number of common bits.
std::vector<double> ReferenceHadamard(std::span<const float> x) {
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) {
      y[i] += __builtin_parityll(i & j) != 0 ? -double{x[j]} : double{x[j]};
    }
    y[i] /= std::sqrt(static_cast<double>(x.size()));
  }
  return y;
}

double Norm(std::span<const float> x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

TEST(Hadamard, EqualsSylvestersMatrix) {
  for (const int64_t dim : {1, 2, 4, 32, 128, 1024}) {
    const std::vector<float> x = RandomNormal(dim, 9);
    std::vector<float> y = x;
    Hadamard(y.data(), dim);
    const double bound = 14 * kF32Unit * Norm(x);
    EXPECT_TRUE(Near(y, ReferenceHadamard(x), [&](size_t) { return bound; })) << dim;
  }
}

TEST(Hadamard, IsItsOwnInverseAndKeepsLengths) {
  const std::vector<float> x = RandomNormal(128, 10);
  std::vector<float> y = x;
  Hadamard(y.data(), 128);
  EXPECT_NEAR(Norm(y), Norm(x), 1e-5);
  Hadamard(y.data(), 128);
  EXPECT_TRUE(Near(y, std::vector<double>(x.begin(), x.end()), [](size_t) { return 4e-6; }));
}

TEST(Hadamard, OnBothSidesLeavesScoresUnchanged) {  // §2.6, the rule
  const std::vector<float> q = RandomNormal(128, 11), k = RandomNormal(128, 12);
  std::vector<float> hq = q, hk = k;
  Hadamard(hq.data(), 128);
  Hadamard(hk.data(), 128);
  const auto dot = [](const std::vector<float>& a, const std::vector<float>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  EXPECT_NEAR(dot(hq, hk), dot(q, k), 1e-4);
  EXPECT_GT(std::abs(dot(hq, k) - dot(q, k)), 0.1);  // on one side only it would be nonsense
}

std::vector<float> StoreAndLoad(const IndexRow& layout, const std::vector<float>& row) {
  std::vector<std::byte> stored(static_cast<size_t>(layout.bytes()), std::byte{0xff});
  EncodeIndexRow(layout, row.data(), stored.data());
  std::vector<float> loaded(row.size(), NAN);
  DecodeIndexRow(layout, stored.data(), loaded.data());
  return loaded;
}

TEST(IndexRow, Mxfp4IsTheModelsOwnRounding) {  // Hadamard, bf16, FP4 round trip
  for (const int64_t dim : {4, 16, 32, 64, 128, 1024}) {
    const IndexRow layout{IndexFormat::kMxfp4, dim};
    for (uint32_t seed = 1; seed < 10; ++seed) {
      // Few large values: blocks of different size even after the transform.
      std::vector<float> row = RandomNormal(dim, seed, 1, Rounding::kBf16);
      row[0] *= 64;
      std::vector<float> transformed = row;
      Hadamard(transformed.data(), dim);
      std::vector<double> expected(row.size());
      for (size_t i = 0; i < row.size(); ++i) expected[i] = RoundToBf16(transformed[i]);
      for (size_t begin = 0; begin < row.size(); begin += 32) {
        Fp4Roundtrip(std::span(expected).subspan(begin, std::min<size_t>(32, row.size() - begin)));
      }
      const std::vector<float> loaded = StoreAndLoad(layout, row);
      for (size_t i = 0; i < row.size(); ++i) {
        ASSERT_EQ(double{loaded[i]}, expected[i]) << "element " << i << " of " << dim;
      }
    }
  }
}

TEST(IndexRow, ZerosStayZeroAndHugeRowsFinite) {
  const IndexRow layout{IndexFormat::kMxfp4, 128};
  for (const float value : StoreAndLoad(layout, std::vector<float>(128))) EXPECT_EQ(value, 0);
  for (const float value : StoreAndLoad(layout, RandomNormal(128, 1, 1e36))) {
    EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(IndexRow, StoredBytesFollowTheWrittenLayout) {  // low nibble first, then exponent bytes
  const IndexRow layout{IndexFormat::kMxfp4, 128};
  std::vector<float> row(128);  // the transform of what is to be stored
  row[0] = 4, row[1] = 2, row[100] = 6, row[101] = -3;
  Hadamard(row.data(), 128);
  std::vector<std::byte> stored(68, std::byte{0xff});
  EncodeIndexRow(layout, row.data(), stored.data());
  EXPECT_EQ(static_cast<int>(stored[0]), 0x46);   // codes of 4 and 2
  EXPECT_EQ(static_cast<int>(stored[50]), 0xd7);  // 6 and -3
  EXPECT_EQ(static_cast<int>(stored[64]), 127);
  EXPECT_EQ(static_cast<int>(stored[67]), 127);
}

TEST(IndexRow, F32IsExactAndLeavesQueriesAlone) {
  const IndexRow layout{IndexFormat::kF32, 24};
  const std::vector<float> row = RandomNormal(24, 3);
  EXPECT_TRUE(SameBits(StoreAndLoad(layout, row), row));
  std::vector<float> query = row;
  RoundIndexQuery(layout, query.data());
  EXPECT_TRUE(SameBits(query, row));
}

TEST(IndexRow, AQueryIsRoundedAsAKeyIsStored) {
  const IndexRow layout{IndexFormat::kMxfp4, 64};
  const std::vector<float> heads = RandomNormal(40 * 5 * 64, 4, 1, Rounding::kBf16);
  std::vector<float> rounded = heads;
  ThreadPool pool(3);
  RoundIndexQueries(Context(pool), layout, {rounded.data(), 40, 5 * 64});
  for (size_t begin = 0; begin < heads.size(); begin += 64) {
    const std::vector<float> head(heads.begin() + static_cast<int64_t>(begin),
                                  heads.begin() + static_cast<int64_t>(begin) + 64);
    ASSERT_TRUE(SameBits(std::span(rounded).subspan(begin, 64), StoreAndLoad(layout, head)));
  }
}

TEST(PagedRows, EveryRowHasItsOwnPlaceInAShuffledTable) {
  const ShuffledPages pages(103, 8, 24, 1);
  std::set<const std::byte*> places;
  for (int64_t i = 0; i < 103; ++i) {
    const std::byte* row = pages.view.row(i);
    EXPECT_EQ((row - pages.pool.data()) % 24, 0);
    EXPECT_EQ((row - pages.pool.data()) / 24 / 8, pages.table[static_cast<size_t>(i / 8)]);
    EXPECT_EQ((row - pages.pool.data()) / 24 % 8, i % 8);
    EXPECT_TRUE(places.insert(row).second);
  }
}

TEST(PagedRows, OffsetsBeyondFourGigabytesDoNotWrap) {  // RTE-03
  const int32_t table[] = {120000};
  const PagedRows rows{nullptr, table, 64, 584};
  EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.row(63)), uintptr_t{(120000 * 64 + 63) * 584ULL});
}

TEST(StoreKvRows, PutsEachTokenAtItsPositionAndNothingElse) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const KvRow layout{KvFormat::kFp8, 128, 32};
    const std::vector<float> rows = RandomNormal(90 * 128, 2, 1, Rounding::kBf16);
    ShuffledPages a(100, 16, layout.bytes(), 3), b(100, 16, layout.bytes(), 4);
    std::vector<WindowSequence> sequences(2);
    static_cast<TokenSpan&>(sequences[0]) = {.first = 0, .count = 20, .position = 13};
    static_cast<TokenSpan&>(sequences[1]) = {.first = 20, .count = 70, .position = 0};
    sequences[0].rows = a.view;
    sequences[1].rows = b.view;
    StoreKvRows(Context(pool), layout, sequences, {rows.data(), 90, 128});
    std::vector<float> loaded(128);
    for (int64_t token = 0; token < 90; ++token) {
      const bool first = token < 20;
      const PagedRows& view = first ? a.view : b.view;
      DecodeKvRow(layout, view.row(first ? token + 13 : token - 20), loaded.data());
      const std::vector<float> row(rows.begin() + token * 128, rows.begin() + (token + 1) * 128);
      EXPECT_TRUE(SameBits(loaded, StoreAndLoad(layout, row))) << token;
    }
    for (const int64_t untouched : {12, 33}) {
      EXPECT_EQ(*a.view.row(untouched), std::byte{0xff});
    }
    EXPECT_EQ(*b.view.row(70), std::byte{0xff});
  }
}

}  // namespace
}  // namespace halfbyte
