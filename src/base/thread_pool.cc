#include "base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "base/check.h"

namespace halfbyte {
namespace {

// About 20 microseconds of pauses; longer spinning only burns a processor somebody else may need.
constexpr int kSpins = 400;

// Spins, then sleeps, until `value` differs from `old`.
template <class T>
void AwaitChange(std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  while (value.load(std::memory_order_acquire) == old) {
    value.wait(old, std::memory_order_acquire);
  }
}

// cgroup v2 CPU quota in processors; 0 if there is none.
double CgroupQuota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::atof(quota.c_str()) / period;
}

}  // namespace

int AvailableProcessors() {
  cpu_set_t set;
  int count = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const double quota = CgroupQuota(); quota > 0) {
    count = std::min(count, static_cast<int>(std::ceil(quota)));
  }
  return std::max(count, 1);
}

ThreadPool::ThreadPool(int threads) {
  HB_CHECK(threads >= 1, "threads {}", threads);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { WorkerMain(); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunLoop(const Loop& loop) {
  loop_ = loop;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int32_t>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  TakePieces();
  for (int32_t left; (left = running_.load(std::memory_order_acquire)) != 0;) {
    AwaitChange(running_, left);
  }
}

void ThreadPool::TakePieces() {
  for (;;) {
    const int64_t begin = next_.fetch_add(loop_.grain, std::memory_order_relaxed);
    if (begin >= loop_.count) return;
    loop_.call(loop_.body, begin, std::min(begin + loop_.grain, loop_.count));
  }
}

void ThreadPool::WorkerMain() {
  uint32_t seen = 0;
  for (;;) {
    AwaitChange(generation_, seen);
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    TakePieces();
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace halfbyte
