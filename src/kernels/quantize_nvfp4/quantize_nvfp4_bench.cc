// GB/s of one thread: of the floats read (quantize, amax) or of codes and scales read (dequantize;
// `floats` counts the floats written), beside a plain read of the same memory.
//   quantize_nvfp4_bench --benchmark_filter=.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/quantize_nvfp4/quantize_nvfp4.h"

namespace halfbyte {
namespace {

constexpr int64_t kRows = 8192;
constexpr int64_t kK = 8192;  // 128 MiB of bf16: larger than any cache

FloatRows Source(DType dtype) {
  static const std::vector<float> full = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> pattern(1 << 16);
    for (float& x : pattern) x = normal(random);
    std::vector<float> x(static_cast<size_t>(kRows * kK));
    for (size_t i = 0; i < x.size(); ++i) x[i] = pattern[i % pattern.size()];
    return x;
  }();
  static const std::vector<Bf16> half = [] {
    std::vector<Bf16> x(full.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = ToBf16(full[i]);
    return x;
  }();
  return dtype == DType::kF32 ? FloatRows::Of(MatrixView<const float>{full.data(), kRows, kK})
                              : FloatRows::Of(MatrixView<const Bf16>{half.data(), kRows, kK});
}

void Report(benchmark::State& state, int64_t bytes) {
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(bytes) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

// The best a quantizer could do if it had nothing to compute and nothing to write.
void BM_Read(benchmark::State& state) {
  const FloatRows source = Source(DType::kBf16);
  const auto bytes = static_cast<size_t>(source.rows * source.row_bytes);
  for (auto _ : state) {
    const auto* words = reinterpret_cast<const uint64_t*>(source.data);
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / sizeof(sum); ++i) sum += words[i];  // vectorized
    benchmark::DoNotOptimize(sum);
  }
  Report(state, static_cast<int64_t>(bytes));
}

void BM_Quantize(benchmark::State& state, CpuIsa isa, DType dtype, Nvfp4Rule rule) {
  ThreadPool pool(1);
  const Context context(pool, isa);
  const FloatRows source = Source(dtype);
  const GlobalScale global_scale = GlobalScaleFor(0.1f, rule);
  Nvfp4Matrix matrix(source.rows, source.k, global_scale);
  for (auto _ : state) {
    auto stats = QuantizeNvfp4(context, source, global_scale, rule, Nvfp4Output::Of(matrix));
    benchmark::DoNotOptimize(stats);
  }
  Report(state, source.rows * source.row_bytes);
}

void BM_Amax(benchmark::State& state, CpuIsa isa, DType dtype) {
  ThreadPool pool(1);
  const FloatRows source = Source(dtype);
  for (auto _ : state) benchmark::DoNotOptimize(AmaxOf(Context(pool, isa), source));
  Report(state, source.rows * source.row_bytes);
}

template <class T>
void BM_Dequantize(benchmark::State& state, CpuIsa isa) {
  ThreadPool pool(1);
  const Context context(pool, isa);
  const FloatRows source = Source(DType::kBf16);
  Nvfp4Matrix matrix(source.rows, source.k, GlobalScale::FromAmax(0.1f));
  if (!QuantizeNvfp4(context, source, matrix.view().global_scale, Nvfp4Rule::kAmaxTo6,
                     Nvfp4Output::Of(matrix))) {
    state.SkipWithError("not quantized");
  }
  std::vector<T> out(static_cast<size_t>(source.rows * source.k));
  for (auto _ : state) {
    DequantizeNvfp4(context, matrix.view(), out.data());
    benchmark::ClobberMemory();
  }
  Report(state, source.rows * (source.k / 2 + source.k / kNvfp4Block));
  state.counters["floats GB/s"] =
      benchmark::Counter(static_cast<double>(out.size() * sizeof(T)) * 1e-9,
                         benchmark::Counter::kIsIterationInvariantRate);
}

void RegisterAll() {
  benchmark::RegisterBenchmark("read", BM_Read);
  for (const CpuIsa isa : SupportedCpuIsas()) {
    const std::string name(CpuIsaName(isa));
    for (const DType dtype : {DType::kBf16, DType::kF32}) {
      const std::string type(DTypeName(dtype));
      benchmark::RegisterBenchmark(("quantize/" + type + "/" + name).c_str(), BM_Quantize, isa,
                                   dtype, Nvfp4Rule::kAmaxTo6);
      benchmark::RegisterBenchmark(("quantize_4_over_6/" + type + "/" + name).c_str(), BM_Quantize,
                                   isa, dtype, Nvfp4Rule::k4Over6);
      benchmark::RegisterBenchmark(("amax/" + type + "/" + name).c_str(), BM_Amax, isa, dtype);
    }
    benchmark::RegisterBenchmark(("dequantize/BF16/" + name).c_str(), BM_Dequantize<Bf16>, isa);
    benchmark::RegisterBenchmark(("dequantize/F32/" + name).c_str(), BM_Dequantize<float>, isa);
  }
}

}  // namespace
}  // namespace halfbyte

int main(int argc, char** argv) {
  halfbyte::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
