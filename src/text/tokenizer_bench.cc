// Tokenizer throughput on one thread, in bytes of text per second.
//   tokenizer_bench            the text of the repository's own documents and sources
//   HALFBYTE_BENCH_TEXT=FILE tokenizer_bench
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "text/tokenizer.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

const Tokenizer& TinyTokenizer() {
  static const Tokenizer tokenizer = [] {
    auto loaded =
        Tokenizer::Load(fs::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4/tokenizer.json");
    HB_CHECK(loaded.has_value(), "{}", loaded.error().message);
    return *std::move(loaded);
  }();
  return tokenizer;
}

// HALFBYTE_BENCH_TEXT, else 4 MB of source code.
const std::string& Text() {
  static const std::string text = [] {
    if (const char* path = std::getenv("HALFBYTE_BENCH_TEXT")) {
      auto read = ReadTextFile(path);
      HB_CHECK(read.has_value(), "{}", read.error().message);
      return *read;
    }
    std::vector<fs::path> paths;
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(HALFBYTE_SOURCE_DIR) / "src")) {
      if (entry.path().extension() == ".cc" || entry.path().extension() == ".h") {
        paths.push_back(entry.path());
      }
    }
    std::sort(paths.begin(), paths.end());
    std::string all;
    for (const fs::path& path : paths) {
      if (auto read = ReadTextFile(path)) all += *read;
    }
    HB_CHECK(!all.empty(), "no sources under {}", HALFBYTE_SOURCE_DIR);
    std::string repeated;
    while (repeated.size() < size_t{4} << 20) repeated += all;
    return repeated;
  }();
  return text;
}

void EncodeLongText(benchmark::State& state) {
  for (auto _ : state) {
    auto ids = TinyTokenizer().Encode(Text(), ControlTokens::kAsText);
    HB_CHECK(ids.has_value(), "{}", ids.error().message);
    benchmark::DoNotOptimize(ids->data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * Text().size()));
}
BENCHMARK(EncodeLongText)->Unit(benchmark::kMillisecond);

// A prompt of 10 KB, as a server sees it: cost per call included.
void EncodePrompt(benchmark::State& state) {
  const std::string_view prompt = std::string_view(Text()).substr(0, 10'000);
  for (auto _ : state) {
    auto ids = TinyTokenizer().Encode(prompt, ControlTokens::kRecognized);
    benchmark::DoNotOptimize(ids->data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * prompt.size()));
}
BENCHMARK(EncodePrompt)->Unit(benchmark::kMicrosecond);

// One pretoken of a megabyte: must not be quadratic.
void EncodeOneLongWord(benchmark::State& state) {
  const std::string word(size_t{1} << 20, 'a');
  for (auto _ : state) {
    auto ids = TinyTokenizer().Encode(word, ControlTokens::kAsText);
    HB_CHECK(ids.has_value(), "{}", ids.error().message);
    benchmark::DoNotOptimize(ids->data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * word.size()));
}
BENCHMARK(EncodeOneLongWord)->Unit(benchmark::kMillisecond);

void Decode(benchmark::State& state) {
  const auto ids = TinyTokenizer().Encode(Text(), ControlTokens::kAsText);
  for (auto _ : state) {
    auto text = TinyTokenizer().Decode(*ids, false);
    benchmark::DoNotOptimize(text->data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * Text().size()));
}
BENCHMARK(Decode)->Unit(benchmark::kMillisecond);

void LoadTokenizer(benchmark::State& state) {
  const auto json =
      ReadTextFile(fs::path(HALFBYTE_SOURCE_DIR) / "models/tiny-v4-nvfp4/tokenizer.json");
  for (auto _ : state) {
    auto tokenizer = Tokenizer::FromJson(*json, "tokenizer.json");
    benchmark::DoNotOptimize(tokenizer->vocab_size());
  }
}
BENCHMARK(LoadTokenizer)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace halfbyte

BENCHMARK_MAIN();
