#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

constexpr Yarn kYarn{.factor = 16, .original_max_position = 65536, .beta_fast = 32, .beta_slow = 1};

void ExpectRelative(double value, double expected, double tolerance) {
  EXPECT_LE(std::abs(value - expected), tolerance * expected) << value << " for " << expected;
}

TEST(Rope, CompressedLayersHaveTheCheckValuesOfTheSpecification) {  // MDL-02, §2.2
  const std::vector<double> f = RopeFrequencies(160000, 64, kYarn);
  ASSERT_EQ(f.size(), 32u);
  ExpectRelative(f[0], 1, 1e-15);
  ExpectRelative(f[15], 3.63553858e-3, 1e-8);
  ExpectRelative(f[16], 2.265625e-3, 1e-12);
  ExpectRelative(f[24], 1.953125e-5, 1e-12);
  ExpectRelative(f[25], 5.37231267e-6, 1e-8);
  ExpectRelative(f[31], 5.68052904e-7, 1e-8);
}

TEST(Rope, YarnLeavesPairsUpTo15AloneAndDividesThoseFrom25) {  // low = 15, high = 25
  const std::vector<double> plain = RopeFrequencies(160000, 64, std::nullopt);
  const std::vector<double> blended = RopeFrequencies(160000, 64, kYarn);
  for (size_t i = 0; i < 32; ++i) {
    const double ratio = blended[i] / plain[i];
    const double ramp = std::clamp((static_cast<double>(i) - 15) / 10, 0.0, 1.0);
    EXPECT_NEAR(ratio, 1 - ramp * 15 / 16, 1e-12) << i;
  }
}

TEST(Rope, PlainLayersHavePowersOfTheirOwnBase) {
  const std::vector<double> f = RopeFrequencies(10000, 64, std::nullopt);
  ExpectRelative(f[0], 1, 1e-15);
  ExpectRelative(f[16], 0.01, 1e-12);
  ExpectRelative(f[31], 1.33352143e-4, 1e-8);
  ExpectRelative(RopeFrequencies(160000, 64, std::nullopt)[16], 0.0025, 1e-12);
  EXPECT_EQ(RopeFrequencies(10000, 6, std::nullopt).size(), 3u);
}

TEST(Rope, ARampWithoutWidthIsAStep) {  // both rotation counts fall on the same end
  const Yarn yarn{.factor = 4, .original_max_position = 8, .beta_fast = 32, .beta_slow = 16};
  const std::vector<double> plain = RopeFrequencies(10000, 8, std::nullopt);
  const std::vector<double> f = RopeFrequencies(10000, 8, yarn);
  EXPECT_EQ(f[0], plain[0]);
  for (size_t i = 1; i < 4; ++i) ExpectRelative(f[i], plain[i] / 4, 1e-12);
}

TEST(Rope, AnglesAreAccurateUpToAMillionTokens) {
  const std::vector<int64_t> positions{0, 1, 127, 4096, 65535, 1000003, 1048575};
  for (const std::vector<double>& f :
       {RopeFrequencies(10000, 64, std::nullopt), RopeFrequencies(160000, 64, kYarn)}) {
    RopeAngles angles;
    angles.Set(f, positions);
    ASSERT_EQ(angles.pairs, 32);
    ASSERT_EQ(angles.cos.size(), positions.size() * 32);
    for (size_t t = 0; t < positions.size(); ++t) {
      for (size_t i = 0; i < 32; ++i) {
        const auto angle = static_cast<long double>(positions[t]) * static_cast<long double>(f[i]);
        // Half a unit of fp32 below 1, and the product rounded to double.
        const double bound = 0x1p-25 + static_cast<double>(angle) * 0x1p-52;
        EXPECT_NEAR(angles.cos[t * 32 + i], static_cast<double>(std::cos(angle)), bound);
        EXPECT_NEAR(angles.sin[t * 32 + i], static_cast<double>(std::sin(angle)), bound);
      }
    }
  }
}

TEST(Rope, FrequenciesAreAccurateInLongDouble) {
  const std::vector<double> f = RopeFrequencies(10000, 64, std::nullopt);
  for (size_t i = 0; i < 32; ++i) {
    const long double exact = std::pow(10000.0L, -2.0L * static_cast<long double>(i) / 64);
    // 1e6 tokens at this error stay below 1e-9 rad.
    EXPECT_NEAR(f[i], static_cast<double>(exact), static_cast<double>(exact) * 4e-16) << i;
  }
}

TEST(Rope, SettingAnglesAgainReplacesThem) {
  const std::vector<double> f{1.0, 0.5};
  const std::vector<int64_t> many{3, 4, 5}, one{7};
  RopeAngles angles;
  angles.Set(f, many);
  angles.Set(f, one);
  EXPECT_EQ(angles.cos, (std::vector<float>{static_cast<float>(std::cos(7.0)),
                                            static_cast<float>(std::cos(3.5))}));
  EXPECT_EQ(angles.sin.size(), 2u);
}

struct Batch {
  int64_t heads = 3;
  int64_t head_dim = 20;
  std::vector<int64_t> positions{0, 5, 1048575, 5, 300};
  std::vector<double> frequencies = RopeFrequencies(10000, 8, std::nullopt);
  RopeAngles angles;
  std::vector<float> x = RandomNormal(5 * 3 * 20, 1, 1, Rounding::kBf16);

  Batch() { angles.Set(frequencies, positions); }
  std::vector<float> Apply(bool inverse, Rounding rounding, std::vector<float> values,
                           int threads = 1) const {
    ThreadPool pool(threads);
    ApplyRope(Context(pool), angles, heads, inverse, rounding,
              {values.data(), static_cast<int64_t>(values.size()) / (heads * head_dim),
               heads * head_dim});
    return values;
  }
};

TEST(Rope, RotatesAdjacentPairsOfTheLastDimensionsOfEveryHead) {  // R119
  const Batch batch;
  std::vector<double> expected(batch.x.begin(), batch.x.end());
  std::vector<double> size(expected.size(), 0);
  for (size_t t = 0; t < batch.positions.size(); ++t) {
    for (size_t h = 0; h < 3; ++h) {
      for (size_t i = 0; i < 4; ++i) {
        const double angle = static_cast<double>(batch.positions[t]) *
                             std::pow(10000.0, -2 * static_cast<double>(i) / 8);
        const size_t at = (t * 3 + h) * 20 + 12 + 2 * i;
        const double a = batch.x[at], b = batch.x[at + 1];
        expected[at] = a * std::cos(angle) - b * std::sin(angle);
        expected[at + 1] = a * std::sin(angle) + b * std::cos(angle);
        size[at] = size[at + 1] = std::abs(a) + std::abs(b);
      }
    }
  }
  const std::vector<float> rotated = batch.Apply(false, Rounding::kNone, batch.x);
  // Cosine, product and sum round once each; 1e-9 for the angle at a million tokens. The first
  // twelve dimensions of a head have tolerance 0: they stay as they are.
  EXPECT_TRUE(Near(rotated, expected, [&](size_t i) { return (3 * kF32Unit + 1e-9) * size[i]; }));
}

TEST(Rope, RoundsEachElementOnce) {
  const Batch batch;
  std::vector<float> rounded = batch.Apply(false, Rounding::kNone, batch.x);
  for (float& value : rounded) value = RoundToBf16(value);
  EXPECT_TRUE(SameBits(batch.Apply(false, Rounding::kBf16, batch.x), rounded));
}

TEST(Rope, TheInverseRestores) {  // R119
  const Batch batch;
  const std::vector<float> back =
      batch.Apply(true, Rounding::kNone, batch.Apply(false, Rounding::kNone, batch.x));
  EXPECT_NE(batch.Apply(true, Rounding::kNone, batch.x), batch.x);
  const std::vector<double> expected(batch.x.begin(), batch.x.end());
  EXPECT_TRUE(Near(back, expected, [&](size_t i) {
    return 8 * kF32Unit * (std::abs(expected[i]) + std::abs(expected[i ^ 1]));
  }));
}

TEST(Rope, ScoresDependOnTheDistanceOnly) {  // what the rotation is for
  const std::vector<double> f = RopeFrequencies(160000, 64, kYarn);
  const std::vector<float> q = RandomNormal(64, 3), k = RandomNormal(64, 4);
  const auto score = [&](int64_t query_at, int64_t key_at) {
    ThreadPool pool(1);
    std::vector<float> both = q;
    both.insert(both.end(), k.begin(), k.end());
    RopeAngles angles;
    const std::vector<int64_t> positions{query_at, key_at};
    angles.Set(f, positions);
    ApplyRope(Context(pool), angles, 1, false, Rounding::kNone, {both.data(), 2, 64});
    return std::inner_product(both.begin(), both.begin() + 64, both.begin() + 64, 0.0);
  };
  EXPECT_NEAR(score(1000, 400), score(900600, 900000), 1e-4);
  EXPECT_GT(std::abs(score(1000, 400) - score(1000, 401)), 1e-2);
}

TEST(Rope, ManyTokensOnThreadsEqualOneThread) {
  Batch batch;
  batch.positions.resize(2000);
  for (size_t t = 0; t < 2000; ++t) batch.positions[t] = static_cast<int64_t>(t * 7);
  batch.angles.Set(batch.frequencies, batch.positions);
  batch.x = RandomNormal(2000 * 60, 9);
  EXPECT_TRUE(SameBits(batch.Apply(false, Rounding::kNone, batch.x, 3),
                       batch.Apply(false, Rounding::kNone, batch.x, 1)));
}

}  // namespace
}  // namespace halfbyte
