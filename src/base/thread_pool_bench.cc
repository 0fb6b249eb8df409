// What a parallel loop costs besides its work, with the pool and with OpenMP: alone, and beside a
// busy thread of somebody else that may run anywhere or is bound to processor 0.
//   thread_pool_bench --benchmark_filter=Empty
// Empty: two pieces of nothing. Short: 16 pieces of 5 us. Perfect scaling of Short is 80 us divided
// by the number of threads.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <immintrin.h>
#include <omp.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "base/thread_pool.h"

namespace halfbyte {
namespace {

enum class Stranger { kNone, kAnywhere, kBound };

class BusyThread {
 public:
  explicit BusyThread(Stranger stranger) {
    if (stranger == Stranger::kNone) return;
    thread_ = std::jthread([stranger](const std::stop_token& stop) {
      if (stranger == Stranger::kBound) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(0, &set);
        ::sched_setaffinity(0, sizeof(set), &set);
      }
      while (!stop.stop_requested()) benchmark::ClobberMemory();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

 private:
  std::jthread thread_;
};

void Work(std::chrono::nanoseconds time) {
  for (const auto end = std::chrono::steady_clock::now() + time;
       std::chrono::steady_clock::now() < end;) {
  }
}

struct Size {
  const char* name;
  int pieces;
  std::chrono::nanoseconds time;  // of a piece
};
constexpr Size kSizes[] = {{"Empty", 2, std::chrono::nanoseconds(0)},
                           {"Short", 16, std::chrono::microseconds(5)}};

void RunPiece(const Size& size) {
  if (size.time.count() > 0) Work(size.time);
  benchmark::ClobberMemory();
}

void Pool(benchmark::State& state, const Size& size, Stranger stranger) {
  ThreadPool pool;
  const BusyThread busy(stranger);
  for (auto _ : state) {
    pool.ParallelFor(size.pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) RunPiece(size);
    });
  }
}

void OpenMp(benchmark::State& state, const Size& size, Stranger stranger) {
  const BusyThread busy(stranger);
  for (auto _ : state) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(AvailableProcessors())
    for (int i = 0; i < size.pieces; ++i) RunPiece(size);
  }
}

void Register() {
  for (const Size& size : kSizes) {
    for (const auto& [stranger, name] : {std::pair{Stranger::kNone, "alone"},
                                         {Stranger::kAnywhere, "beside_one"},
                                         {Stranger::kBound, "beside_one_bound"}}) {
      for (const auto& [function, who] : {std::pair{&Pool, "pool"}, {&OpenMp, "openmp"}}) {
        benchmark::RegisterBenchmark(fmt::format("{}/{}/{}", size.name, name, who).c_str(),
                                     function, size, stranger)
            ->UseRealTime()
            ->MinTime(0.5)
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
