#include "kernels/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

constexpr int64_t kRows = 37, kColumns = 2011;  // more than one piece of work

TEST(Elementwise, RoundRowsGivesTheNearestBf16OrNothing) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const std::vector<float> x = RandomNormal(kRows * kColumns, 1, 1e3);
    std::vector<float> y = x;
    RoundRows(Context(pool), Rounding::kNone, {y.data(), kRows, kColumns});
    EXPECT_TRUE(SameBits(y, x));
    RoundRows(Context(pool), Rounding::kBf16, {y.data(), kRows, kColumns});
    EXPECT_TRUE(AllBf16(y));
    EXPECT_TRUE(Near(y, std::vector<double>(x.begin(), x.end()),
                     [&](size_t i) { return kBf16Unit * std::abs(double{x[i]}); }));
  }
}

TEST(Elementwise, ScaleRowsMultipliesAndRoundsOnce) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const std::vector<float> x = RandomNormal(kRows * kColumns, 2);
    for (const Rounding rounding : {Rounding::kNone, Rounding::kBf16}) {
      std::vector<float> y = x;
      ScaleRows(Context(pool), 0.3f, rounding, {y.data(), kRows, kColumns});
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], Round(rounding, 0.3f * x[i])) << i;
    }
  }
}

TEST(Elementwise, AddRowsAddsAndRoundsOnce) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const std::vector<float> a = RandomNormal(kRows * kColumns, 3);
    const std::vector<float> b = RandomNormal(kRows * kColumns, 4, 100);
    for (const Rounding rounding : {Rounding::kNone, Rounding::kBf16}) {
      std::vector<float> y = a;
      AddRows(Context(pool), {b.data(), kRows, kColumns}, rounding, {y.data(), kRows, kColumns});
      for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(y[i], Round(rounding, a[i] + b[i])) << i;
    }
  }
}

TEST(Elementwise, EmptyRowsAreValid) {
  ThreadPool pool(2);
  RoundRows(Context(pool), Rounding::kBf16, {nullptr, 0, 5});
  ScaleRows(Context(pool), 2, Rounding::kBf16, {nullptr, 0, 5});
  AddRows(Context(pool), {nullptr, 0, 5}, Rounding::kBf16, {nullptr, 0, 5});
}

TEST(EmbedTokens, PutsTheRowOfEachIdInEveryCopy) {
  const int64_t vocabulary = 23, dim = 31, copies = 4;
  std::vector<Bf16> bytes(static_cast<size_t>(vocabulary * dim));
  const std::vector<float> table = RandomNormal(vocabulary * dim, 5, 1, Rounding::kBf16);
  for (size_t i = 0; i < table.size(); ++i) bytes[i] = ToBf16(table[i]);
  const WeightMatrix weight{.format = WeightFormat::kBf16,
                            .rows = vocabulary,
                            .columns = dim,
                            .data = reinterpret_cast<const std::byte*>(bytes.data())};
  std::vector<int32_t> ids{0, 22, 7, 7, 1};
  for (int32_t i = 0; i < 2000; ++i) ids.push_back(i * 5 % 23);
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::vector<float> out(ids.size() * static_cast<size_t>(dim * copies), NAN);
    EmbedTokens(Context(pool), weight, ids, copies, Rounding::kNone,
                {out.data(), std::ssize(ids), dim * copies});
    for (size_t t = 0; t < ids.size(); ++t) {
      const auto row =
          std::span(table).subspan(static_cast<size_t>(ids[t] * dim), static_cast<size_t>(dim));
      for (size_t copy = 0; copy < 4; ++copy) {
        ASSERT_TRUE(SameBits(std::span(out).subspan((t * 4 + copy) * 31, 31), row)) << t;
      }
    }
  }
}

TEST(EmbedTokens, RoundsWhatTheTableHoldsInFullPrecision) {
  ThreadPool pool(1);
  const std::vector<float> table = RandomNormal(3 * 8, 6);
  const WeightMatrix weight{.format = WeightFormat::kF32,
                            .rows = 3,
                            .columns = 8,
                            .data = reinterpret_cast<const std::byte*>(table.data())};
  const std::vector<int32_t> ids{2};
  std::vector<float> out(8);
  EmbedTokens(Context(pool), weight, ids, 1, Rounding::kBf16, {out.data(), 1, 8});
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(out[i], RoundToBf16(table[16 + i]));
}

}  // namespace
}  // namespace halfbyte
