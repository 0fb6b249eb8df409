#include "engine/logit_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/choice_sampler.h"
#include "engine/logprobs.h"

namespace halfbyte {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// server.md §1.8, steps 2 to 4, word by word.
std::vector<float> Slowly(std::vector<float> z, const SamplingParams& params,
                          const std::vector<int32_t>& masked, const std::vector<int32_t>& prompt,
                          const std::vector<int32_t>& output) {
  for (const int32_t i : masked) z[i] = -kInf;
  for (const LogitBias& bias : params.logit_bias) z[bias.token] += static_cast<float>(bias.bias);
  for (int32_t i = 0; i < std::ssize(z); ++i) {
    const auto count = static_cast<float>(std::ranges::count(output, i));
    if (count == 0 && std::ranges::count(prompt, i) == 0) continue;
    const auto r = static_cast<float>(params.repetition_penalty);
    z[i] = z[i] > 0 ? z[i] / r : z[i] * r;
    z[i] -= static_cast<float>(params.frequency_penalty) * count +
            (count > 0 ? static_cast<float>(params.presence_penalty) : 0.0f);
  }
  return z;
}

TEST(LogitRules, AFiniteLogitStaysFiniteAndOthersAreSeen) {
  const std::vector<int32_t> seen = {0, 1, 2, 3, 4, 5};
  for (const double penalty : {5e-324, 1e-45, 1e-38, 10.0}) {
    const LogitRules rules({.repetition_penalty = penalty}, seen);
    std::vector<float> z = {3, -3, 0, std::numeric_limits<float>::max(), 7, kInf};
    const std::vector<int32_t> masked = {4};
    const std::vector<std::span<const int32_t>> masks = {masked};
    rules.Apply(masks, z);
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isfinite(z[i])) << penalty << " " << z[i];
    EXPECT_EQ(z[4], -kInf);
    EXPECT_EQ(z[5], kInf);
  }
}

TEST(LogitRules, DoWhatTheRuleSays) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(-2, 2);
  for (int round = 0; round < 500; ++round) {
    SamplingParams params;
    if (random() % 2 == 0) params.repetition_penalty = 1.1 + uniform(random) / 4;
    if (random() % 2 == 0) params.frequency_penalty = uniform(random);
    if (random() % 2 == 0) params.presence_penalty = uniform(random);
    if (random() % 2 == 0) params.logit_bias = {{3, 5 * uniform(random)}, {11, -100}};
    std::vector<int32_t> prompt, output;
    for (size_t i = random() % 10; i > 0; --i) prompt.push_back(random() % 20);
    LogitRules rules(params, prompt);
    for (size_t i = random() % 10; i > 0; --i) {
      output.push_back(random() % 20);
      rules.Count(output.back());
    }
    std::vector<float> z(20);
    for (float& value : z) value = static_cast<float>(uniform(random));
    const std::vector<int32_t> masked = {static_cast<int32_t>(random() % 20), 5};
    std::vector<float> changed = z;
    const std::vector<std::span<const int32_t>> masks = {masked};
    rules.Apply(masks, changed);
    ASSERT_EQ(changed, Slowly(z, params, masked, prompt, output));
  }
}

TEST(LogitRules, IdsOutsideTheRowAreIgnored) {
  LogitRules rules({.repetition_penalty = 2, .logit_bias = {{7, 1}}}, std::vector<int32_t>{9, 1});
  std::vector<float> z = {1, 1};
  const std::vector<int32_t> masked = {-1, 2};
  const std::vector<std::span<const int32_t>> masks = {masked};
  rules.Apply(masks, z);
  EXPECT_EQ(z, (std::vector<float>{1, 0.5}));
}

TEST(Logprobs, SumToOneAndComeBestFirst) {
  const std::vector<float> z = {1, 3, -kInf, 3, 2};
  double sum = 0;
  for (int32_t i = 0; i < 5; ++i) sum += std::exp(LogprobsOf(z, i, 0).chosen.logprob);
  EXPECT_NEAR(sum, 1, 1e-12);
  const LogprobEntry entry = LogprobsOf(z, 0, 3);
  ASSERT_EQ(entry.top.size(), 3u);
  EXPECT_EQ(entry.top[0].token, 1);  // the lower id of equals
  EXPECT_EQ(entry.top[1].token, 3);
  EXPECT_EQ(entry.top[2].token, 4);
  EXPECT_EQ(entry.chosen.logprob, LogprobsOf(z, 1, 5).top[3].logprob);
  EXPECT_EQ(LogprobsOf(z, 2, 9).top.size(), 5u);
  EXPECT_EQ(LogprobsOf(z, 2, 0).chosen.logprob, -kInf);
}

class ChoiceSamplerTest : public testing::Test {
 protected:
  int32_t First(const Request& request, bool reasoning = false) {
    ChoiceSampler sampler(request, 0, kEos, /*processed_logprobs=*/false);
    return sampler.Next(kRow, reasoning)->token;
  }
  const std::vector<int32_t> kEos = {4};
  const std::vector<float> kRow = {0, 1, 2, 3, 9};
  Request request_{.prompt = {1}, .sampling = {.temperature = 0}, .min_tokens = 0};
};

TEST_F(ChoiceSamplerTest, MasksWhatMayNotComeYet) {
  EXPECT_EQ(First(request_), 4);
  request_.stop.ignore_eos = true;
  EXPECT_EQ(First(request_), 3);
  request_.stop.ignore_eos = false;
  request_.min_tokens = 2;
  EXPECT_EQ(First(request_), 3);
  request_.stop.token_ids = {3, 2};
  EXPECT_EQ(First(request_), 1);
  request_.masked_ids = {1};
  EXPECT_EQ(First(request_), 0);
  request_.masked_ids = {1, 0};
  ChoiceSampler sampler(request_, 0, kEos, false);
  EXPECT_EQ(sampler.Next(kRow, false).error().message.rfind("nonfinite_logits: ", 0), 0u);
}

TEST_F(ChoiceSamplerTest, MinTokensEndsAfterThatManyTokens) {
  request_.min_tokens = 2;
  ChoiceSampler sampler(request_, 0, kEos, false);
  EXPECT_EQ(sampler.Next(kRow, false)->token, 3);
  EXPECT_EQ(sampler.Next(kRow, false)->token, 3);
  EXPECT_EQ(sampler.Next(kRow, false)->token, 4);
}

TEST_F(ChoiceSamplerTest, TheEndOfReasoningIsDrawnOnlyWhileReasoning) {
  request_.reasoning_end_id = 4;
  EXPECT_EQ(First(request_, /*reasoning=*/true), 4);
  EXPECT_EQ(First(request_, /*reasoning=*/false), 3);
}

TEST_F(ChoiceSamplerTest, LogprobsAreTheModelsOwnOrTheProcessedOnes) {
  request_.logprobs = 1;
  request_.sampling.logit_bias = {{4, -100}};
  for (const bool processed : {false, true}) {
    ChoiceSampler sampler(request_, 0, kEos, processed);
    const auto draw = *sampler.Next(kRow, false);
    EXPECT_EQ(draw.token, 3);
    EXPECT_EQ(draw.logprobs->top[0].token, processed ? 3 : 4);
  }
}

TEST_F(ChoiceSamplerTest, PenaltiesSeeTheOutput) {
  request_.sampling.presence_penalty = 2;
  request_.sampling.logit_bias = {{4, -100}};
  ChoiceSampler sampler(request_, 0, kEos, false);
  std::vector<int32_t> drawn;
  for (int i = 0; i < 4; ++i) drawn.push_back(sampler.Next(kRow, false)->token);
  EXPECT_EQ(drawn, (std::vector<int32_t>{3, 2, 1, 3}));  // of equals the lowest id
}

}  // namespace
}  // namespace halfbyte
