// The model's linears, 4096 x 4096 in bf16 and in FP8 with scales of 128 x 128: packed
// (kernels/packed_linear) beside computed from the stored bytes (kernels/linear).
//   Decode  one token; each product is with a matrix that comes from memory, and alternates with
//           reading the next one. `GB/s` of the bytes at hand, `read GB/s`, `of read`.
//   Gemm    n tokens times one matrix, cached. `GFLOP/s`.
//   Pack    `GB/s` of stored bytes.
//   model_linears_bench --benchmark_filter=Decode
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "base/check.h"
#include "device/zeroed_memory.h"
#include "kernels/linear/linear.h"
#include "kernels/packed_linear/packed_linear.h"
#include "measure/machine_limits.h"

namespace halfbyte {
namespace {

constexpr int64_t kSize = 4096;
constexpr int64_t kScaleBlock = 128;
constexpr int64_t kBytesOfAll = 400 << 20;  // of each form: far beyond the caches

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Copies of one matrix, stored and packed, each in memory of its own.
class Matrices {
 public:
  static const Matrices& Get(WeightFormat format) {
    static const Matrices bf16(WeightFormat::kBf16), fp8(WeightFormat::kFp8);
    return format == WeightFormat::kBf16 ? bf16 : fp8;
  }

  int64_t count() const { return count_; }
  WeightMatrix stored(int64_t i) const {
    WeightMatrix w = matrix_;
    w.data = stored_.data() + i % count_ * kSize * w.row_bytes();
    return w;
  }
  PackedMatrix packed(int64_t i) const {
    PackedMatrix w = first_packed_;
    w.data += i % count_ * w.bytes();
    return w;
  }
  MemorySpan memory(int64_t i, bool packed) const {
    if (!packed) return {stored(i).data, static_cast<size_t>(kSize * matrix_.row_bytes())};
    const PackedMatrix w = this->packed(i);
    return {reinterpret_cast<const std::byte*>(w.data), static_cast<size_t>(w.bytes())};
  }

 private:
  explicit Matrices(WeightFormat format)
      : scales_(static_cast<size_t>(kSize * kSize / kScaleBlock / kScaleBlock), 0x1p-6f) {
    matrix_ = {.format = format,
               .rows = kSize,
               .columns = kSize,
               .scales = reinterpret_cast<const std::byte*>(scales_.data()),
               .scale_dtype = DType::kF32,
               .scale_block_rows = kScaleBlock,
               .scale_block_columns = kScaleBlock};
    const int64_t bytes = kSize * matrix_.row_bytes();
    count_ = kBytesOfAll / bytes;
    stored_ = *ZeroedMemory::Allocate(count_ * bytes, "bench", Pages::kHuge);
    std::mt19937 random(1);
    // Small numbers in both formats.
    for (int64_t i = 0; i < bytes; ++i) stored_.data()[i] = static_cast<std::byte>(random() % 0x3c);
    for (int64_t i = 1; i < count_; ++i) {
      std::memcpy(stored_.data() + i * bytes, stored_.data(), static_cast<size_t>(bytes));
    }
    const int64_t packed_bytes = PackedBytes(matrix_);
    packed_ = *ZeroedMemory::Allocate(count_ * packed_bytes, "bench", Pages::kHuge);
    ThreadPool pool;
    for (int64_t i = count_ - 1; i >= 0; --i) {
      auto* to = reinterpret_cast<uint8_t*>(packed_.data()) + i * packed_bytes;
      first_packed_ = **PackMatrix(pool, stored(i), to, "bench");
    }
  }

  std::vector<float> scales_;
  WeightMatrix matrix_;
  int64_t count_ = 0;
  ZeroedMemory stored_, packed_;
  PackedMatrix first_packed_;
};

struct Case {
  WeightFormat format;
  bool packed;
  CpuIsa isa;
  int threads;
};

// y = x W^T for matrix i and `tokens` rows of x.
struct Product {
  const Matrices& matrices;
  bool packed;
  Context context;
  int64_t tokens;
  std::vector<float> x, y;
  std::vector<std::byte> operands;

  Product(const Case& c, ThreadPool& pool, int64_t tokens_in)
      : matrices(Matrices::Get(c.format)),
        packed(c.packed),
        context(pool, c.isa),
        tokens(tokens_in),
        x(static_cast<size_t>(tokens * kSize), 0.5f),
        y(x.size()),
        operands(static_cast<size_t>(tokens * MaxOperandRowBytes(kSize))) {}

  void Run(int64_t i) {
    const MatrixView<const float> rows{x.data(), tokens, kSize};
    const MatrixView<float> out{y.data(), tokens, kSize};
    if (packed) {
      const PackedMatrix w = matrices.packed(i);
      const PackedProduct product{&w, out};
      PackedLinear(context, rows, /*groups=*/1, {&product, 1}, operands.data());
    } else {
      Linear(context, rows, matrices.stored(i), out);
    }
    benchmark::ClobberMemory();
  }
};

void Decode(benchmark::State& state, const Case& c) {
  ThreadPool pool(c.threads);
  Product product(c, pool, /*tokens=*/1);
  double read_seconds = 0, seconds = 0, bytes = 0;
  int64_t i = 0;
  for (auto _ : state) {
    const MemorySpan read = product.matrices.memory(i++, c.packed);
    read_seconds += SecondsToRead(product.context, std::span(&read, 1));
    const double start = Seconds();
    product.Run(i++);
    state.SetIterationTime(Seconds() - start);
    seconds += Seconds() - start;
    bytes += static_cast<double>(read.size());
  }
  state.counters["GB/s"] = bytes / seconds / 1e9;
  state.counters["read GB/s"] = bytes / read_seconds / 1e9;
  state.counters["of read"] = read_seconds / seconds;
}

void Gemm(benchmark::State& state, const Case& c, int64_t tokens) {
  ThreadPool pool(c.threads);
  Product product(c, pool, tokens);
  const double start = Seconds();
  for (auto _ : state) product.Run(0);
  state.counters["GFLOP/s"] = static_cast<double>(2 * state.iterations() * tokens * kSize * kSize) /
                              (Seconds() - start) / 1e9;
}

void Pack(benchmark::State& state, WeightFormat format, int threads) {
  const WeightMatrix w = Matrices::Get(format).stored(0);
  const ZeroedMemory memory = *ZeroedMemory::Allocate(PackedBytes(w), "bench", Pages::kHuge);
  ThreadPool pool(threads);
  const double start = Seconds();
  for (auto _ : state) {
    HB_CHECK(PackMatrix(pool, w, reinterpret_cast<uint8_t*>(memory.data()), "bench").has_value(),
             "these bytes pack");
  }
  state.counters["GB/s"] =
      static_cast<double>(state.iterations() * kSize * w.row_bytes()) / (Seconds() - start) / 1e9;
}

void RegisterCase(const Case& c) {
  const auto name = [&](const char* what) {
    return fmt::format("{}/{}/{}/{}/{}T", what, WeightFormatName(c.format),
                       c.packed ? "packed" : "stored", CpuIsaName(c.isa), c.threads);
  };
  benchmark::RegisterBenchmark(name("Decode").c_str(), Decode, c)->UseManualTime();
  for (const int64_t tokens : {16, 512}) {
    benchmark::RegisterBenchmark(name(fmt::format("Gemm/n{}", tokens).c_str()).c_str(), Gemm, c,
                                 tokens)
        ->UseRealTime();
  }
}

void Register() {
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kFp8}) {
    for (const int threads : {1, 2}) {
      for (const CpuIsa isa : SupportedCpuIsas()) {
        if (isa == CpuIsa::kScalar) continue;  // no matter of speed
        for (const bool packed : {false, true}) RegisterCase({format, packed, isa, threads});
      }
      benchmark::RegisterBenchmark(
          fmt::format("Pack/{}/{}T", WeightFormatName(format), threads).c_str(), Pack, format,
          threads)
          ->UseRealTime();
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
