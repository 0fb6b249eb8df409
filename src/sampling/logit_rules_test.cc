#include "sampling/logit_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "sampling/logprobs.h"

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

}  // namespace
}  // namespace halfbyte
