// One MoE layer: decode (one token) in GB/s of the weights it touches, prefill in GFLOP/s (two per
// multiply-add). Random experts of a quarter of V4-Flash's width in each direction.
//   moe_bench --benchmark_filter=nvfp4/w4a16
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <random>
#include <vector>

#include "moe/moe_layer.h"

namespace halfbyte {
namespace {

constexpr int64_t kHidden = 1024;
constexpr int64_t kIntermediate = 512;
constexpr int32_t kExperts = 64;
constexpr int64_t kTopK = 6;

struct Weights {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  std::vector<ExpertWeights> experts;

  Weights() {
    const int64_t elements = kHidden * kIntermediate;
    codes.resize(static_cast<size_t>(3 * kExperts * elements / 2));
    scales.assign(static_cast<size_t>(3 * kExperts * elements / 16), std::byte{0x38});
    std::mt19937 random(1);
    for (std::byte& byte : codes) byte = static_cast<std::byte>(random());
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto matrix = [&](int64_t index, int64_t rows, int64_t columns) {
        return WeightMatrix{.format = WeightFormat::kNvfp4,
                            .rows = rows,
                            .columns = columns,
                            .data = codes.data() + (3 * e + index) * elements / 2,
                            .scales = scales.data() + (3 * e + index) * elements / 16,
                            .global_scale = GlobalScale(0.01f)};
      };
      experts.push_back({matrix(0, kIntermediate, kHidden), matrix(1, kIntermediate, kHidden),
                         matrix(2, kHidden, kIntermediate)});
    }
  }
};

void RunLayer(benchmark::State& state, Arithmetic arithmetic, int64_t tokens) {
  static const Weights weights;
  ThreadPool pool;
  const MoeParams params{.hidden = kHidden,
                         .intermediate = kIntermediate,
                         .arithmetic = arithmetic,
                         .swiglu = {.limit = 10}};
  const auto layer =
      MoeLayer::Create(params, ExpertPlacement::Single(kExperts), weights.experts, "bench");
  MoeWorkspace workspace({512, kTopK, kExperts, kHidden, kIntermediate});
  const std::vector<float> hidden(static_cast<size_t>(tokens * kHidden), 0.5f);
  std::vector<float> out(hidden.size());
  std::vector<int32_t> ids;
  for (int64_t s = 0; s < tokens * kTopK; ++s)
    ids.push_back(static_cast<int32_t>(s * 7 % kExperts));
  const std::vector<float> routing_weights(ids.size(), 0.25f);
  for (auto _ : state) {
    layer->Run(Context(pool), {hidden.data(), tokens, kHidden},
               Routing{{ids.data(), tokens, kTopK}, {routing_weights.data(), tokens, kTopK}},
               {out.data(), tokens, kHidden}, workspace);
    benchmark::ClobberMemory();
  }
  const auto runs = static_cast<double>(state.iterations());
  const int64_t experts = std::min<int64_t>(kExperts, tokens * kTopK);
  const int64_t elements = 3 * kHidden * kIntermediate;
  state.counters["weights"] = benchmark::Counter(
      runs * static_cast<double>(experts * elements * 9 / 16), benchmark::Counter::kIsRate);
  state.counters["flops"] = benchmark::Counter(
      runs * 2 * static_cast<double>(tokens * kTopK * elements), benchmark::Counter::kIsRate);
}

void Register() {
  for (const Arithmetic arithmetic : {Arithmetic::kW4a16, Arithmetic::kW4a4, Arithmetic::kW4a8}) {
    for (const int64_t tokens : {1, 8, 64, 512}) {
      benchmark::RegisterBenchmark(
          fmt::format("MoeLayer/nvfp4/{}/T{}", ArithmeticName(arithmetic), tokens).c_str(),
          RunLayer, arithmetic, tokens)
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace halfbyte

int main(int argc, char** argv) {
  halfbyte::Register();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
