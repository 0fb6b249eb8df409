// The block rules: NVFP4, 4-over-6, MXFP4 and what leads from one to another.
#include "numerics/nvfp4_block.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "numerics/block_scale.h"
#include "numerics/error_stats.h"
#include "numerics/fp8_block.h"
#include "numerics/mxfp4_block.h"

namespace halfbyte {
namespace {

using Values = std::array<float, kNvfp4Block>;
using Codes = std::array<uint8_t, kNvfp4Block>;

Codes CodesOf(const Nvfp4Block& block) {
  Codes codes;
  for (int i = 0; i < kNvfp4Block; ++i) codes[static_cast<size_t>(i)] = UnpackE2m1(block.codes, i);
  return codes;
}

Codes Canonical(Codes codes) {
  for (uint8_t& code : codes) code = code == 8 ? 0 : code;
  return codes;
}

Values Ramp(float factor) {
  Values x = {0, .1f, -.1f, .25f, -.25f, .5f, .75f, 1, 1.5f, 2, 2.5f, 3, -3.5f, 4, 5, 6};
  for (float& value : x) value *= factor;
  return x;
}

Values OnePeak(float peak) { return {peak}; }

// R20: nvfp4.md §8.
TEST(Nvfp4Block, ReproducesTheTestVectorsOfTheSpecification) {
  struct Vector {
    float factor;
    float amax;
    uint8_t scale;
    Codes codes;
  };
  const Vector vectors[] = {
      {1, 6, 0x7e, {0, 0, 8, 0, 8, 1, 2, 2, 3, 4, 4, 5, 14, 6, 6, 7}},
      {1, 100, 0x5d, {0, 0, 8, 1, 9, 1, 2, 2, 3, 4, 5, 5, 14, 6, 7, 7}},
      {1e-4f, 100, 0x01, {0, 0, 8, 1, 9, 1, 2, 3, 4, 5, 5, 6, 14, 7, 7, 7}},
      {2e-5f, 100, 0x00, {}},
      {0, 1, 0x00, {}},
  };
  for (const Vector& v : vectors) {
    const Values x = Ramp(v.factor);
    const Nvfp4Block block = QuantizeNvfp4Block(x.data(), GlobalScale::FromAmax(v.amax));
    EXPECT_EQ(block.scale, v.scale) << v.factor;
    EXPECT_EQ(CodesOf(block), v.codes) << v.factor;
  }
  EXPECT_EQ(GlobalScale::FromAmax(6).value(), 0.00223214296f);
  EXPECT_EQ(GlobalScale::FromAmax(100).value(), 0.0372023806f);
}

// R8, R9: the boundary between flushed and kept, in default mode.
TEST(Nvfp4Block, ABlockVanishesOnlyIfItsScaleByteRoundsToZero) {
  const GlobalScale one(1);
  const float tie = 6 * 0x1p-10f;
  EXPECT_EQ(QuantizeNvfp4Block(OnePeak(tie).data(), one).scale, 0);
  EXPECT_EQ(QuantizeNvfp4Block(OnePeak(std::nextafter(tie, 1.0f)).data(), one).scale, 1);
  EXPECT_EQ(QuantizeNvfp4Block(OnePeak(6 * 0x1p-9f).data(), one).scale, 1);
  EXPECT_EQ(CodesOf(QuantizeNvfp4Block(OnePeak(tie).data(), one)), Codes{});
  const Values small = {0.008f, -0.004f};  // moe-layer.md §4: keeps 0.0078
  const Nvfp4Block kept = QuantizeNvfp4Block(small.data(), one);
  EXPECT_EQ(kept.scale, 1);
  EXPECT_EQ(DequantizeNvfp4(UnpackE2m1(kept.codes, 0), kept.scale, one), 0.0078125f);
}

// R3, R6: elements are divided by the rounded scale and saturate.
TEST(Nvfp4Block, SaturatesUnderARoundedDownScale) {
  const float peak = 6 * 17.0f / 16;  // wanted 17/16, a tie, becomes 1
  const Values x = {peak, -peak, 3.1f};
  const Nvfp4Block block = QuantizeNvfp4Block(x.data(), GlobalScale(1));
  EXPECT_EQ(block.scale, 0x38);
  EXPECT_EQ(CodesOf(block)[0], 7);
  EXPECT_EQ(CodesOf(block)[1], 15);
  // 2.55 / (wanted scale) would be 2.4 and round to 2; under the rounded scale it is 3.
  const Values y = {peak, 2.55f};
  EXPECT_EQ(CodesOf(QuantizeNvfp4Block(y.data(), GlobalScale(1)))[1], 5);
}

TEST(Nvfp4Block, CountsWhatItSaw) {
  Nvfp4BlockStats stats;
  const GlobalScale one(1);
  QuantizeNvfp4Block(OnePeak(3000).data(), one, &stats);  // QNT-01
  QuantizeNvfp4Block(OnePeak(2688).data(), one, &stats);  // at the top, not clipped
  QuantizeNvfp4Block(OnePeak(0).data(), one, &stats);
  QuantizeNvfp4Block(OnePeak(0.001f).data(), one, &stats);  // QNT-04
  QuantizeNvfp4Block(OnePeak(NAN).data(), one, &stats);
  QuantizeNvfp4Block(OnePeak(-INFINITY).data(), one, &stats);
  EXPECT_EQ(stats.blocks, 6);
  EXPECT_EQ(stats.at_max, 3);
  EXPECT_EQ(stats.clipped, 2);
  EXPECT_EQ(stats.zero, 2);
  EXPECT_EQ(stats.flushed, 1);
  EXPECT_EQ(stats.non_finite, 2);
  EXPECT_EQ(stats.amax, 3000);
}

TEST(Nvfp4Block, NoInputAndNoGlobalScaleGiveAScaleByteOfNan) {  // R7, R18
  const float scales[] = {0,     0x1p-149f, 0x1p-130f, 0x1p-126f, 1,
                          1e30f, 0x1p127f,  INFINITY,  NAN,       -1};
  const float peaks[] = {0, 0x1p-149f, 1e-38f, 1, 3e38f, INFINITY, NAN, -0.0f, -INFINITY};
  for (const float scale : scales) {
    for (const float peak : peaks) {
      for (const auto quantize : {QuantizeNvfp4Block, QuantizeNvfp4Block4Over6}) {
        const Nvfp4Block block = quantize(OnePeak(peak).data(), GlobalScale(scale), nullptr);
        EXPECT_LE(block.scale, 0x7e) << scale << " " << peak;
        if (block.scale == 0) {
          EXPECT_EQ(CodesOf(block), Codes{}) << scale << " " << peak;
        }
      }
    }
  }
}

TEST(GlobalScale, IsFinitePositiveAndPreciseForEveryFiniteAmax) {  // R16
  for (const float amax : {0.0f, 0x1p-149f, 1e-38f, 1e-35f, 1e-30f, 1.0f, 3.4e38f}) {
    const GlobalScale scale = GlobalScale::FromAmax(amax);
    EXPECT_TRUE(scale.IsUsable()) << amax;
    EXPECT_TRUE(std::isfinite(1 / scale.value())) << amax;
    if (amax < 1e-37f) continue;  // the block scale takes over; fewer bits below that
    const Nvfp4Block block = QuantizeNvfp4Block(OnePeak(amax).data(), scale);
    const float back = DequantizeNvfp4(UnpackE2m1(block.codes, 0), block.scale, scale);
    EXPECT_NEAR(back / amax, 1, 1.0 / 16) << amax;
  }
  EXPECT_FALSE(GlobalScale::FromAmax(INFINITY).IsUsable());
  EXPECT_FALSE(GlobalScale::FromAmax(NAN).IsUsable());
  EXPECT_FALSE(GlobalScale(-1).IsUsable());
  EXPECT_EQ(GlobalScale::FromAmax(0).value(), 1);
}

std::vector<float> Gaussian(size_t count) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(random);
  return x;
}

std::vector<float> StudentT4(size_t count) {
  std::mt19937 random(5);
  std::student_t_distribution<double> student(4);
  std::vector<float> x(count);
  for (float& value : x) value = static_cast<float>(student(random));
  return x;
}

float AmaxOf(const std::vector<float>& x) {
  return BlockAmax(x.data(), static_cast<int>(x.size()));
}

struct Quality {
  double sqnr_db;
  double clipped;  // fraction of the blocks
};

Quality Measure(const std::vector<float>& x, GlobalScale scale,
                const std::function<void(const float*, Nvfp4Block*)>& recode = {}) {
  ErrorStats error;
  Nvfp4BlockStats stats;
  for (size_t b = 0; b < x.size(); b += kNvfp4Block) {
    Nvfp4Block block = QuantizeNvfp4Block(x.data() + b, scale, &stats);
    if (recode) recode(x.data() + b, &block);
    Values back;
    DequantizeNvfp4Block(block, scale, back.data());
    for (size_t i = 0; i < back.size(); ++i) {
      error.Add(static_cast<int64_t>(b + i), back[i], x[b + i]);
    }
  }
  return {error.sqnr_db(), static_cast<double>(stats.clipped) / static_cast<double>(stats.blocks)};
}

// moe-layer.md §10. The gates are useless if rounding through half steps passes them.
TEST(Nvfp4Block, SignalToNoisePassesTheGatesAndHalfStepsDoNot) {
  const auto half_steps = [](GlobalScale scale) {
    return [scale](const float* x, Nvfp4Block* block) {
      if (block->scale == 0) return;
      const float step = E4m3ToFloat(block->scale) * scale.value();
      for (int i = 0; i < kNvfp4Block; i += 2) {
        uint8_t codes[2];
        for (int j = 0; j < 2; ++j) {
          const float halves = std::nearbyint(2 * x[i + j] / step) / 2;
          const float m = std::min(std::abs(halves), 6.0f);
          // 2.5 -> 2, 3.5 -> 3, 5 -> 4: the table of the predecessor.
          const float down = m == 2.5f ? 2 : m == 3.5f ? 3 : m == 5 ? 4 : m;
          codes[j] = E2m1FromFloat(std::copysign(down, halves));
        }
        block->codes[i / 2] = PackE2m1(codes[0], codes[1]);
      }
    };
  };
  const std::vector<float> gaussian = Gaussian(1 << 20);
  const GlobalScale gaussian_scale = GlobalScale::FromAmax(AmaxOf(gaussian));
  EXPECT_GE(Measure(gaussian, gaussian_scale).sqnr_db, 20.3);
  EXPECT_LT(Measure(gaussian, gaussian_scale, half_steps(gaussian_scale)).sqnr_db, 20.3);
  const std::vector<float> student = StudentT4(1 << 20);
  const GlobalScale student_scale = GlobalScale::FromAmax(AmaxOf(student));
  EXPECT_GE(Measure(student, student_scale).sqnr_db, 20.6);
  EXPECT_LT(Measure(student, student_scale, half_steps(student_scale)).sqnr_db, 20.6);
}

TEST(Nvfp4Block, HeadroomCostsNothingAndTooSmallAScaleIsCounted) {
  const std::vector<float> x = Gaussian(1 << 18);
  const float exact = GlobalScale::FromAmax(AmaxOf(x)).value();
  const double base = Measure(x, GlobalScale(exact)).sqnr_db;
  for (const float factor : {2.0f, 16.0f, 256.0f}) {
    EXPECT_NEAR(Measure(x, GlobalScale(exact * factor)).sqnr_db, base, 0.05);
  }
  EXPECT_EQ(Measure(x, GlobalScale(exact)).clipped, 0);
  EXPECT_GT(Measure(x, GlobalScale(exact * 0.5f)).clipped, 0.01);
  EXPECT_GT(Measure(x, GlobalScale(exact * 0.25f)).clipped, 0.5);
  EXPECT_GT(Measure(x, GlobalScale(exact / 10.6f)).clipped, 0.99);  // R70
  EXPECT_LT(Measure(x, GlobalScale(exact / 10.6f)).sqnr_db, 6);
}

TEST(Nvfp4Block, FourOverSixIsNeverWorse) {
  const std::vector<float> x = Gaussian(1 << 16);
  const GlobalScale scale = GlobalScale::FromAmax4Over6(AmaxOf(x));
  int fours = 0;
  for (size_t b = 0; b < x.size(); b += kNvfp4Block) {
    const Nvfp4Block six = QuantizeNvfp4Block(x.data() + b, scale);
    const Nvfp4Block best = QuantizeNvfp4Block4Over6(x.data() + b, scale);
    ASSERT_LE(SquaredError(x.data() + b, best, scale), SquaredError(x.data() + b, six, scale));
    fours += best.scale != six.scale;
  }
  EXPECT_GT(fours, 0);
  EXPECT_LT(fours, (1 << 16) / kNvfp4Block);
  // Both scales are exact for a block of E2M1 numbers up to 4 under the second: a tie keeps 6.
  const Values tie = {6, 3};
  EXPECT_EQ(QuantizeNvfp4Block4Over6(tie.data(), GlobalScale(1)).scale, 0x38);
  const Values fives = {4, 3.34f, -2.66f};  // 6, 5, 4 for 6; 4, 3.34, 2.66 for 4
  EXPECT_EQ(QuantizeNvfp4Block4Over6(fives.data(), GlobalScale(1)).scale, 0x38);
}

// R75, as long as bytes stay >= 0x08 and nothing was clipped.
RC_GTEST_PROP(Nvfp4Block, PowersOfTwoInTheGlobalScaleMoveIntoTheBlockScale, ()) {
  const auto integers =
      *rc::gen::container<std::array<int, kNvfp4Block>>(rc::gen::inRange(-4096, 4097));
  Values x;
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(integers[i]);
  const GlobalScale base = GlobalScale::FromAmax(5000);
  const Nvfp4Block block = QuantizeNvfp4Block(x.data(), base);
  for (int h = 1; h <= 6; ++h) {
    if (block.scale < 0x08 + 8 * h) break;
    const GlobalScale wider(std::ldexp(base.value(), h));
    const Nvfp4Block moved = QuantizeNvfp4Block(x.data(), wider);
    RC_ASSERT(CodesOf(moved) == CodesOf(block));
    RC_ASSERT(moved.scale == block.scale - 8 * h);
    for (int i = 0; i < kNvfp4Block; ++i) {
      const uint8_t code = UnpackE2m1(block.codes, i);
      RC_ASSERT(DequantizeNvfp4(code, moved.scale, wider) ==
                DequantizeNvfp4(code, block.scale, base));
    }
  }
}

// R12: what was decoded encodes to the same bytes, if a code is +-6 and the scale has all its bits.
RC_GTEST_PROP(Nvfp4Block, DecodedBlocksEncodeToThemselves, ()) {
  Nvfp4Block block;
  block.scale = *rc::gen::inRange<uint8_t>(0x08, 0x7f);
  for (uint8_t& pair : block.codes) pair = *rc::gen::arbitrary<uint8_t>();
  block.codes[*rc::gen::inRange(0, 8)] |= 0x07;
  const GlobalScale scale(std::ldexp(*rc::gen::inRange(1, 1 << 20), *rc::gen::inRange(-40, 10)));
  Values x;
  DequantizeNvfp4Block(block, scale, x.data());
  const Nvfp4Block again = QuantizeNvfp4Block(x.data(), scale);
  RC_ASSERT(again.scale == block.scale);
  RC_ASSERT(Canonical(CodesOf(again)) == Canonical(CodesOf(block)));
}

// The error of an element is at most half the widest step (2) of the block that holds it, or its
// distance to 6 where the scale was rounded down (by 1/17 at most).
RC_GTEST_PROP(Nvfp4Block, NoElementIsFurtherOffThanTheFormatAllows, ()) {
  const auto integers =
      *rc::gen::container<std::array<int, kNvfp4Block>>(rc::gen::inRange(-100000, 100001));
  Values x;
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(integers[i]);
  const GlobalScale scale = GlobalScale::FromAmax(100000);
  const Nvfp4Block block = QuantizeNvfp4Block(x.data(), scale);
  const float step = E4m3ToFloat(block.scale) * scale.value();
  if (block.scale < 0x08) return;
  for (int i = 0; i < kNvfp4Block; ++i) {
    const float back = DequantizeNvfp4(UnpackE2m1(block.codes, i), block.scale, scale);
    RC_ASSERT(std::abs(back - x[static_cast<size_t>(i)]) <= step * 1.0001f);
  }
}

TEST(GlobalScale, GemmAlphaIsTheProductOfBothMultipliers) {
  const auto alpha = GemmAlpha(GlobalScale::FromEncode(EncodeScale(1344)),
                               GlobalScale::FromEncode(EncodeScale(3584)));
  EXPECT_NEAR(alpha / 2.07602572e-07, 1, 1e-6);
}

TEST(Mxfp4Block, CodesSurviveTheRoundTrip) {
  std::mt19937 random(8);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    Mxfp4Block block;
    block.scale = static_cast<uint8_t>(1 + random() % 254);
    for (uint8_t& pair : block.codes) pair = static_cast<uint8_t>(random());
    block.codes[0] = static_cast<uint8_t>(block.codes[0] | 7);  // a six fixes the scale
    float x[kMxfp4Block];
    for (int i = 0; i < kMxfp4Block; ++i) {
      x[i] = DequantizeMxfp4(UnpackE2m1(block.codes, i), block.scale);
    }
    if (std::isinf(BlockAmax(x, kMxfp4Block))) continue;
    const Mxfp4Block again = QuantizeMxfp4Block(x);
    ASSERT_EQ(again.scale, block.scale);
    for (int i = 0; i < kMxfp4Block; ++i) {
      ASSERT_EQ(DequantizeMxfp4(UnpackE2m1(again.codes, i), again.scale), x[i]);
    }
  }
}

TEST(Mxfp4ToNvfp4, EveryPairOfScalesWithinSeventeenBinadesIsExact) {
  for (int largest = 0; largest < 0xff; ++largest) {
    const GlobalScale global = LosslessGlobalScale(static_cast<uint8_t>(largest));
    EXPECT_TRUE(global.IsUsable());
    for (int scale = 0; scale <= largest; ++scale) {
      const uint8_t byte =
          LosslessBlockScale(static_cast<uint8_t>(scale), static_cast<uint8_t>(largest));
      ASSERT_EQ(byte != 0, largest - scale <= kLosslessBinades);
      if (byte == 0) continue;
      for (int code = 0; code < 16; ++code) {
        const auto c = static_cast<uint8_t>(code);
        ASSERT_EQ(std::bit_cast<uint32_t>(DequantizeNvfp4(c, byte, global)),
                  std::bit_cast<uint32_t>(DequantizeMxfp4(c, static_cast<uint8_t>(scale))))
            << largest << " " << scale << " " << code;
      }
    }
  }
}

TEST(Fp8Tile, EveryCodeIsExactUpToFourteenBinadesBelowTheLargest) {
  for (int below = 0; below <= 20; ++below) {
    const uint8_t largest = 140;
    const auto scale = static_cast<uint8_t>(largest - below);
    int inexact = 0;
    for (int code = 0; code < 16; ++code) {
      const float value = DequantizeMxfp4(static_cast<uint8_t>(code), scale);
      const uint8_t tile = Fp8TileScale(largest);
      inexact += Fp8Decode(Fp8Encode(value, tile), tile) != value;
    }
    EXPECT_EQ(inexact == 0, below <= kFp8TileBinades) << below;
  }
}

TEST(RescaleBlockScale, EveryByteByEveryRatioIsTheNearestByte) {
  std::mt19937 random(12);
  for (int byte = 0; byte <= 0x7e; ++byte) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      const float ratio = repeat < 20 ? std::ldexp(1.0f, 3 - repeat)
                                      : std::ldexp(static_cast<float>(random()), -34);
      const auto bits = static_cast<uint8_t>(byte);
      const RescaledBlockScale rescaled = RescaleBlockScale(bits, ratio);
      const double wanted = double{E4m3ToFloat(bits)} * double{ratio};
      double best = std::numeric_limits<double>::infinity();
      for (int other = 0; other <= 0x7e; ++other) {
        best = std::min(best, std::abs(double{E4m3ToFloat(static_cast<uint8_t>(other))} - wanted));
      }
      const double value = double{E4m3ToFloat(rescaled.bits)};
      ASSERT_EQ(std::abs(value - wanted), best) << byte << " " << ratio;
      ASSERT_EQ(rescaled.exact, value == wanted);
      ASSERT_EQ(rescaled.lost, byte != 0 && rescaled.bits == 0);
    }
  }
}

TEST(ErrorStats, NamesTheWorstElementAndCountsNanAsInfinitelyWrong) {
  ErrorStats stats;
  stats.Add(3, 1.5f, 1.0f);
  stats.Add(4, 2.0f, 2.0f);
  ErrorStats other;
  other.Add(9, -1.0f, 1.0f);
  stats.Merge(other);
  EXPECT_EQ(stats.count, 3);
  EXPECT_EQ(stats.worst_index, 9);
  EXPECT_EQ(stats.max_abs_error, 2);
  EXPECT_EQ(stats.noise, 4.25);
  EXPECT_EQ(stats.signal, 6);
  EXPECT_FALSE(stats.exact());
  stats.Add(11, NAN, 1.0f);
  EXPECT_EQ(stats.worst_index, 11);
  EXPECT_EQ(stats.sqnr_db(), -std::numeric_limits<double>::infinity());
  ErrorStats exact;
  exact.Add(0, INFINITY, INFINITY);
  exact.Add(1, NAN, NAN);
  EXPECT_TRUE(exact.exact());
}

}  // namespace
}  // namespace halfbyte
