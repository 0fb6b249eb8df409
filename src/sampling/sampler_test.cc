#include "sampling/sampler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "numerics/exp.h"
#include "sampling/philox.h"

namespace halfbyte {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// server.md §1.8 word by word, without any shortcut.
struct Reference {
  std::vector<int> kept;  // in id order
  int token = -1;
};

Reference SampleSlowly(const std::vector<float>& z, const SamplingParams& params, uint32_t output,
                       uint32_t choice) {
  const double max = *std::max_element(z.begin(), z.end());
  std::vector<double> q(z.size());
  for (size_t i = 0; i < z.size(); ++i) q[i] = (z[i] - max) / params.temperature;
  ExpAll(q);
  std::vector<int> order(z.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int i) { return q[i] == 0 || q[i] < params.min_p; });
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return q[a] != q[b] ? q[a] > q[b] : a < b; });
  if (params.top_k > 0 && order.size() > static_cast<size_t>(params.top_k)) {
    order.resize(static_cast<size_t>(params.top_k));
  }
  const auto blocked_sum = [&](const std::vector<int>& ids) {  // ids ascending
    std::vector<double> blocks(z.size() / 1024 + 1, 0.0);
    for (const int i : ids) blocks[i / 1024] += q[i];
    return std::accumulate(blocks.begin(), blocks.end(), 0.0);
  };
  if (params.top_p < 1) {
    std::vector<int> ascending = order;
    std::sort(ascending.begin(), ascending.end());
    const double enough = params.top_p * blocked_sum(ascending);
    double sum = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      sum += q[order[i]];
      if (sum >= enough) order.resize(i + 1);
    }
  }
  Reference result;
  result.kept = order;
  std::sort(result.kept.begin(), result.kept.end());
  const double target =
      UniformDraw(params.seed, output, choice, DrawPurpose::kSampling) * blocked_sum(result.kept);
  for (const int i : result.kept) {
    std::vector<int> upto(result.kept.begin(),
                          std::upper_bound(result.kept.begin(), result.kept.end(), i));
    result.token = i;
    if (blocked_sum(upto) > target) break;
  }
  return result;
}

TEST(Philox, GivesTheNumbersOfTheSpecification) {
  EXPECT_EQ(UniformDraw(0, 0, 0, DrawPurpose::kSampling), 0.3990464708489645);
  EXPECT_EQ(UniformDraw(42, 0, 0, DrawPurpose::kSampling), 0.6129598811894158);
  EXPECT_EQ(UniformDraw(42, 1, 0, DrawPurpose::kSampling), 0.9877186509145105);
  EXPECT_EQ(UniformDraw(42, 0, 1, DrawPurpose::kSampling), 0.2612414777956905);
}

TEST(Philox, GivesThePublishedBlocks) {  // known-answer vectors of the Random123 distribution
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32(0, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32(UINT64_MAX, {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Sampler, TemperatureZeroTakesTheLowestIdAmongTheBest) {
  const SamplingParams greedy = {.temperature = 0};
  EXPECT_EQ(*Sample(std::vector<float>{1, 3, 3, 2}, greedy, 0, 0), 1);
  EXPECT_EQ(*Sample(std::vector<float>{-5}, greedy, 9, 3), 0);
  EXPECT_EQ(*Sample(std::vector<float>{-kInfinity, -3e38f, -kInfinity}, greedy, 0, 0), 1);
  EXPECT_EQ(*Sample(std::vector<float>{-0.0f, 0.0f}, greedy, 0, 0), 0);
}

TEST(Sampler, RefusesLogitsThatAreNotNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const double temperature : {0.0, 1.0}) {
    const SamplingParams params = {.temperature = temperature};
    for (const auto& logits : std::vector<std::vector<float>>{
             {}, {nan}, {1, nan, 2}, {1, 2, nan}, {kInfinity, 1}, {-kInfinity, -kInfinity}}) {
      const auto result = Sample(logits, params, 0, 0);
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().message.rfind("nonfinite_logits: ", 0), 0u);
    }
  }
}

TEST(Sampler, NamesTheParameterThatIsOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const struct {
    SamplingParams params;
    const char* field;
  } cases[] = {
      {{.temperature = -0.1}, "temperature"},
      {{.temperature = 2.0001}, "temperature"},
      {{.temperature = nan}, "temperature"},
      {{.top_p = 0}, "top_p"},
      {{.top_p = 1.0001}, "top_p"},
      {{.top_p = nan}, "top_p"},
      {{.top_k = -2}, "top_k"},
      {{.top_k = INT64_MIN}, "top_k"},
      {{.min_p = -0.1}, "min_p"},
      {{.min_p = 1.1}, "min_p"},
      {{.min_p = nan}, "min_p"},
      {{.repetition_penalty = 0}, "repetition_penalty"},
      {{.repetition_penalty = 10.1}, "repetition_penalty"},
      {{.repetition_penalty = nan}, "repetition_penalty"},
      {{.frequency_penalty = -2.1}, "frequency_penalty"},
      {{.presence_penalty = 2.1}, "presence_penalty"},
      {{.presence_penalty = nan}, "presence_penalty"},
      {{.logit_bias = {{3, 100.5}}}, "logit_bias"},
      {{.logit_bias = {{3, nan}}}, "logit_bias"},
      {{.logit_bias = {{3, 1}, {3, 2}}}, "logit_bias"},
      {{.logit_bias = std::vector<LogitBias>(1025)}, "logit_bias"},
  };
  for (const auto& test : cases) {
    const auto result = Sample(std::vector<float>{1, 2}, test.params, 0, 0);
    ASSERT_FALSE(result) << test.field;
    EXPECT_EQ(result.error().message.rfind(std::string(test.field) + " is ", 0), 0u)
        << result.error().message;
  }
  for (const SamplingParams& ok : std::vector<SamplingParams>{{.temperature = 2},
                                                              {.top_p = 1e-300},
                                                              {.top_k = -1},
                                                              {.top_k = INT64_MAX},
                                                              {.min_p = 1}}) {
    EXPECT_TRUE(Sample(std::vector<float>{1, 2}, ok, 0, 0));
  }
}

TEST(Sampler, KeepsTheLowestIdsWhereAFilterCutsThroughATie) {
  const std::vector<float> flat(5, 1.0f);
  for (uint32_t output = 0; output < 200; ++output) {
    EXPECT_LT(*Sample(flat, {.top_k = 2}, output, 0), 2);
    EXPECT_LT(*Sample(flat, {.top_p = 0.6}, output, 0), 3);  // 3 of 5 reach 0.6
    EXPECT_EQ(*Sample(flat, {.top_k = 1}, output, 0), 0);
    EXPECT_EQ(*Sample(flat, {.top_p = 1e-9}, output, 0), 0);
  }
}

TEST(Sampler, NeverDrawsAMaskedTokenAtAnyTemperature) {
  const std::vector<float> logits = {-kInfinity, 1, -kInfinity, 1.5, -kInfinity};
  for (const double temperature : {1e-300, 0.01, 1.0, 2.0}) {
    for (uint32_t output = 0; output < 500; ++output) {
      const int token = *Sample(logits, {.temperature = temperature}, output, 0);
      EXPECT_TRUE(token == 1 || token == 3);
      EXPECT_TRUE(token == 3 || temperature > 1e-3);
    }
  }
}

TEST(Sampler, DependsOnSeedOutputAndChoiceOnly) {
  const std::vector<float> flat(1000, 0.0f);
  const SamplingParams params = {.seed = 7};
  EXPECT_EQ(*Sample(flat, params, 3, 1), *Sample(flat, params, 3, 1));
  EXPECT_EQ(*Sample(flat, {.seed = 42}, 0, 0), 612);  // u = 0.61295...
  EXPECT_EQ(*Sample(flat, {.seed = 42}, 1, 0), 987);
  EXPECT_EQ(*Sample(flat, {.seed = 42}, 0, 1), 261);
}

TEST(Sampler, DrawsInProportionOverAHundredThousandDraws) {
  const std::vector<float> logits = {0.3f, -1.0f, 2.0f, 0.0f, 1.1f, -2.5f, 0.7f, 1.9f};
  const double temperature = 1.3;
  std::vector<double> expected(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) sum += expected[i] = std::exp(logits[i] / temperature);
  constexpr int kDraws = 100'000;
  std::vector<int> counts(logits.size());
  for (uint32_t output = 0; output < kDraws; ++output) {
    ++counts[*Sample(logits, {.temperature = temperature, .seed = 2024}, output, 0)];
  }
  double chi_square = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double wanted = kDraws * expected[i] / sum;
    chi_square += (counts[i] - wanted) * (counts[i] - wanted) / wanted;
  }
  EXPECT_LT(chi_square, 24.32);  // the 99.9 % point for 7 degrees of freedom; the draws are fixed
  EXPECT_GT(chi_square, 0.6);    // 0.1 %: too good to be random
}

// Logits in quarter steps have many ties, the others none; sizes straddle the blocks of 1,024.
RC_GTEST_PROP(Sampler, EveryCombinationOfFiltersEqualsTheSlowReference, ()) {
  const auto size = *rc::gen::oneOf(rc::gen::inRange<size_t>(1, 40),
                                    rc::gen::element<size_t>(1023, 1024, 1025, 2500));
  const bool ties = *rc::gen::arbitrary<bool>();
  const auto raw = *rc::gen::container<std::vector<int>>(size, rc::gen::inRange(-4000, 4000));
  std::vector<float> logits;
  for (const int value : raw) {
    const auto step = static_cast<float>(value);
    logits.push_back(ties ? std::round(step / 1000) : step / 700);
  }
  SamplingParams params;
  params.temperature = *rc::gen::element(0.05, 0.7, 1.0, 2.0);
  params.top_p = *rc::gen::element(1.0, 0.999, 0.9, 0.5, 0.1, 1e-6);
  params.top_k = *rc::gen::element<int64_t>(-1, 0, 1, 2, 7, 100, 1500, 1 << 20);
  params.min_p = *rc::gen::element(0.0, 1e-6, 0.05, 0.5, 1.0);
  params.seed = *rc::gen::arbitrary<uint64_t>();
  for (uint32_t output = 0; output < 4; ++output) {
    const Reference reference = SampleSlowly(logits, params, output, 1);
    RC_ASSERT(*Sample(logits, params, output, 1) == reference.token);
  }
}

}  // namespace
}  // namespace halfbyte
