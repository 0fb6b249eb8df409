// Index scores and the whole choice of V4-Flash: 64 heads x 128, top 512, one entry for four
// tokens, at contexts of 1k, 32k and 128k tokens, for one query and for 512 that end there.
//   indexer_bench --benchmark_filter=Scores
// flops: two per multiply-add of a key's dot products; keys: bytes of stored keys that queries see.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <random>
#include <vector>

#include "kernels/indexer/indexer.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

struct Setting {
  int64_t context = 0;
  int64_t queries = 0;
  int threads = 1;
  CpuIsa isa = CpuIsa::kAvx2;
};

struct Instance {
  Indexer indexer{.heads = 64, .rate = 4, .top_k = 512, .row = {IndexFormat::kMxfp4, 128}};
  std::vector<float> q, weights;
  ShuffledPages pages;
  IndexerSequence sequence;
  int64_t entries;

  explicit Instance(const Setting& s)
      : q(RandomNormal(s.queries * 64 * 128, 1)),
        weights(RandomNormal(s.queries * 64, 2)),
        pages(s.context / 4, 64, indexer.row.bytes(), 3),
        entries(s.context / 4) {
    ThreadPool pool(1);
    RoundIndexQueries(Context(pool), indexer.row, {q.data(), s.queries, 64 * 128});
    const std::vector<float> keys = RandomNormal(entries * 128, 4);
    for (int64_t e = 0; e < entries; ++e) {
      EncodeIndexRow(indexer.row, keys.data() + e * 128, pages.view.row(e));
    }
    static_cast<TokenSpan&>(sequence) = {
        .first = 0, .count = s.queries, .position = s.context - s.queries};
    sequence.keys = pages.view;
  }
};

template <class Body>
void Run(benchmark::State& state, const Setting& s, const Body& body) {
  const Instance instance(s);
  ThreadPool pool(s.threads);
  const Context context(pool, s.isa);
  for (auto _ : state) body(context, instance);
  const double scored = static_cast<double>(state.iterations() * s.queries * instance.entries);
  state.counters["flops"] = benchmark::Counter(scored * 2 * 64 * 128, benchmark::Counter::kIsRate);
  state.counters["keys"] = benchmark::Counter(
      scored * static_cast<double>(instance.indexer.row.bytes()), benchmark::Counter::kIsRate);
}

void Scores(benchmark::State& state, const Setting& s) {
  const int64_t columns = (s.context / 4 + kScoreTile - 1) / kScoreTile * kScoreTile;
  std::vector<float> scores(static_cast<size_t>(s.queries * columns));
  Run(state, s, [&](const Context& context, const Instance& i) {
    IndexScores(context, i.indexer, {&i.sequence, 1}, {i.q.data(), s.queries, 64 * 128},
                {i.weights.data(), s.queries, 64}, {scores.data(), s.queries, columns});
    benchmark::ClobberMemory();
  });
}

void Select(benchmark::State& state, const Setting& s) {
  std::vector<int32_t> indices(static_cast<size_t>(s.queries * 512));
  std::vector<int32_t> counts(static_cast<size_t>(s.queries));
  Run(state, s, [&](const Context& context, const Instance& i) {
    SelectEntries(context, i.indexer, {&i.sequence, 1}, {i.q.data(), s.queries, 64 * 128},
                  {i.weights.data(), s.queries, 64}, {indices.data(), s.queries, 512},
                  counts.data());
    benchmark::ClobberMemory();
  });
}

// What queries go through before (kernels/kv_row).
void Round(benchmark::State& state, const Setting& s) {
  const std::vector<float> queries = RandomNormal(s.queries * 64 * 128, 1, 1, Rounding::kBf16);
  std::vector<float> q = queries;
  ThreadPool pool(s.threads);
  for (auto _ : state) {
    q = queries;
    RoundIndexQueries(Context(pool, s.isa), {IndexFormat::kMxfp4, 128},
                      {q.data(), s.queries, 64 * 128});
    benchmark::ClobberMemory();
  }
}

void Register() {
  for (const int64_t queries : {1, 512}) {
    for (const int threads : {1, 2}) {
      benchmark::RegisterBenchmark(fmt::format("Round/Q{}/threads{}", queries, threads).c_str(),
                                   Round, Setting{0, queries, threads})
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
  using Bench = void (*)(benchmark::State&, const Setting&);
  for (const auto& [name, run] :
       {std::pair<const char*, Bench>{"Scores", Scores}, {"Select", Select}}) {
    for (const int64_t context : {1024, 32 * 1024, 128 * 1024}) {
      for (const int64_t queries : {1, 512}) {
        for (const CpuIsa isa : SupportedCpuIsas()) {
          if (isa == CpuIsa::kScalar) continue;
          for (const int threads : {1, 2}) {
            const std::string title = fmt::format("{}/{}k/Q{}/{}/threads{}", name, context / 1024,
                                                  queries, CpuIsaName(isa), threads);
            benchmark::RegisterBenchmark(title.c_str(), run,
                                         Setting{context, queries, threads, isa})
                ->UseRealTime()
                ->Unit(benchmark::kMicrosecond);
          }
        }
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
