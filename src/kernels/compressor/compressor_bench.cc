// Compression of one sequence's tokens in the layers of V4-Flash: entries of C4 and C128, and the
// indexer's keys. T1 is a token that completes an entry. What was stored before does not matter.
//   compressor_bench --benchmark_filter=C128
// rows: bytes of the products (kv and score, fp32) that are compressed.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <vector>

#include "kernels/compressor/compressor.h"
#include "kernels/rope/rope.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

struct Kind {
  const char* name;
  int64_t rate;
  bool overlap;
  int64_t dim;
};

constexpr Kind kKinds[] = {
    {"C4", 4, true, 512}, {"C4Index", 4, true, 128}, {"C128", 128, false, 512}};
constexpr int64_t kRopeDim = 64;

template <class Row>
void Run(benchmark::State& state, const Kind& kind, const Row& row, int64_t tokens, int threads) {
  Compressor compressor{.rate = kind.rate, .overlap = kind.overlap, .dim = kind.dim};
  const int64_t channels = compressor.channels();
  const std::vector<float> kv = RandomNormal(tokens * channels, 1);
  const std::vector<float> score = RandomNormal(tokens * channels, 2);
  const std::vector<float> bias = RandomNormal(kind.rate * channels, 3);
  const std::vector<float> norm = RandomNormal(kind.dim, 4);
  const std::vector<double> frequencies = RopeFrequencies(160000, kRopeDim, Yarn{});
  compressor.position_bias = bias.data();
  compressor.norm = norm.data();
  compressor.rope_frequencies = frequencies;
  std::vector<float> ring(static_cast<size_t>(compressor.group_rows() * 2 * channels), 0.5f);
  const int64_t position = tokens == 1 ? 2 * kind.rate - 1 : 2 * kind.rate;
  const ShuffledPages pages((position + tokens) / kind.rate, 64, row.bytes(), 5);
  CompressorSequence sequence;
  static_cast<TokenSpan&>(sequence) = {.first = 0, .count = tokens, .position = position};
  sequence.ring = {ring.data(), compressor.group_rows()};
  sequence.entries = pages.view;
  ThreadPool pool(threads);
  for (auto _ : state) {
    Compress(Context(pool), compressor, {&sequence, 1}, {kv.data(), tokens, channels},
             {score.data(), tokens, channels}, Rounding::kBf16, row);
    benchmark::ClobberMemory();
  }
  state.counters["rows"] = benchmark::Counter(
      static_cast<double>(state.iterations() * tokens * channels * 8), benchmark::Counter::kIsRate);
}

void RunKind(benchmark::State& state, const Kind& kind, int64_t tokens, int threads) {
  if (kind.dim == 128) {
    Run(state, kind, IndexRow{IndexFormat::kMxfp4, kind.dim}, tokens, threads);
  } else {
    Run(state, kind, KvRow{KvFormat::kFp8, kind.dim, kRopeDim}, tokens, threads);
  }
}

void Register() {
  for (const Kind& kind : kKinds) {
    for (const int64_t tokens : {1, 512, 2048}) {
      for (const int threads : {1, 2}) {
        const std::string name = fmt::format("{}/T{}/threads{}", kind.name, tokens, threads);
        benchmark::RegisterBenchmark(name.c_str(), RunKind, kind, tokens, threads)
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
