// Tokens per second of the whole bundled model: prefill of one prompt, and decode of one sequence
// and of several together. HALFBYTE_BENCH_MODEL names another model directory.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/transformer.h"

namespace halfbyte {
namespace {

constexpr int64_t kPrompt = 512;

std::filesystem::path ModelDirectory() {
  const char* directory = std::getenv("HALFBYTE_BENCH_MODEL");
  return directory != nullptr ? std::filesystem::path(directory)
                              : std::filesystem::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4";
}

// One model per thread count, loaded once.
Transformer& Model(int threads) {
  struct Loaded {
    std::unique_ptr<ThreadPool> pool;
    std::unique_ptr<Transformer> model;
  };
  static std::map<int, Loaded> models;
  Loaded& loaded = models[threads];
  if (!loaded.model) {
    loaded.pool = std::make_unique<ThreadPool>(threads);
    auto model =
        Transformer::Load(ModelDirectory(), {.batch_tokens = kPrompt}, Context(*loaded.pool));
    if (!model) {
      fmt::print(stderr, "{}\n", model.error().message);
      std::exit(1);
    }
    loaded.model = std::move(*model);
  }
  return *loaded.model;
}

std::vector<int32_t> Prompt(const Transformer& model) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < kPrompt; ++i) {
    tokens.push_back(static_cast<int32_t>((i * 7919 + 11) % model.config().vocab_size));
  }
  return tokens;
}

// One step of kPrompt tokens, of one prompt or of several short ones.
void Prefill(benchmark::State& state) {
  Transformer& model = Model(static_cast<int>(state.range(0)));
  const int64_t count = state.range(1);
  const std::vector<int32_t> tokens = Prompt(model);
  const auto prompt = std::span(tokens).first(static_cast<size_t>(kPrompt / count));
  for (auto _ : state) {
    const auto cache =
        *model.NewCache({.sequences = count, .context_tokens = kPrompt + count * 128});
    std::vector<Sequence> sequences;
    std::vector<BatchItem> batch;
    for (int64_t i = 0; i < count; ++i) sequences.push_back(*cache->NewSequence());
    for (Sequence& sequence : sequences) batch.push_back({&sequence, prompt});
    benchmark::DoNotOptimize(*model.Forward(*cache, batch));
  }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(state.iterations() * kPrompt),
                                                  benchmark::Counter::kIsRate);
}
BENCHMARK(Prefill)
    ->ArgNames({"threads", "prompts"})
    ->ArgsProduct({{1, 2}, {1, 8}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Each iteration adds one token to each sequence, which start with the whole prompt.
void Decode(benchmark::State& state) {
  Transformer& model = Model(static_cast<int>(state.range(0)));
  const int64_t count = state.range(1);
  const std::vector<int32_t> prompt = Prompt(model);
  const int64_t context = model.config().max_position_embeddings;
  std::unique_ptr<KvCache> cache;
  std::vector<Sequence> sequences;
  const auto restart = [&] {
    sequences.clear();
    cache = *model.NewCache({.sequences = count, .context_tokens = count * context});
    for (int64_t i = 0; i < count; ++i) {
      sequences.push_back(*cache->NewSequence());
      const BatchItem item{&sequences.back(), prompt, LogitsWanted::kNone};
      if (!model.Forward(*cache, {&item, 1})) std::exit(1);
    }
  };
  restart();
  const int32_t token = 17;
  for (auto _ : state) {
    if (sequences[0].position() == context) {
      state.PauseTiming();
      restart();
      state.ResumeTiming();
    }
    std::vector<BatchItem> batch;
    for (Sequence& sequence : sequences) batch.push_back({&sequence, {&token, 1}});
    benchmark::DoNotOptimize(*model.Forward(*cache, batch));
  }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(state.iterations() * count),
                                                  benchmark::Counter::kIsRate);
}
BENCHMARK(Decode)
    ->ArgNames({"threads", "sequences"})
    ->Args({1, 1})
    ->Args({1, 4})
    ->Args({2, 1})
    ->Args({2, 8})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace halfbyte

BENCHMARK_MAIN();
