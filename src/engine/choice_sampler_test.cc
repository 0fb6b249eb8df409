#include "engine/choice_sampler.h"

#include <gtest/gtest.h>

#include <vector>

namespace halfbyte {
namespace {

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
