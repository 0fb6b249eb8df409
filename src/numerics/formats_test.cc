// Every code, every byte, every rounding boundary of the number formats.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e2m1_rounding.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/fp16.h"
#include "numerics/fp8_block.h"
#include "numerics/mxfp4_block.h"

namespace halfbyte {
namespace {

uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }
float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

// R1: a table scaled by any factor does not compile.
static_assert(kE2m1Magnitudes[1] == 0.5f && kE2m1Magnitudes[7] == 6 && kE2m1Max == 6);
static_assert(E2m1ToFloat(0x1) == 0.5f && E2m1ToFloat(0x7) == 6 && E2m1ToFloat(0xf) == -6);
static_assert(kE2m1Doubled[7] == 12 && kE2m1Doubled[9] == -1);

// The nearest number of a grid by exhaustion: exact distances in double, a tie to the even index.
int NearestIndex(double x, const std::vector<double>& grid) {
  int best = 0;
  for (int i = 1; i < static_cast<int>(grid.size()); ++i) {
    const double now = std::abs(grid[static_cast<size_t>(i)] - x);
    const double before = std::abs(grid[static_cast<size_t>(best)] - x);
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return best;
}

const std::vector<double>& E2m1Grid() {
  static const std::vector<double> grid(kE2m1Magnitudes.begin(), kE2m1Magnitudes.end());
  return grid;
}

TEST(E2m1, EveryCodeDecodesToItsTableEntryAndBack) {  // R1
  for (int code = 0; code < 16; ++code) {
    const float value = E2m1ToFloat(static_cast<uint8_t>(code));
    const float magnitude = kE2m1Magnitudes[static_cast<size_t>(code & 7)];
    EXPECT_EQ(std::abs(value), magnitude);
    EXPECT_EQ(std::signbit(value), code >= 8);
    EXPECT_EQ(E2m1FromFloat(value), code);
    EXPECT_EQ(2 * value, kE2m1Doubled[static_cast<size_t>(code)]);
  }
}

TEST(E2m1, EveryMidpointAndItsNeighboursRoundToTheNearestEvenCode) {  // R2
  const float midpoints[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  for (int i = 0; i < 7; ++i) {
    const float m = midpoints[i];
    const int even = i % 2 == 0 ? i : i + 1;
    for (const int sign : {0, 8}) {
      const float s = sign != 0 ? -1.0f : 1.0f;
      EXPECT_EQ(E2m1FromFloat(s * std::nextafter(m, 0.0f)), sign | i) << m;
      EXPECT_EQ(E2m1FromFloat(s * m), sign | even) << m;
      EXPECT_EQ(E2m1FromFloat(s * std::nextafter(m, INFINITY)), sign | (i + 1)) << m;
    }
  }
}

// R2. 2 million points of [-7, 7] and every fp32 number within 64 steps of a midpoint.
TEST(E2m1, DenseSweepIsNearestEven) {
  const auto check = [](float x) {
    const int expected = NearestIndex(std::abs(double{x}), E2m1Grid()) | (std::signbit(x) ? 8 : 0);
    ASSERT_EQ(E2m1FromFloat(x), expected) << x;
  };
  for (int i = -1'000'000; i <= 1'000'000; ++i) check(static_cast<float>(i) * 7e-6f);
  for (const float m : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f}) {
    for (int step = -64; step <= 64; ++step) {
      check(FromBits(BitsOf(m) + static_cast<uint32_t>(step)));
      check(-FromBits(BitsOf(m) + static_cast<uint32_t>(step)));
    }
  }
}

// Half steps first, then a table: what R2 must catch, whichever way the table breaks its ties.
int HalfStepCode(float x, bool tie_up) {
  const double half_steps = std::nearbyint(2 * std::min(std::abs(double{x}), 6.0)) / 2;
  int best = 0;
  for (int i = 1; i < 8; ++i) {
    const double now = std::abs(E2m1Grid()[static_cast<size_t>(i)] - half_steps);
    const double before = std::abs(E2m1Grid()[static_cast<size_t>(best)] - half_steps);
    if (now < before || (now == before && tie_up)) best = i;
  }
  return best;
}

TEST(E2m1, RoundingWithoutACodeIsRoundingThroughTheCode) {
  const auto check = [](float x) {
    const float want = E2m1ToFloat(E2m1FromFloat(x));
    ASSERT_EQ(std::bit_cast<uint32_t>(RoundToE2m1(x)), std::bit_cast<uint32_t>(want)) << x;
  };
  for (uint32_t i = 0; i <= 0xffff; ++i) {  // every bf16 number and its neighbours
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
      check(std::bit_cast<float>(i << 16 | low));
    }
  }
  for (float x = -7; x <= 7; x += 0x1p-16f) check(x);
}

TEST(E2m1, RoundingThroughHalfStepsFailsTheSweep) {  // R2
  for (const bool tie_up : {false, true}) {
    int wrong = 0;
    for (int i = 0; i <= 100'000; ++i) {
      const float x = static_cast<float>(i) * 7e-5f;
      wrong += HalfStepCode(x, tie_up) != E2m1FromFloat(x);
    }
    EXPECT_GT(wrong, 5000) << tie_up;
  }
  EXPECT_EQ(HalfStepCode(2.6f, false), 4);
  EXPECT_EQ(E2m1FromFloat(2.6f), 5);
  EXPECT_EQ(HalfStepCode(5.1f, false), 6);
  EXPECT_EQ(E2m1FromFloat(5.1f), 7);
}

TEST(E2m1, SaturatesAndKeepsTheSignOfZero) {
  EXPECT_EQ(E2m1FromFloat(6.5f), 7);
  EXPECT_EQ(E2m1FromFloat(3e38f), 7);
  EXPECT_EQ(E2m1FromFloat(INFINITY), 7);
  EXPECT_EQ(E2m1FromFloat(-INFINITY), 15);
  EXPECT_EQ(E2m1FromFloat(-0.1f), 8);
  EXPECT_EQ(E2m1FromFloat(-0.0f), 8);
  EXPECT_EQ(E2m1FromFloat(0x1p-149f), 0);
  EXPECT_EQ(E2m1FromFloat(NAN), 0);
  EXPECT_EQ(E2m1FromFloat(-NAN), 0);
  EXPECT_EQ(E2m1ToFloat(8), E2m1ToFloat(0));  // R4
}

TEST(E2m1, TwoCodesShareAByteLowNibbleFirst) {  // R1
  EXPECT_EQ(PackE2m1(1, 7), 0x71);              // R103
  for (int even = 0; even < 16; ++even) {
    for (int odd = 0; odd < 16; ++odd) {
      const uint8_t packed[2] = {0xff,
                                 PackE2m1(static_cast<uint8_t>(even), static_cast<uint8_t>(odd))};
      EXPECT_EQ(UnpackE2m1(packed, 2), even);
      EXPECT_EQ(UnpackE2m1(packed, 3), odd);
    }
  }
}

std::vector<double> E4m3Grid() {
  std::vector<double> grid;
  for (int bits = 0; bits <= 0x7e; ++bits) {
    const int exponent = bits >> 3;
    const int mantissa = bits & 7;
    grid.push_back(exponent == 0 ? std::ldexp(mantissa, -9)
                                 : std::ldexp(8 + mantissa, exponent - 10));
  }
  return grid;
}

TEST(E4m3, EveryByteDecodesToItsDefinitionAndBack) {  // R5
  const std::vector<double> grid = E4m3Grid();
  for (int bits = 0; bits <= 0xff; ++bits) {
    const float value = E4m3ToFloat(static_cast<uint8_t>(bits));
    EXPECT_EQ(std::signbit(value), bits >= 0x80);
    EXPECT_EQ(E4m3FromFloat(value), bits);
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(std::abs(double{value}), grid[static_cast<size_t>(bits & 0x7f)]);
    }
    EXPECT_EQ(IsBlockScale(static_cast<uint8_t>(bits)), bits <= 0x7e);
  }
}

TEST(E4m3, EveryMidpointAndItsNeighboursRoundToTheNearestEvenByte) {
  const std::vector<double> grid = E4m3Grid();
  for (int i = 0; i + 1 <= 0x7e; ++i) {
    const auto below = static_cast<size_t>(i);
    const auto middle = static_cast<float>((grid[below] + grid[below + 1]) / 2);
    ASSERT_EQ(double{middle}, (grid[below] + grid[below + 1]) / 2);  // an fp32 number
    for (const int sign : {0, 0x80}) {
      const float s = sign != 0 ? -1.0f : 1.0f;
      EXPECT_EQ(E4m3FromFloat(s * std::nextafter(middle, 0.0f)), sign | i);
      EXPECT_EQ(E4m3FromFloat(s * middle), sign | (i % 2 == 0 ? i : i + 1));
      EXPECT_EQ(E4m3FromFloat(s * std::nextafter(middle, INFINITY)), sign | (i + 1));
      const auto exact = static_cast<float>(grid[below]);
      EXPECT_EQ(E4m3FromFloat(s * std::nextafter(exact, INFINITY)), sign | i);
    }
  }
}

TEST(E4m3, SaturatesNeverToNan) {
  for (const float x : {448.0f, 463.99997f, 464.0f, 464.00003f, 465.0f, 2688.0f, 1e9f, INFINITY}) {
    EXPECT_EQ(E4m3FromFloat(x), 0x7e) << x;
    EXPECT_EQ(E4m3FromFloat(-x), 0xfe) << x;
  }
  EXPECT_EQ(E4m3FromFloat(NAN), 0x7f);
}

TEST(E8m0, EveryByteDecodesToAPowerOfTwoAndBack) {
  for (int bits = 0; bits < 0xff; ++bits) {
    const float value = E8m0ToFloat(static_cast<uint8_t>(bits));
    EXPECT_EQ(value, std::ldexp(1.0f, bits - 127));
    EXPECT_EQ(E8m0FromFloatRoundUp(value), bits);
    if (bits < 0xfe) {
      EXPECT_EQ(E8m0FromFloatRoundUp(std::nextafter(value, INFINITY)), bits + 1);
    }
    if (bits > 0) {
      EXPECT_EQ(E8m0FromFloatRoundUp(std::nextafter(value, 0.0f)), bits);
    }
  }
  EXPECT_TRUE(std::isnan(E8m0ToFloat(0xff)));
  EXPECT_EQ(E8m0FromFloatRoundUp(NAN), 0xff);
  EXPECT_EQ(E8m0FromFloatRoundUp(INFINITY), 0xfe);
  EXPECT_EQ(E8m0FromFloatRoundUp(0), 0);
  EXPECT_EQ(E8m0FromFloatRoundUp(0x1p-149f), 0);
}

TEST(E8m0, BlockScalesNeverLetAnElementSaturate) {
  for (uint32_t bits = 0; bits < 0x7f000000; bits += 9973) {
    const float amax = FromBits(bits);
    const double fp4 = std::ldexp(1.0, Mxfp4BlockScale(amax) - 127);
    ASSERT_LE(double{amax}, 6 * fp4) << amax;
    if (amax > 6 * 0x1p-126f) {
      ASSERT_GT(double{amax}, 3 * fp4) << amax;
    }
    const double fp8 = std::ldexp(1.0, Fp8BlockScale(amax) - 127);
    ASSERT_LE(double{amax}, 448 * fp8) << amax;
    if (amax > 1e-4f) {
      ASSERT_GT(double{amax}, 224 * fp8) << amax;
    }
  }
}

TEST(Fp8Block, AValueAndItsCodeMeetUnderTheScale) {
  for (int byte = 0; byte <= 0xff; ++byte) {
    const auto code = static_cast<uint8_t>(byte);
    if ((code & 0x7f) == 0x7f) continue;
    for (const uint8_t scale : {uint8_t{60}, uint8_t{127}, uint8_t{200}}) {
      EXPECT_EQ(Fp8Encode(Fp8Decode(code, scale), scale), code);
    }
  }
}

TEST(Bf16, EveryNumberDecodesToTheUpperHalfAndBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = ToFloat(Bf16{static_cast<uint16_t>(bits)});
    ASSERT_EQ(BitsOf(value), bits << 16);
    const Bf16 back = ToBf16(value);
    if (std::isnan(value)) {
      ASSERT_EQ(back.bits, bits | 0x40);  // made quiet, sign and the rest kept
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

TEST(Bf16, EveryMidpointAndItsNeighboursRoundToTheNearestEvenNumber) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    if ((bits & 0x7fff) >= 0x7f80) continue;
    const uint32_t middle = bits << 16 | 0x8000;
    ASSERT_EQ(ToBf16(FromBits(middle - 1)).bits, bits);
    ASSERT_EQ(ToBf16(FromBits(middle)).bits, bits + (bits & 1));
    ASSERT_EQ(ToBf16(FromBits(middle + 1)).bits, bits + 1);  // of the largest: infinity
  }
  EXPECT_EQ(ToFloat(ToBf16(3.4e38f)), INFINITY);
  EXPECT_EQ(ToFloat(ToBf16(-3.4e38f)), -INFINITY);
  EXPECT_EQ(ToFloat(ToBf16(INFINITY)), INFINITY);
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(FromBits(0x7f800001)))));  // a NaN whose upper half is inf
}

TEST(Fp16, EveryNumberDecodesAsTheCompilersOwnType) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
    const auto expected = static_cast<float>(half);
    const float value = ToFloat(Fp16{static_cast<uint16_t>(bits)});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value));
    } else {
      ASSERT_EQ(BitsOf(value), BitsOf(expected)) << bits;
    }
  }
}

// R13: so a bf16 or fp16 tensor core computes NVFP4 without rounding its operands; E4M3 does not.
TEST(Products, EveryCodeTimesEveryBlockScaleIsExactInBf16AndFp16ButNotInE4m3) {
  std::vector<float> magnitudes;
  int lost_in_e4m3 = 0;
  for (int code = 0; code < 16; ++code) {
    for (int byte = 0; byte <= 0x7e; ++byte) {
      const float product =
          E2m1ToFloat(static_cast<uint8_t>(code)) * E4m3ToFloat(static_cast<uint8_t>(byte));
      EXPECT_EQ(RoundToBf16(product), product);
      EXPECT_EQ(static_cast<float>(static_cast<_Float16>(product)), product);
      lost_in_e4m3 += E4m3ToFloat(E4m3FromFloat(product)) != product;
      magnitudes.push_back(std::abs(product));
    }
  }
  EXPECT_GT(lost_in_e4m3, 0);
  std::sort(magnitudes.begin(), magnitudes.end());
  magnitudes.erase(std::unique(magnitudes.begin(), magnitudes.end()), magnitudes.end());
  EXPECT_EQ(magnitudes.size(), 238u);  // moe-layer.md §4
  EXPECT_EQ(magnitudes[1], 0x1p-10f);
  EXPECT_EQ(magnitudes.back(), 2688);
}

RC_GTEST_PROP(E4m3, RoundsAnyFloatToTheNearestByte, ()) {
  static const std::vector<double> grid = E4m3Grid();
  const float x = FromBits(*rc::gen::inRange<uint32_t>(0x38000000u, 0x44000000u));
  RC_ASSERT(E4m3FromFloat(x) == NearestIndex(double{x}, grid));
}

RC_GTEST_PROP(Bf16, RoundingIsMonotoneAndIdempotent, (uint32_t a, uint32_t b)) {
  const float x = FromBits(a);
  const float y = FromBits(b);
  RC_PRE(!std::isnan(x) && !std::isnan(y));
  RC_ASSERT(x > y || RoundToBf16(x) <= RoundToBf16(y));
  RC_ASSERT(RoundToBf16(RoundToBf16(x)) == RoundToBf16(x));
}

}  // namespace
}  // namespace halfbyte
