#include "kernels/route/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

namespace halfbyte {
namespace {

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  RouterCounters counters;
};

Routed RouteAll(const RouterParams& params, const std::vector<float>& logits,
                const std::vector<float>& bias, int threads = 1) {
  ThreadPool pool(threads);
  const int64_t tokens = static_cast<int64_t>(logits.size()) / params.experts;
  Routed r;
  r.ids.assign(static_cast<size_t>(tokens * params.top_k), -7);
  r.weights.assign(r.ids.size(), NAN);
  r.counters =
      Route(Context(pool), params, {logits.data(), tokens, params.experts}, bias,
            {{r.ids.data(), tokens, params.top_k}, {r.weights.data(), tokens, params.top_k}});
  return r;
}

constexpr RouterParams kSmall{.experts = 4, .top_k = 2, .routed_scaling_factor = 1.5f};

TEST(Router, TheBiasSelectsAndTheScoresWeigh) {  // RTE-04, R115
  const Routed biased = RouteAll(kSmall, {2, 1, 0.5f, -1}, {-0.9f, 0, 0.6f, 0.9f});
  EXPECT_EQ(biased.ids, (std::vector<int32_t>{2, 3}));
  EXPECT_NEAR(biased.weights[0], 0.95718417, 1e-6);
  EXPECT_NEAR(biased.weights[1], 0.54281583, 1e-6);
  const Routed plain = RouteAll(kSmall, {2, 1, 0.5f, -1}, {});
  EXPECT_EQ(plain.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_NEAR(plain.weights[0], 0.83997056, 1e-6);
  EXPECT_NEAR(plain.weights[1], 0.66002944, 1e-6);
}

TEST(Router, TiesGoToTheLowerId) {  // R115
  const RouterParams params{.experts = 6, .top_k = 3};
  EXPECT_EQ(RouteAll(params, {0, 1, 1, 0, 1, 1}, {}).ids, (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(RouteAll(params, std::vector<float>(6, -3), {}).ids, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Router, ANanIsNeverChosenAndChangesNothingElse) {  // RTE-01
  const RouterParams params{.experts = 4, .top_k = 2};
  const Routed one = RouteAll(params, {NAN, 1, 2, 0, /* next row */ 3, 1, 2, 0}, {});
  EXPECT_EQ(std::vector<int32_t>(one.ids.begin(), one.ids.begin() + 2),
            (std::vector<int32_t>{2, 1}));
  EXPECT_NEAR(one.weights[0], 0.55998037, 1e-6);
  EXPECT_NEAR(one.weights[1], 0.44001963, 1e-6);
  EXPECT_EQ(one.counters.bad_rows, 1);
  EXPECT_EQ(one.counters.rows, 2);
  const Routed alone = RouteAll(params, {3, 1, 2, 0}, {});
  EXPECT_EQ(std::memcmp(&one.ids[2], alone.ids.data(), 8), 0);
  EXPECT_EQ(std::memcmp(&one.weights[2], alone.weights.data(), 8), 0);
}

TEST(Router, RowsOfNanOrInfinityGiveDistinctValidIdsOfWeightZero) {  // RTE-01
  for (const RouterScore score : {RouterScore::kSqrtSoftplus, RouterScore::kSigmoid,
                                  RouterScore::kSoftmax, RouterScore::kIdentity}) {
    for (const float bad : {NAN, INFINITY}) {
      const RouterParams params{.experts = 8, .top_k = 3, .score = score};
      const Routed r = RouteAll(params, std::vector<float>(8, bad), std::vector<float>(8, 1.0f));
      EXPECT_EQ(std::set<int32_t>(r.ids.begin(), r.ids.end()).size(), 3u);
      for (const int32_t id : r.ids) EXPECT_TRUE(id >= 0 && id < 8);
      for (const float weight : r.weights) EXPECT_EQ(weight, 0);
      EXPECT_EQ(r.counters.bad_rows, 1);
    }
  }
}

TEST(Router, ExtremeLogitsHaveFiniteWeights) {
  const RouterParams params{.experts = 4, .top_k = 2};
  for (const std::vector<float>& logits :
       std::vector<std::vector<float>>{{3e38f, 100, -3e38f, 0},
                                       {-3e38f, -3e38f, -INFINITY, -3e38f},
                                       {-INFINITY, -INFINITY, -INFINITY, -INFINITY},
                                       {-80, -90, -100, -110}}) {
    const Routed r = RouteAll(params, logits, {});
    EXPECT_EQ(r.counters.bad_rows, 0);
    float sum = 0;
    for (const float weight : r.weights) {
      EXPECT_TRUE(weight >= 0 && std::isfinite(weight)) << logits[0];
      sum += weight;
    }
    EXPECT_TRUE(sum == 0 || std::abs(sum - 1) < 1e-5);
  }
}

TEST(Router, OtherScoresFollowTheirFormulas) {
  RouterParams params{.experts = 3,
                      .top_k = 2,
                      .score = RouterScore::kSoftmax,
                      .renormalization = Renormalization::kNone};
  const double sum = std::exp(1) + std::exp(2) + std::exp(0.5);
  EXPECT_NEAR(RouteAll(params, {1, 2, 0.5f}, {}).weights[0], std::exp(2) / sum, 1e-6);
  params.score = RouterScore::kSigmoid;
  EXPECT_NEAR(RouteAll(params, {1, 2, 0.5f}, {}).weights[1], 1 / (1 + std::exp(-1.0)), 1e-6);
  params.score = RouterScore::kIdentity;
  EXPECT_EQ(RouteAll(params, {1, 2, 0.5f}, {}).weights, (std::vector<float>{2, 1}));
}

TEST(Router, ScoresAreWithinSomeUnitsOfTheirFormulasInTheWholeRange) {
  std::vector<float> logits;
  for (float x = -87; x < 88; x += 0.07f) logits.push_back(x);
  for (const float tiny : {0.0f, 1e-4f, -1e-4f, 1e-9f, -1e-9f}) logits.push_back(tiny);
  RouterParams params{.experts = std::ssize(logits),
                      .top_k = std::ssize(logits),
                      .renormalization = Renormalization::kNone};
  for (const RouterScore function : {RouterScore::kSqrtSoftplus, RouterScore::kSigmoid}) {
    params.score = function;
    const Routed r = RouteAll(params, logits, {});
    for (size_t j = 0; j < r.ids.size(); ++j) {
      const double x = logits[static_cast<size_t>(r.ids[j])];
      const double expected = function == RouterScore::kSigmoid
                                  ? 1 / (1 + std::exp(-x))
                                  : std::sqrt(std::log1p(std::exp(x)));
      EXPECT_NEAR(r.weights[j], expected, 0x6p-24 * expected) << x;
    }
  }
}

TEST(Router, SoftmaxOverTheSelectedLogits) {  // gpt-oss (checkpoints.md §5.1)
  const RouterParams params{.experts = 4,
                            .top_k = 2,
                            .score = RouterScore::kIdentity,
                            .renormalization = Renormalization::kSelectedSoftmax,
                            .routed_scaling_factor = 3};
  const Routed r = RouteAll(params, {-1, 200, 0.5f, 201}, {});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{3, 1}));
  EXPECT_NEAR(r.weights[0], 3 / (1 + std::exp(-1)), 1e-6);
  EXPECT_NEAR(r.weights[1], 3 * std::exp(-1) / (1 + std::exp(-1)), 1e-6);
  // One usable logit takes all; without any, all weights are 0.
  EXPECT_EQ(RouteAll(params, {NAN, NAN, -5, INFINITY}, {}).weights, (std::vector<float>{3, 0}));
  EXPECT_EQ(RouteAll(params, {NAN, NAN, NAN, INFINITY}, {}).weights, (std::vector<float>{0, 0}));
  EXPECT_EQ(RouteAll(params, std::vector<float>(4, -INFINITY), {}).weights,
            (std::vector<float>{1.5f, 1.5f}));
}

TEST(Router, EpsilonAndTheFactorGoWhereTheParametersSay) {  // checkpoints.md §5.3
  RouterParams params{.experts = 3,
                      .top_k = 2,
                      .score = RouterScore::kIdentity,
                      .epsilon = 0.5f,
                      .routed_scaling_factor = 2};
  EXPECT_EQ(RouteAll(params, {1, 2.5f, 0}, {}).weights, (std::vector<float>{1.25f, 0.5f}));
  params.scale_on = ScaleOn::kOutput;
  EXPECT_EQ(RouteAll(params, {1, 2.5f, 0}, {}).weights, (std::vector<float>{0.625f, 0.25f}));
  params.renormalization = Renormalization::kNone;
  EXPECT_EQ(RouteAll(params, {1, 2.5f, 0}, {}).weights, (std::vector<float>{2.5f, 1}));
  params.scale_on = ScaleOn::kWeights;
  EXPECT_EQ(RouteAll(params, {1, 2.5f, 0}, {}).weights, (std::vector<float>{5, 2}));
}

constexpr RouterParams kGroups{.experts = 8,
                               .top_k = 3,
                               .score = RouterScore::kIdentity,
                               .renormalization = Renormalization::kNone,
                               .groups = 4,
                               .chosen_groups = 2};

TEST(Router, OnlyTheBestGroupsTakePart) {  // checkpoints.md §5.3
  // Group sums 9, 8, 7, 10.5: the largest single score is in a group that is not chosen.
  const Routed r = RouteAll(kGroups, {5, 4, 8, 0, 3, 4, 5, 5.5f}, {});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{7, 0, 6}));
  EXPECT_EQ(r.weights, (std::vector<float>{5.5f, 5, 5}));
  // With a bias: the keys choose the groups, the scores are the weights.
  const Routed biased = RouteAll(kGroups, {5, 4, 8, 0, 3, 4, 5, 5.5f}, {0, 0, 0, 0, 5, 0, -2, -2});
  EXPECT_EQ(biased.ids, (std::vector<int32_t>{4, 0, 1}));
  EXPECT_EQ(biased.weights, (std::vector<float>{3, 5, 4}));
  // Equal groups: the lower ones.
  EXPECT_EQ(RouteAll(kGroups, std::vector<float>(8, 1), {}).ids, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Router, AMaskedGroupIsWorseThanAnyNegativeKey) {  // not 0: checkpoints.md §5.3
  const Routed r = RouteAll(kGroups, std::vector<float>(8, 1), {-9, -9, -3, -9, -2, -8, -9, -9});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{4, 2, 5}));
  // A group that needs its NaN for the sum is the worst, however good its other expert.
  const Routed bad = RouteAll(kGroups, {1, 1, 9, NAN, 8, 1, 7, 1}, {});
  EXPECT_EQ(bad.ids, (std::vector<int32_t>{4, 6, 5}));
  const Routed all_bad = RouteAll(kGroups, std::vector<float>(8, NAN), {});
  EXPECT_EQ(all_bad.ids, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(all_bad.weights, (std::vector<float>{0, 0, 0}));
}

// The definition, expert by expert, on random rows; also groups of one expert.
TEST(Router, GroupsMatchTheirDefinitionOnRandomRows) {
  for (const int64_t groups : {1, 2, 6, 12, 24}) {
    const int64_t size = 24 / groups;
    for (int64_t chosen = (4 + size - 1) / size; chosen <= groups; ++chosen) {
      RouterParams params{.experts = 24, .top_k = 4, .score = RouterScore::kSigmoid};
      params.groups = groups;
      params.chosen_groups = chosen;
      std::mt19937 random(static_cast<uint32_t>(groups * 100 + chosen));
      std::normal_distribution<float> normal;
      std::vector<float> logits(24 * 20), bias(24);
      for (float& x : logits) x = normal(random);
      for (float& x : bias) x = normal(random);
      const Routed r = RouteAll(params, logits, bias);
      for (size_t t = 0; t < 20; ++t) {
        std::vector<std::pair<float, int64_t>> by_key, by_group;
        for (int64_t g = 0; g < groups; ++g) {
          std::vector<float> keys;
          for (int64_t e = g * size; e < (g + 1) * size; ++e) {
            const auto i = static_cast<size_t>(e);
            keys.push_back(1 / (1 + std::exp(-logits[t * 24 + i])) + bias[i]);
          }
          std::sort(keys.rbegin(), keys.rend());
          by_group.push_back({keys.size() > 1 ? -(keys[0] + keys[1]) : -keys[0], g});
        }
        std::sort(by_group.begin(), by_group.end());
        for (int64_t c = 0; c < chosen; ++c) {
          const int64_t g = by_group[static_cast<size_t>(c)].second;
          for (int64_t e = g * size; e < (g + 1) * size; ++e) {
            const auto i = static_cast<size_t>(e);
            by_key.push_back({-(1 / (1 + std::exp(-logits[t * 24 + i])) + bias[i]), e});
          }
        }
        std::sort(by_key.begin(), by_key.end());
        for (size_t j = 0; j < 4; ++j) EXPECT_EQ(r.ids[t * 4 + j], by_key[j].second);
      }
    }
  }
}

TEST(Router, HashLayersTakeIdsFromTheTableAndWeightsFromTheScores) {  // R116
  ThreadPool pool(1);
  const std::vector<float> logits = {2, 1, 0.5f, -1, 0, 1, 2, 3};
  const std::vector<int32_t> table = {0, 1, 3, 2, 2, 2}, tokens = {1, 2};
  std::vector<int32_t> ids(4);
  std::vector<float> weights(4);
  RouteByTable(Context(pool), kSmall, {logits.data(), 2, 4}, {table.data(), 3, 2}, tokens,
               {{ids.data(), 2, 2}, {weights.data(), 2, 2}});
  EXPECT_EQ(ids, (std::vector<int32_t>{3, 2, 2, 2}));
  EXPECT_NEAR(weights[0], 0.54281583, 1e-6);
  EXPECT_NEAR(weights[1], 0.95718417, 1e-6);
  EXPECT_EQ(weights[2], 0.75f);  // a duplicate counts twice
}

TEST(Router, ResultsDoNotDependOnThreadsOrBatch) {
  const RouterParams params{.experts = 37, .top_k = 5, .routed_scaling_factor = 2.5f};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> logits(37 * 301), bias(37);
  for (float& x : logits) x = normal(random);
  for (float& x : bias) x = normal(random);
  const Routed one = RouteAll(params, logits, bias, 1);
  const Routed three = RouteAll(params, logits, bias, 3);
  EXPECT_EQ(one.ids, three.ids);
  EXPECT_EQ(one.weights, three.weights);
  const Routed row = RouteAll(params, {logits.begin() + 37 * 9, logits.begin() + 37 * 10}, bias);
  for (size_t j = 0; j < 5; ++j) {
    EXPECT_EQ(row.ids[j], one.ids[45 + j]);
    EXPECT_EQ(row.weights[j], one.weights[45 + j]);
  }
}

}  // namespace
}  // namespace halfbyte
