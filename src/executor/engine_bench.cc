// Throughput of the engine without HTTP on the bundled model: N requests at once, each a prompt of
// 16 tokens and 128 drawn ones, from the first Submit to the end of the last one. tokens/s counts
// drawn tokens; us_cpu is processor time of the whole process per drawn token. HALFBYTE_BENCH_MODEL
// names another model directory.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <semaphore>
#include <vector>

#include "engine/engine.h"
#include "engine/mailbox.h"
#include "executor/model_executor.h"

namespace halfbyte {
namespace {

constexpr int64_t kPromptTokens = 16;
constexpr int64_t kDrawnTokens = 128;
constexpr int64_t kMostRequests = 32;

std::filesystem::path ModelDirectory() {
  const char* directory = std::getenv("HALFBYTE_BENCH_MODEL");
  return directory != nullptr ? std::filesystem::path(directory)
                              : std::filesystem::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4";
}

template <class T>
T OrExit(Result<T> result) {
  if (!result) {
    fmt::print(stderr, "{}\n", result.error().message);
    std::exit(1);
  }
  return *std::move(result);
}

struct FinishedRequests : EngineObserver {
  void OnFinished(const RequestReport&) override { count.release(); }
  std::counting_semaphore<> count{0};
};

struct Loaded {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Transformer> model;
  FinishedRequests finished;
  std::unique_ptr<Engine> engine;
};

// One engine per thread count, started once.
Loaded& EngineWith(int threads) {
  static std::map<int, Loaded> engines;
  Loaded& loaded = engines[threads];
  if (loaded.engine) return loaded;
  loaded.pool = std::make_unique<ThreadPool>(threads);
  loaded.model = OrExit(Transformer::Load(ModelDirectory(), {}, Context(*loaded.pool)));
  EngineOptions options{.scheduler = {.max_sequences = kMostRequests, .max_batch_tokens = 512},
                        .pool = loaded.pool.get()};
  auto executor = OrExit(ModelExecutor::Create(*loaded.model, {.max_sequences = kMostRequests}));
  loaded.engine = OrExit(Engine::Start(std::move(executor), nullptr, options, &loaded.finished));
  return loaded;
}

Request MakeRequest(uint64_t seed, int64_t vocabulary) {
  Request request;
  for (int64_t i = 0; i < kPromptTokens; ++i) {
    request.prompt.push_back(
        static_cast<int32_t>((static_cast<int64_t>(seed) * 31 + i * 7919 + 11) % vocabulary));
  }
  request.max_tokens = kDrawnTokens;
  request.sampling.seed = seed;
  request.stop.ignore_eos = true;
  request.output.kind = OutputFormat::Kind::kIds;
  request.mailbox = std::make_shared<Mailbox>();
  return request;
}

double CpuSeconds() {
  timespec time;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void Throughput(benchmark::State& state) {
  Loaded& loaded = EngineWith(static_cast<int>(state.range(0)));
  const int64_t requests = state.range(1);
  uint64_t seed = 0;
  const double cpu_before = CpuSeconds();
  for (auto _ : state) {
    for (int64_t i = 0; i < requests; ++i) {
      if (!loaded.engine->Submit(MakeRequest(++seed, loaded.model->config().vocab_size))) {
        std::exit(1);
      }
    }
    for (int64_t i = 0; i < requests; ++i) loaded.finished.count.acquire();
  }
  const auto tokens = static_cast<double>(state.iterations() * requests * kDrawnTokens);
  state.counters["tokens/s"] = benchmark::Counter(tokens, benchmark::Counter::kIsRate);
  state.counters["us_cpu"] = 1e6 * (CpuSeconds() - cpu_before) / tokens;
}
BENCHMARK(Throughput)
    ->ArgNames({"threads", "requests"})
    ->ArgsProduct({{1, 2}, {1, 2, 4, 8, 16, 32}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace halfbyte

BENCHMARK_MAIN();
