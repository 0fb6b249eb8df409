// Time to open a safetensors file and check its header, by number of tensors. The file is sparse.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"

namespace halfbyte {
namespace {

std::filesystem::path MakeFile(int64_t tensors) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     fmt::format("halfbyte_open_bench_{}.safetensors", tensors);
  std::vector<TensorSpec> specs;
  for (int64_t i = 0; i < tensors; ++i) {
    specs.push_back(
        {fmt::format("layers.{}.ffn.experts.{}.w1.weight", i / 256, i % 256), DType::kI8, {8, 8}});
  }
  const std::vector<std::byte> zeros(64);
  auto writer = SafetensorsWriter::Create(path, specs);
  if (!writer) std::exit(1);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!(*writer)->Write(i, 0, zeros)) std::exit(1);
  }
  if (!(*writer)->Finish()) std::exit(1);
  return path;
}

void OpenSafetensors(benchmark::State& state) {
  const std::filesystem::path path = MakeFile(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(*SafetensorsFile::Open(path));
  std::filesystem::remove(path);
}
BENCHMARK(OpenSafetensors)
    ->ArgName("tensors")
    ->Arg(100)
    ->Arg(1500)
    ->Arg(50000)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace halfbyte

BENCHMARK_MAIN();
