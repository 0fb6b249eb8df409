// GB/s of weight bytes for one token, GFLOP/s (two per multiply-add) for many, per format.
//   linear_bench --benchmark_filter=T64
// The weight is 4096 x 2048, one threads' pool unless the last argument says otherwise.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <random>
#include <vector>

#include "kernels/linear/linear.h"

namespace halfbyte {
namespace {

constexpr int64_t kRows = 4096;
constexpr int64_t kColumns = 2048;

void RunLinear(benchmark::State& state, WeightFormat format, int64_t tokens, int threads) {
  ThreadPool pool(threads);
  const Context context(pool);
  WeightMatrix w{.format = format, .rows = kRows, .columns = kColumns};
  w.scale_block_rows = w.scale_block_columns = 128;
  if (format == WeightFormat::kFp8 || format == WeightFormat::kMxfp4) {
    w.scale_dtype = DType::kF8E8m0;
  }
  std::mt19937 random(1);
  std::vector<std::byte> data(static_cast<size_t>(kRows * w.row_bytes()));
  // Bytes below 0x3c: finite and small in every format.
  for (std::byte& byte : data) byte = static_cast<std::byte>(random() % 0x3c);
  std::vector<std::byte> scales(static_cast<size_t>(w.scale_rows() * w.scale_columns()),
                                std::byte{0x38});
  w.data = data.data();
  w.scales = scales.data();
  const std::vector<float> x(static_cast<size_t>(tokens * kColumns), 0.5f);
  std::vector<float> y(static_cast<size_t>(tokens * kRows));
  for (auto _ : state) {
    Linear(context, {x.data(), tokens, kColumns}, w, {y.data(), tokens, kRows});
    benchmark::ClobberMemory();
  }
  const double runs = static_cast<double>(state.iterations());
  state.counters["weights"] =
      benchmark::Counter(runs * static_cast<double>(w.bytes()), benchmark::Counter::kIsRate);
  state.counters["flops"] = benchmark::Counter(
      runs * 2.0 * static_cast<double>(tokens * kRows * kColumns), benchmark::Counter::kIsRate);
}

// The mix of a hyper-connection site of V4-Flash.
void RunSegments(benchmark::State& state, int64_t tokens, int threads) {
  constexpr int64_t kMixRows = 24;
  constexpr int64_t kStreams = 4 * 4096;
  ThreadPool pool(threads);
  const Context context(pool);
  const std::vector<float> data(static_cast<size_t>(kMixRows * kStreams), 0.25f);
  const WeightMatrix w{.format = WeightFormat::kF32,
                       .rows = kMixRows,
                       .columns = kStreams,
                       .data = reinterpret_cast<const std::byte*>(data.data())};
  const std::vector<float> x(static_cast<size_t>(tokens * kStreams), 0.5f);
  std::vector<float> y(static_cast<size_t>(tokens * kMixRows));
  for (auto _ : state) {
    LinearSegments(context, {x.data(), tokens, kStreams}, w, {y.data(), tokens, kMixRows});
    benchmark::ClobberMemory();
  }
  state.counters["flops"] = benchmark::Counter(
      2.0 * static_cast<double>(state.iterations() * tokens * kMixRows * kStreams),
      benchmark::Counter::kIsRate);
}

void Register() {
  for (const int64_t tokens : {1, 8, 512}) {
    for (const int threads : {1, 2}) {
      const std::string name = fmt::format("LinearSegments/f32/T{}/threads{}", tokens, threads);
      benchmark::RegisterBenchmark(name.c_str(), RunSegments, tokens, threads)
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kF16, WeightFormat::kFp8,
        WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
    for (const int64_t tokens : {1, 2, 4, 8, 64}) {
      for (const int threads : {1, 2}) {
        const std::string name =
            fmt::format("Linear/{}/T{}/threads{}", WeightFormatName(format), tokens, threads);
        benchmark::RegisterBenchmark(name.c_str(), RunLinear, format, tokens, threads)
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
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
