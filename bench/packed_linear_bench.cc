// The packed kernels on shapes of V4-Flash (hidden 4096, intermediate 2048).
//   Decode  one token through six of 64 cold experts (84.9 MB of 0.9 GB); each pass alternates with
//           one that only reads the six experts after them. `GB/s`, `read GB/s`, `of read`.
//   Gemm    n tokens times one matrix, cached. `GFLOP/s`, `of peak` (of what the same threads do in
//           a loop of vpdpbusd or vdpbf16ps right before; left out where the machine lacks them).
//   Pack    `GB/s` of stored bytes.
// Rates are those of the median pass.
//   packed_linear_bench --benchmark_filter=Decode
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "base/check.h"
#include "device/zeroed_memory.h"
#include "kernels/packed_linear/packed_linear.h"
#include "measure/machine_limits.h"
#include "measure/peak_loops.h"

namespace halfbyte {
namespace {

constexpr int64_t kHidden = 4096;
constexpr int64_t kIntermediate = 2048;
constexpr int64_t kExperts = 64;
constexpr int64_t kTopK = 6;
constexpr int64_t kMatrixBytes = kHidden * kIntermediate * 9 / 16;
// Panels of a piece of a parallel loop: 0.6 or 1.2 MB from memory, as the layer has them, and less
// from the cache.
constexpr int64_t kDecodePanels = 32;
constexpr int64_t kGemmPanels = 4;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<std::byte> RandomBytes(int64_t count, int mask) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() & static_cast<unsigned>(mask));
  return bytes;
}

struct Source {
  std::vector<std::byte> codes = RandomBytes(kHidden * kIntermediate / 2, 0xff);
  std::vector<std::byte> scales = RandomBytes(kHidden * kIntermediate / 16, 0x3f);

  WeightMatrix Matrix(int64_t rows) const {
    return {.format = WeightFormat::kNvfp4,
            .rows = rows,
            .columns = kHidden * kIntermediate / rows,
            .data = codes.data(),
            .scales = scales.data()};
  }
};

// matrices[3e], [3e + 1] and [3e + 2] are gate, up and down of expert e, each in its own memory.
struct Experts {
  ZeroedMemory memory;
  std::vector<PackedMatrix> matrices;

  Experts() {
    memory = *ZeroedMemory::Allocate(3 * kExperts * kMatrixBytes, "bench", Pages::kHuge);
    ThreadPool pool;
    const Source source;
    for (int64_t m = 0; m < 3 * kExperts; ++m) {
      auto* bytes = reinterpret_cast<uint8_t*>(memory.data()) + m * kMatrixBytes;
      const WeightMatrix w = source.Matrix(m % 3 == 2 ? kHidden : kIntermediate);
      matrices.push_back(**PackMatrix(pool, w, bytes, "bench"));
    }
  }
  // Of one expert; experts follow each other in a circle.
  MemorySpan memory_of(int64_t expert) const {
    return {memory.data() + expert % kExperts * 3 * kMatrixBytes, 3 * kMatrixBytes};
  }
  static const Experts& Get() {
    static const Experts experts;
    return experts;
  }
};

std::vector<std::byte> Operand(const PackedKernel& kernel, int64_t tokens, int64_t columns) {
  const int64_t bytes = OperandRowBytes(kernel.format, columns);
  std::vector<std::byte> operand(static_cast<size_t>(tokens * bytes));
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(columns));
  const std::vector<uint8_t> codes(static_cast<size_t>(columns / 2), 0x21);
  const std::vector<uint8_t> scales(static_cast<size_t>(columns / 16), 0x38);
  for (int64_t t = 0; t < tokens; ++t) {
    std::byte* row = operand.data() + t * bytes;
    for (float& value : x) value = normal(random);
    if (kernel.arithmetic == PackedArithmetic::kW4a4) {
      PrepareNvfp4Row(codes.data(), scales.data(), columns, row);
    } else {
      PrepareRow(kernel, x.data(), columns, row);
    }
  }
  return operand;
}

// body(matrix, first panel, end panel) for every piece of kTopK experts from `first` on.
template <class Body>
double TimeExperts(ThreadPool& pool, const Experts& experts, int64_t first, const Body& body) {
  struct Piece {
    int64_t matrix, begin, end;
  };
  std::vector<Piece> pieces;
  for (int64_t m = 3 * first; m < 3 * (first + kTopK); ++m) {
    const int64_t matrix = m % (3 * kExperts);
    const int64_t panels = experts.matrices[static_cast<size_t>(matrix)].panels();
    for (int64_t p = 0; p < panels; p += kDecodePanels) {
      pieces.push_back({matrix, p, std::min(p + kDecodePanels, panels)});
    }
  }
  const double start = Seconds();
  pool.ParallelFor(std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      body(experts.matrices[static_cast<size_t>(piece.matrix)], piece.begin, piece.end);
    }
  });
  return Seconds() - start;
}

void Decode(benchmark::State& state, const PackedKernel& kernel, int threads) {
  const Experts& experts = Experts::Get();
  ThreadPool pool(threads);
  const std::vector<std::byte> wide = Operand(kernel, 1, kHidden);
  const std::vector<std::byte> narrow = Operand(kernel, 1, kIntermediate);
  std::vector<float> y(static_cast<size_t>(kHidden));
  std::vector<double> rates, reads, shares;
  int64_t first = 0;
  for (auto _ : state) {
    std::vector<MemorySpan> memory;
    for (int64_t e = first; e < first + kTopK; ++e) memory.push_back(experts.memory_of(e));
    first += kTopK;
    const double read = SecondsToRead(Context(pool), memory);
    const double product =
        TimeExperts(pool, experts, first, [&](const PackedMatrix& w, int64_t begin, int64_t end) {
          // Threads write disjoint ranges of y, whatever matrix they are at, often the same ones.
          PackedLinearRange(kernel, w, w.columns == kHidden ? wide.data() : narrow.data(),
                            begin * kPanelRows, end * kPanelRows, {y.data(), 1, w.rows});
        });
    first += kTopK;
    state.SetIterationTime(product);
    constexpr double kGigabytes = static_cast<double>(3 * kTopK * kMatrixBytes) / 1e9;
    rates.push_back(kGigabytes / product);
    reads.push_back(kGigabytes / read);
    shares.push_back(read / product);
  }
  state.counters["GB/s"] = Median(rates);
  state.counters["read GB/s"] = Median(reads);
  state.counters["of read"] = Median(shares);
}

// 0 where the machine lacks the instruction.
double Peak(ThreadPool& pool, PackedArithmetic arithmetic) {
  const bool bf16 = arithmetic == PackedArithmetic::kW4a16;
  const PeakLoop loop = bf16 ? Bf16PeakLoop() : Int8PeakLoop();
  return loop.run == Fp32PeakLoop().run ? 0 : MeasurePeak(Context(pool), loop);
}

void Gemm(benchmark::State& state, const PackedKernel& kernel, int64_t tokens, int threads) {
  const PackedMatrix& w = Experts::Get().matrices[0];
  ThreadPool pool(threads);
  const std::vector<std::byte> operand = Operand(kernel, tokens, w.columns);
  std::vector<float> y(static_cast<size_t>(tokens * w.rows));
  const double peak = Peak(pool, kernel.arithmetic);
  std::vector<double> seconds;
  for (auto _ : state) {
    const double start = Seconds();
    pool.ParallelFor(w.panels(), kGemmPanels, [&](int64_t begin, int64_t end) {
      PackedLinearRange(kernel, w, operand.data(), begin * kPanelRows, end * kPanelRows,
                        {y.data(), tokens, w.rows});
    });
    seconds.push_back(Seconds() - start);
  }
  const double rate = static_cast<double>(2 * tokens * w.rows * w.columns) / Median(seconds);
  state.counters["GFLOP/s"] = rate / 1e9;
  if (peak > 0) state.counters["of peak"] = rate / peak;
}

void Pack(benchmark::State& state, int threads) {
  const Source source;
  const ZeroedMemory memory = *ZeroedMemory::Allocate(kMatrixBytes, "bench", Pages::kHuge);
  ThreadPool pool(threads);
  const double start = Seconds();
  for (auto _ : state) {
    const auto packed = PackMatrix(pool, source.Matrix(kIntermediate),
                                   reinterpret_cast<uint8_t*>(memory.data()), "bench");
    HB_CHECK(packed.has_value(), "random bytes pack");
  }
  state.counters["GB/s"] =
      static_cast<double>(state.iterations() * kMatrixBytes) / 1e9 / (Seconds() - start);
}

void Register() {
  for (const PackedArithmetic a :
       {PackedArithmetic::kW4a4, PackedArithmetic::kW4a8, PackedArithmetic::kW4a16}) {
    const std::vector<PackedKernel> kernels = PackedKernels(a, SupportedCpuIsas().back());
    for (size_t i = 1; i < kernels.size(); ++i) {  // the reference is no matter of speed
      const PackedKernel kernel = kernels[i];
      for (const int threads : {1, 2}) {
        const auto name = [&](const char* what, int64_t tokens) {
          return fmt::format("{}/{}/n{}/{}T", what, kernel.name, tokens, threads);
        };
        benchmark::RegisterBenchmark(name("Decode", 1).c_str(), Decode, kernel, threads)
            ->UseManualTime();
        for (const int64_t tokens : {16, 512}) {
          benchmark::RegisterBenchmark(name("Gemm", tokens).c_str(), Gemm, kernel, tokens, threads)
              ->UseRealTime();
        }
      }
    }
  }
  for (const int threads : {1, 2}) {
    benchmark::RegisterBenchmark(fmt::format("Pack/{}T", threads).c_str(), Pack, threads)
        ->UseRealTime();
  }
}

}  // namespace
}  // namespace halfbyte

int main(int argc, char** argv) {
  halfbyte::Register();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
