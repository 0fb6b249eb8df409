// Attention of V4-Flash: 64 heads x 512 over a window of 128 and, in C4 layers, 512 chosen entries,
// in C128 layers one entry for 128 tokens; for one query and for 512 that end at a context of 1k,
// 32k or 128k tokens.
//   attention_bench --benchmark_filter=C128
// flops: two per multiply-add of scores and values; rows: bytes of stored rows that queries see.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

constexpr int64_t kHeads = 64;
constexpr int64_t kDim = 512;
constexpr int64_t kTopK = 512;
constexpr KvRow kRow{KvFormat::kFp8, kDim, 64};

struct Setting {
  int64_t rate = 0;
  int64_t context = 0;
  int64_t queries = 0;
  int threads = 1;
  CpuIsa isa = CpuIsa::kAvx2;
};

void FillRows(const ShuffledPages& pages, int64_t begin, int64_t end, uint32_t seed) {
  const std::vector<float> values = RandomNormal(64 * kDim, seed);
  for (int64_t i = begin; i < end; ++i) {
    EncodeKvRow(kRow, values.data() + i % 64 * kDim, pages.view.row(i));
  }
}

struct Instance {
  std::vector<float> sinks = RandomNormal(kHeads, 1);
  std::vector<float> q;
  ShuffledPages window, entries;
  AttentionShape shape;
  AttentionSequence sequence;
  std::vector<int32_t> indices, counts;
  EntrySelection selection;
  int64_t keys = 0;  // of all queries

  explicit Instance(const Setting& s)
      : q(RandomNormal(s.queries * kHeads * kDim, 2, 1, Rounding::kBf16)),
        window(s.context, 64, kRow.bytes(), 3),
        entries(s.context / s.rate, 256 / s.rate, kRow.bytes(), 4) {
    FillRows(window, std::max<int64_t>(0, s.context - s.queries - 128), s.context, 5);
    FillRows(entries, 0, s.context / s.rate, 6);
    shape = {.heads = kHeads, .rate = s.rate, .row = kRow, .sinks = sinks.data()};
    static_cast<TokenSpan&>(sequence) = {
        .first = 0, .count = s.queries, .position = s.context - s.queries};
    sequence.window = window.view;
    sequence.compressed = entries.view;
    for (int64_t i = 0; i < s.queries; ++i) {
      const int64_t visible = VisibleEntries(sequence.position + i, s.rate);
      keys += std::min<int64_t>(128, sequence.position + i + 1);
      keys += s.rate == 4 ? std::min(visible, kTopK) : visible;
    }
    if (s.rate == 4 && s.context / s.rate > kTopK) Choose(s);
  }

  void Choose(const Setting& s) {
    std::mt19937 random(7);
    indices.assign(static_cast<size_t>(s.queries * kTopK), 0);
    counts.assign(static_cast<size_t>(s.queries), kTopK);
    for (int64_t i = 0; i < s.queries; ++i) {
      std::vector<int32_t> all(static_cast<size_t>(VisibleEntries(sequence.position + i, s.rate)));
      std::iota(all.begin(), all.end(), 0);
      std::ranges::sample(all, indices.begin() + i * kTopK, kTopK, random);
    }
    selection = {indices.data(), counts.data(), kTopK};
  }
};

void Run(benchmark::State& state, const Setting& s) {
  const Instance instance(s);
  std::vector<float> out(instance.q.size());
  ThreadPool pool(s.threads);
  for (auto _ : state) {
    Attention(Context(pool, s.isa), instance.shape, {&instance.sequence, 1}, instance.selection,
              {instance.q.data(), s.queries, kHeads * kDim}, Rounding::kBf16,
              {out.data(), s.queries, kHeads * kDim});
    benchmark::ClobberMemory();
  }
  const double keys = static_cast<double>(state.iterations() * instance.keys);
  state.counters["flops"] =
      benchmark::Counter(keys * 4 * kHeads * kDim, benchmark::Counter::kIsRate);
  state.counters["rows"] =
      benchmark::Counter(keys * static_cast<double>(kRow.bytes()), benchmark::Counter::kIsRate);
}

void Register() {
  for (const int64_t rate : {4, 128}) {
    for (const int64_t context : {1024, 32 * 1024, 128 * 1024}) {
      for (const int64_t queries : {1, 512}) {
        for (const CpuIsa isa : SupportedCpuIsas()) {
          if (isa == CpuIsa::kScalar) continue;
          for (const int threads : {1, 2}) {
            const std::string title = fmt::format("C{}/{}k/Q{}/{}/threads{}", rate, context / 1024,
                                                  queries, CpuIsaName(isa), threads);
            benchmark::RegisterBenchmark(title.c_str(), Run,
                                         Setting{rate, context, queries, threads, isa})
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
