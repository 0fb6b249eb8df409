#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "comm/in_process_ranks.h"
#include "kernels/route/router.h"
#include "measure/bench_routing.h"
#include "measure/machine_limits.h"
#include "measure/moe_bench.h"
#include "measure/peak_loops.h"
#include "measure/rotating_routing.h"
#include "measure/synthetic_experts.h"

namespace halfbyte {
namespace {

constexpr MoeShape kSmall = {.hidden = 64, .intermediate = 32, .experts = 8, .top_k = 3};

TEST(MoeShape, KnowsModelsAndTakesNumbers) {
  const MoeShape flash = *ParseMoeShape("v4-flash");
  EXPECT_EQ(flash.hidden, 4096);
  EXPECT_EQ(flash.expert_bytes(), 14'155'776);  // 3 x 4096 x 2048 x 4.5 bit
  EXPECT_EQ(flash.slot_flops(), 50'331'648);
  EXPECT_EQ(ParseMoeShape("v4-pro")->experts, 384);
  const MoeShape shape = *ParseMoeShape("64,32,8,3");
  EXPECT_EQ(shape.hidden, 64);
  EXPECT_EQ(shape.intermediate, 32);
  EXPECT_EQ(shape.experts, 8);
  EXPECT_EQ(shape.top_k, 3);
}

TEST(MoeShape, RefusesWhatNoLayerHasAndSaysWhy) {
  for (const auto& [text, why] :
       std::vector<std::pair<std::string, std::string>>{{"", "neither"},
                                                        {"v4", "neither"},
                                                        {"64,32,8", "neither"},
                                                        {"64,32,8,3,", "neither"},
                                                        {"64,32,8,3,1", "neither"},
                                                        {"64, 32,8,3", "neither"},
                                                        {"64,32,8,99999999999999999999", "neither"},
                                                        {"60,32,8,3", "hidden size 60"},
                                                        {"64,-32,8,3", "intermediate size -32"},
                                                        {"64,32,0,3", "0 experts"},
                                                        {"64,32,8,9", "top_k 9"},
                                                        {"64,32,8,0", "top_k 0"}}) {
    const auto shape = ParseMoeShape(text);
    ASSERT_FALSE(shape) << text;
    EXPECT_NE(shape.error().message.find(why), std::string::npos) << shape.error().message;
  }
}

TEST(RotatingRouting, EveryTokenGetsTheExpertsThatRestedLongest) {
  RotatingRouting routing(kSmall);
  ThreadPool pool(1);
  std::vector<int32_t> seen;
  for (int step = 0; step < 16; ++step) {
    std::vector<float> logits(static_cast<size_t>(2 * kSmall.experts));
    std::vector<int32_t> ids(static_cast<size_t>(2 * kSmall.top_k));
    std::vector<float> weights(ids.size());
    const MatrixView<float> view{logits.data(), 2, kSmall.experts};
    routing.TakeLogits(view);
    Route(Context(pool), {.experts = kSmall.experts, .top_k = kSmall.top_k}, view, {},
          {{ids.data(), 2, kSmall.top_k}, {weights.data(), 2, kSmall.top_k}});
    seen.insert(seen.end(), ids.begin(), ids.end());
  }
  // Any `experts` slots in a row touch every expert once.
  for (size_t i = 0; i + 8 <= seen.size(); ++i) {
    EXPECT_EQ(std::set<int32_t>(seen.begin() + static_cast<int64_t>(i),
                                seen.begin() + static_cast<int64_t>(i) + 8)
                  .size(),
              8u);
  }
}

TEST(BenchRouting, KnowsItsNamesAndRefusesOthers) {
  for (const std::string name : {"rotating", "uniform", "dirichlet:0.5", "dirichlet:3"}) {
    const auto routing = ParseBenchRouting(name);
    ASSERT_TRUE(routing) << name;
    EXPECT_EQ(routing->name(), name);
  }
  for (const char* const name :
       {"", "even", "dirichlet", "dirichlet:", "dirichlet:0", "dirichlet:1x", "dirichlet:nan",
        "dirichlet:-1", "dirichlet:1000", "uniform:2"}) {
    const auto routing = ParseBenchRouting(name);
    ASSERT_FALSE(routing) << name;
    EXPECT_NE(routing.error().message.find("neither rotating"), std::string::npos);
  }
}

// Slots of the busiest expert, when 200 tokens choose 4 of 64 experts (12.5 each on average).
int64_t BusiestExpert(const std::string& routing) {
  constexpr MoeShape kShape = {.hidden = 16, .intermediate = 16, .experts = 64, .top_k = 4};
  RoutingSource source(kShape, *ParseBenchRouting(routing));
  std::vector<float> logits(200 * 64), weights(200 * 4);
  std::vector<int32_t> ids(weights.size());
  const MatrixView<float> view{logits.data(), 200, 64};
  source.TakeLogits(view);
  ThreadPool pool(1);
  Route(Context(pool), {.experts = 64, .top_k = 4}, view, {},
        {{ids.data(), 200, 4}, {weights.data(), 200, 4}});
  std::vector<int64_t> slots(64);
  for (size_t t = 0; t < 200; ++t) {
    EXPECT_EQ(std::set<int32_t>(&ids[4 * t], &ids[4 * t] + 4).size(), 4u);
    for (size_t j = 0; j < 4; ++j) ++slots[static_cast<size_t>(ids[4 * t + j])];
  }
  for (const float weight : weights) EXPECT_TRUE(weight >= 0 && weight <= 1);
  return *std::max_element(slots.begin(), slots.end());
}

TEST(BenchRouting, DirichletIsTheMoreSkewedTheSmallerItsNumber) {
  EXPECT_EQ(BusiestExpert("rotating"), 13);
  const int64_t uniform = BusiestExpert("uniform"), even = BusiestExpert("dirichlet:100"),
                half = BusiestExpert("dirichlet:0.5"), few = BusiestExpert("dirichlet:0.02");
  EXPECT_LT(uniform, 30);
  EXPECT_LT(even, 35);
  EXPECT_GT(half, 40);
  EXPECT_LT(half, 180);
  EXPECT_GT(few, 180);  // nearly every token
}

TEST(SyntheticExperts, AreQuantizedWeightsInMemoryOfTheirOwn) {
  ThreadPool pool(2);
  const auto experts = SyntheticExperts::Make(Context(pool), kSmall);
  ASSERT_TRUE(experts) << experts.error().message;
  ASSERT_EQ(std::ssize(experts->weights()), kSmall.experts);
  std::set<const std::byte*> places;
  std::vector<float> first(64), other(64);
  for (int32_t e = 0; e < kSmall.experts; ++e) {
    const ExpertWeights& weights = experts->weights()[static_cast<size_t>(e)];
    const MemorySpan memory = experts->memory(e);
    EXPECT_EQ(weights.gate.bytes() + weights.up.bytes() + weights.down.bytes(), std::ssize(memory));
    EXPECT_EQ(weights.gate.data, memory.data());
    EXPECT_EQ(weights.down.scales + weights.down.bytes() - weights.down.rows * 16,
              memory.data() + memory.size());
    places.insert(memory.data());
    // Values of a normal distribution of deviation 1/8.
    DequantizeRow(weights.gate, 0, other.data());
    double sum = 0;
    for (const float x : other) sum += double{x} * double{x};
    EXPECT_NEAR(sum / 64, 1.0 / 64, 0.5 / 64);
    if (e == 0) first = other;
  }
  EXPECT_EQ(std::ssize(places), kSmall.experts);
  EXPECT_NE(first, other);
}

TEST(PeakLoops, DoTheOperationsTheyAreCountedWithInEverySum) {
  constexpr int64_t kRounds = 1000;
  for (const PeakLoop& loop : {Fp32PeakLoop(), Int8PeakLoop(), Bf16PeakLoop()}) {
    PeakSums before, after;
    std::iota(before.begin(), before.end(), 1);
    after = before;
    loop.run(0, before);  // now the starts of all lanes, added up
    loop.run(kRounds, after);
    int64_t multiply_adds = 0;
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(before[i], before[0] * static_cast<int64_t>(i + 1)) << loop.instruction;
      EXPECT_EQ(after[i] - before[i], after[0] - before[0]) << loop.instruction;
      multiply_adds += after[i] - before[i];
    }
    EXPECT_EQ(static_cast<double>(2 * multiply_adds), kRounds * loop.operations_per_round)
        << loop.instruction;
  }
}

MoeBenchOptions SmallBench() {
  return {.shape = kSmall,
          .tokens = {1, 4},
          .arithmetic = {Arithmetic::kW4a16, Arithmetic::kRef},
          .seconds_per_row = 0.01};
}

TEST(MoeBench, CountsTheBytesAndOperationsOfItsRouting) {
  ThreadPool pool(2);
  const auto alone = InProcessRanks(1);
  const auto report = BenchMoe(Context(pool), SmallBench(), *alone.front());
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->rows.size(), 4u);
  const int64_t expert_bytes = 3 * 64 * 32 / 2 + 3 * 64 * 32 / 16;
  for (const MoeBenchRow& row : report->rows) {
    EXPECT_EQ(row.weight_bytes, (row.tokens == 1 ? 3 : 8) * expert_bytes);
    EXPECT_EQ(row.flops, row.tokens * 3 * 2 * 3 * 64 * 32);
    EXPECT_GE(row.steps, 1);
    EXPECT_GT(row.layer_us, 0);
    EXPECT_GT(row.read_share, 0);
  }
  EXPECT_EQ(report->rows[0].arithmetic, Arithmetic::kW4a16);
  EXPECT_EQ(report->rows[3].arithmetic, Arithmetic::kRef);
}

// With as many experts as a step touches or ranks divide: each rank runs its own part of each step.
TEST(MoeBench, RanksTakeTheSameStepsAndGetTheSameReport) {
  for (const int size : {2, 3}) {
    auto ranks = InProcessRanks(size);
    std::vector<Json> reports(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([&reports, mine = std::move(rank)] {
        ThreadPool pool(1);
        const auto report = BenchMoe(Context(pool), SmallBench(), *mine);
        ASSERT_TRUE(report) << report.error().message;
        for (const MoeBenchRow& row : report->rows) {
          EXPECT_EQ(row.weight_bytes, (row.tokens == 1 ? 3 : 8) * kSmall.expert_bytes());
          EXPECT_EQ(row.flops, row.tokens * 3 * kSmall.slot_flops());
        }
        reports[static_cast<size_t>(mine->rank())] = MoeBenchJson(*report);
        EXPECT_FALSE(mine->Leave(true));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(reports[0]["ranks"], size);
    for (const Json& report : reports) EXPECT_EQ(report, reports[0]);
  }
}

TEST(MoeBench, RanksWithOtherOptionsAreRefused) {
  auto ranks = InProcessRanks(2);
  std::thread second([mine = std::move(ranks[1])] {
    ThreadPool pool(1);
    MoeBenchOptions options = SmallBench();
    options.tokens = {1, 5};
    EXPECT_FALSE(BenchMoe(Context(pool), options, *mine));
    EXPECT_FALSE(mine->Leave(false));
  });
  ThreadPool pool(1);
  const auto report = BenchMoe(Context(pool), SmallBench(), *ranks[0]);
  ASSERT_FALSE(report);
  EXPECT_NE(report.error().message.find("rank 1 of 2 measures something else"), std::string::npos);
  EXPECT_TRUE(ranks[0]->Leave(false));
  second.join();
}

TEST(MoeBench, JsonHoldsWhatOthersReadFromIt) {
  MoeBenchReport report{.shape = kSmall, .threads = 2};
  report.read_bytes_per_second = 50e9;
  report.int8_ops = 900e9;
  report.bf16_flops = 450e9;
  report.rows.push_back({.tokens = 1,
                         .arithmetic = Arithmetic::kW4a4,
                         .layer_us = 1000,
                         .weight_bytes = 20'000'000,
                         .flops = 90'000'000});
  const Json json = MoeBenchJson(report);
  EXPECT_EQ(json["limits"]["read_gb_per_s"], 50);
  EXPECT_EQ(json["limits"]["int8_gops"], 900);
  EXPECT_EQ(json["limits"]["bf16_gflops"], 450);
  EXPECT_EQ(json["routing"], "rotating");
  const Json& row = json["rows"][0];
  EXPECT_EQ(row["tokens"], 1);
  EXPECT_EQ(row["arithmetic"], "w4a4");
  EXPECT_EQ(row["layer_us"], 1000);
  EXPECT_EQ(row["weight_bytes"], 20'000'000);
  EXPECT_EQ(row["flops"], 90'000'000);
  EXPECT_EQ(row["gb_per_s"], 20);
  EXPECT_EQ(row["gflops"], 90);
}

TEST(MoeBench, RefusesWhatDoesNotFitAndNamesTheNumbers) {
  MoeBenchOptions options = SmallBench();
  const auto there_are = [](int64_t bytes) {
    return AvailableMemory{.resident = MemoryBound{bytes, "here"}, .addresses = {}};
  };
  const int64_t bytes = PlanMoeBench(options, 1).resident_bytes();
  const AvailableMemory needed = there_are(bytes);
  EXPECT_TRUE(CheckMoeBench(options, {}, needed));
  const Status status = CheckMoeBench(options, {}, there_are(bytes - 1));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kMemory);
  EXPECT_NE(status.error().message.find("(8 experts 27.65 kB, "), std::string::npos)
      << status.error().message;
  // Ranks that share a machine share its memory.
  const int64_t of_two = 2 * PlanMoeBench(options, 4).resident_bytes();
  EXPECT_TRUE(CheckMoeBench(options, {.all = 4, .here = 2}, there_are(of_two)));
  EXPECT_FALSE(CheckMoeBench(options, {.all = 4, .here = 2}, there_are(of_two - 1)));
  const Status many = CheckMoeBench(options, {.all = 9, .here = 1}, needed);
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().message, "8 experts for 9 ranks: each needs one at least");
  options.tokens = {1, 0};
  EXPECT_NE(CheckMoeBench(options, {}, needed).error().message.find("--tokens 0"),
            std::string::npos);
}

}  // namespace
}  // namespace halfbyte
