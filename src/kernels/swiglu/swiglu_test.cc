#include "kernels/swiglu/swiglu.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace halfbyte {
namespace {

constexpr SwigluParams kV4{.limit = 10};

std::vector<float> Row(CpuIsa isa, const SwigluParams& params, std::vector<float> gate,
                       std::vector<float> up, SwigluRowArguments a = {}) {
  ThreadPool pool(1);
  std::vector<float> h(gate.size());
  a.gate = gate.data();
  a.up = up.data();
  a.h = h.data();
  a.n = static_cast<int64_t>(gate.size());
  SwigluRow(Context(pool, isa), params, a);
  return h;
}

TEST(Swiglu, ClampsTheGateFromAboveOnlyAndUpOnBothSidesBeforeSilu) {  // R84, MDL-01, LAY-03
  struct Case {
    float gate, up, expected;
  };
  const Case cases[] = {{12, -15, -99.99546021f},
                        {15, 3, 29.99863806f},
                        {-30, 12, -2.807286891e-11f},
                        {9.5f, 10.5f, 94.99288961f},
                        {2, 3, 5.284782468f},
                        {-1, 4, -1.075765685f},
                        {0, 5, 0}};
  for (const CpuIsa isa : SupportedCpuIsas()) {
    for (const Case& c : cases) {
      EXPECT_NEAR(Row(isa, kV4, {c.gate}, {c.up})[0], c.expected, std::abs(c.expected) * 1e-6);
      EXPECT_NEAR(SwigluReference(kV4, c.gate, c.up), c.expected, std::abs(c.expected) * 1e-7);
    }
    EXPECT_NEAR(Row(isa, {}, {12}, {-15})[0], -179.99889f, 1e-4);  // no limit, no clamp
  }
}

TEST(Swiglu, StaysWithin2ToTheMinus20OfTheFormulaOverTheWholeRange) {  // R86 asks for 2^-11
  std::vector<float> gate, up;
  for (int i = -30000; i <= 10000; ++i) {
    gate.push_back(static_cast<float>(i) / 1000.0f);
    up.push_back(0.75f);
  }
  for (const CpuIsa isa : SupportedCpuIsas()) {
    const std::vector<float> h = Row(isa, kV4, gate, up);
    for (size_t i = 0; i < h.size(); ++i) {
      const double expected = SwigluReference(kV4, gate[i], up[i]);
      ASSERT_NEAR(h[i], expected, std::abs(expected) * 0x1p-20) << gate[i];
    }
  }
}

TEST(Swiglu, IsFiniteAtTheEndsOfTheRange) {  // R86
  for (const CpuIsa isa : SupportedCpuIsas()) {
    const std::vector<float> gate = {0.0f, -0.0f, 100, -100, 3e38f, -3e38f};
    const std::vector<float> h = Row(isa, {}, gate, std::vector<float>(6, 1.0f));
    EXPECT_EQ(h[0], 0);
    EXPECT_EQ(h[1], 0);
    EXPECT_EQ(h[2], 100);
    EXPECT_NEAR(h[3], 0, 1e-37);
    EXPECT_EQ(h[4], 3e38f);
    EXPECT_EQ(h[5], 0);
    for (const float value : Row(isa, kV4, {NAN, 1}, {1, NAN})) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(Swiglu, ScalesComeBeforeTheClampAndTheWeightBeforeTheOnlyRounding) {  // R60, R62
  const SwigluRowArguments a{
      .alpha_gate = 0.5f, .alpha_up = 0.01f, .weight = 0.3f, .rounding = Rounding::kBf16};
  for (const CpuIsa isa : SupportedCpuIsas()) {
    // 0.5 * 19 is below the limit although 19 is not; 0.01 * 700 is 7.
    const float h = Row(isa, kV4, {19}, {700}, a)[0];
    EXPECT_EQ(h, RoundToBf16(static_cast<float>(SwigluReference(kV4, 9.5, 7) * 0.3)));
  }
}

TEST(Swiglu, TheGeneralFormCoversGptOss) {
  const SwigluParams params{.limit = 7, .alpha = 1.702f, .add = 1};
  for (const CpuIsa isa : SupportedCpuIsas()) {
    EXPECT_NEAR(Row(isa, params, {2}, {-9})[0], 2 / (1 + std::exp(-3.404)) * -6, 1e-5);
  }
}

TEST(Swiglu, BitsDoNotDependOnTheInstructionSetNorOnTheTail) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 8);
  for (const size_t n : {1u, 15u, 16u, 17u, 129u}) {
    std::vector<float> gate(n), up(n);
    for (size_t i = 0; i < n; ++i) {
      gate[i] = normal(random);
      up[i] = normal(random);
    }
    for (const Rounding rounding : {Rounding::kNone, Rounding::kBf16}) {
      const SwigluRowArguments a{.alpha_gate = 1.3f, .weight = 0.7f, .rounding = rounding};
      const std::vector<float> expected = Row(CpuIsa::kScalar, kV4, gate, up, a);
      for (const CpuIsa isa : SupportedCpuIsas()) {
        const std::vector<float> h = Row(isa, kV4, gate, up, a);
        EXPECT_EQ(std::memcmp(h.data(), expected.data(), n * sizeof(float)), 0);
      }
    }
  }
}

}  // namespace
}  // namespace halfbyte
