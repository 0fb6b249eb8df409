#include "kernels/route/cuda_router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "device/cuda/gpu_test.h"
#include "kernels/route/router.h"

namespace halfbyte {
namespace {

struct RouterInput {
  std::vector<float> logits, bias;
  std::vector<int32_t> table, token_ids;
};

class RouterCuda : public GpuTest {
 protected:
  // Ids equal, weights to 1e-5 of the CPU's.
  void Compare(const RouterParams& params, int64_t tokens, const RouterInput& input) {
    const auto count = static_cast<size_t>(tokens * params.top_k);
    DeviceArray<float> logits(input.logits), bias(input.bias), weights(count);
    DeviceArray<int32_t> table(input.table), token_ids(input.token_ids), ids(count);
    DeviceArray<CudaRouterCounters> counted(std::vector<CudaRouterCounters>(1));
    const auto rows = static_cast<int64_t>(input.table.size()) / params.top_k;
    ASSERT_TRUE(Finish(LaunchRouter(params,
                                    {.logits = logits.data(),
                                     .tokens = tokens,
                                     .bias = input.bias.empty() ? nullptr : bias.data(),
                                     .table = input.table.empty() ? nullptr : table.data(),
                                     .token_ids = token_ids.data(),
                                     .table_rows = rows,
                                     .topk_ids = ids.data(),
                                     .topk_weights = weights.data(),
                                     .counters = counted.data()},
                                    stream.get())));
    std::vector<int32_t> want_ids(count);
    std::vector<float> want(count);
    const MutableRouting routing{{want_ids.data(), tokens, params.top_k},
                                 {want.data(), tokens, params.top_k}};
    const MatrixView<const float> view{input.logits.data(), tokens, params.experts};
    ThreadPool pool(2);
    const RouterCounters counters =
        input.table.empty()
            ? Route(Context(pool), params, view, input.bias, routing)
            : RouteByTable(Context(pool), params, view, {input.table.data(), rows, params.top_k},
                           input.token_ids, routing);
    EXPECT_EQ(ids.Read(), want_ids);
    const std::vector<float> got = weights.Read();
    for (size_t i = 0; i < count; ++i) {
      ASSERT_NEAR(got[i], want[i], 1e-5 * std::abs(want[i]) + 1e-30) << i;
    }
    EXPECT_EQ(static_cast<int64_t>(counted.Read()[0].rows), tokens);
    EXPECT_EQ(static_cast<int64_t>(counted.Read()[0].bad_rows), counters.bad_rows);
  }

  static RouterInput Random(const RouterParams& params, int64_t tokens, bool with_bias,
                            uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    RouterInput input;
    input.logits.resize(static_cast<size_t>(tokens * params.experts));
    for (float& x : input.logits) x = 2 * normal(random);
    if (with_bias) {
      input.bias.resize(static_cast<size_t>(params.experts));
      for (float& x : input.bias) x = 0.5f * normal(random);
    }
    return input;
  }
};

TEST_F(RouterCuda, EveryScoreAndRenormalizationIsThatOfTheCpu) {  // R115
  uint32_t seed = 0;
  for (const RouterScore score : {RouterScore::kSqrtSoftplus, RouterScore::kSigmoid,
                                  RouterScore::kSoftmax, RouterScore::kIdentity}) {
    for (const Renormalization renormalization :
         {Renormalization::kNone, Renormalization::kSum, Renormalization::kSelectedSoftmax}) {
      for (const ScaleOn scale_on : {ScaleOn::kWeights, ScaleOn::kOutput}) {
        // Sums of a few normal logits may vanish; that is no case for a relative tolerance.
        if (score == RouterScore::kIdentity && renormalization == Renormalization::kSum) continue;
        const RouterParams params{.experts = 256,
                                  .top_k = 6,
                                  .score = score,
                                  .renormalization = renormalization,
                                  .epsilon = 1e-20f,
                                  .routed_scaling_factor = 1.5f,
                                  .scale_on = scale_on};
        for (const bool bias : {false, true}) Compare(params, 65, Random(params, 65, bias, ++seed));
      }
    }
  }
}

TEST_F(RouterCuda, AnyNumberOfExpertsGroupsAndChoices) {
  uint32_t seed = 100;
  const auto check = [&](int64_t experts, int64_t top_k, int64_t groups, int64_t chosen) {
    const RouterParams params{.experts = experts,
                              .top_k = top_k,
                              .score = RouterScore::kSigmoid,
                              .groups = groups,
                              .chosen_groups = chosen};
    Compare(params, 33, Random(params, 33, true, ++seed));
  };
  check(1, 1, 1, 1);
  check(7, 7, 1, 1);
  check(31, 3, 1, 1);
  check(384, 8, 1, 1);
  check(1024, 32, 1, 1);
  check(256, 8, 8, 4);
  check(96, 8, 96, 10);
  check(64, 4, 4, 1);
}

TEST_F(RouterCuda, TiesGoToTheLowerIdAndBadLogitsComeLast) {  // R115
  const RouterParams params{.experts = 64, .top_k = 6};
  RouterInput input;
  input.logits.assign(3 * 64, 0.25f);  // all equal
  for (int e = 0; e < 64; ++e) {
    input.logits[static_cast<size_t>(64 + e)] = static_cast<float>(e / 16);  // four values
    input.logits[static_cast<size_t>(128 + e)] = e < 60 ? NAN : -1.0f;
  }
  input.logits[130] = INFINITY;
  input.logits[131] = -INFINITY;
  Compare(params, 3, input);
}

TEST_F(RouterCuda, TablesGiveTheIdsAndLogitsTheWeights) {  // R116
  const RouterParams params{.experts = 128, .top_k = 6, .routed_scaling_factor = 2.5f};
  RouterInput input = Random(params, 200, false, 7);
  std::mt19937 random(8);
  for (int i = 0; i < 1000 * 6; ++i) input.table.push_back(static_cast<int32_t>(random() % 128));
  for (int t = 0; t < 200; ++t) input.token_ids.push_back(static_cast<int32_t>(random() % 1000));
  Compare(params, 200, input);
}

TEST_F(RouterCuda, PaddingChoosesNobodyAndChangesNoOtherToken) {
  const RouterParams params{.experts = 64, .top_k = 4};
  const RouterInput input = Random(params, 9, true, 11);
  const DeviceArray<float> logits(input.logits), bias(input.bias);
  const auto route = [&](const std::vector<int32_t>* positions) {
    DeviceArray<int32_t> ids(9 * 4);
    DeviceArray<float> weights(9 * 4);
    const DeviceArray<int32_t> at(positions != nullptr ? *positions : std::vector<int32_t>(9));
    EXPECT_TRUE(Finish(LaunchRouter(params,
                                    {.logits = logits.data(),
                                     .tokens = 9,
                                     .bias = bias.data(),
                                     .positions = positions != nullptr ? at.data() : nullptr,
                                     .topk_ids = ids.data(),
                                     .topk_weights = weights.data()},
                                    stream.get())));
    return std::pair(ids.Read(), weights.Read());
  };
  const std::vector<int32_t> positions{5, -1, 0, 7, -1, -1, 3, 2, -1};
  const auto [all_ids, all_weights] = route(nullptr);
  const auto [ids, weights] = route(&positions);
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool padding = positions[i / 4] < 0;
    EXPECT_EQ(ids[i], padding ? -1 : all_ids[i]) << i;
    EXPECT_EQ(weights[i], padding ? 0 : all_weights[i]) << i;
  }
}

TEST_F(RouterCuda, RefusesParametersThatTheCpuRefuses) {
  const auto launch = [&](const RouterParams& params) {
    return LaunchRouter(params, {.tokens = 1}, stream.get());
  };
  EXPECT_EQ(launch({.experts = 8, .top_k = 9}), cudaErrorInvalidValue);
  EXPECT_EQ(launch({.experts = 2048, .top_k = 1}), cudaErrorInvalidValue);
  EXPECT_EQ(launch({.experts = 8, .top_k = 3, .groups = 4, .chosen_groups = 1}),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace halfbyte
