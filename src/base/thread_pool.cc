#include "base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <system_error>

#include "base/cgroup.h"
#include "base/check.h"
#include "base/memory_reserve.h"

namespace halfbyte {
namespace {

// In ticks of the time stamp counter, which runs at 2 to 4 GHz.
constexpr uint64_t kSpin = 100'000;            // 25 to 50 us
constexpr uint64_t kSpinCrowded = 4'000;       // 1 to 2 us: somebody may need this processor
constexpr uint64_t kOffer = 10'000;            // 2 to 5 us
constexpr uint64_t kTakenAway = 200'000;       // a pause of 50 to 100 us was not ours
constexpr uint64_t kCrowdedFor = 300'000'000;  // about 100 ms
constexpr uint64_t kWorthAWake = 15'000;       // 4 to 8 us of work: what waking a thread costs

}  // namespace

int AvailableProcessors() {
  cpu_set_t set;
  int count = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const auto quota = ReadCgroupLimits().processors) {
    count = std::min(count, static_cast<int>(std::ceil(*quota)));
  }
  return std::max(count, 1);
}

ThreadPool::ThreadPool(int threads) : always_crowded_(threads > AvailableProcessors()) {
  HB_CHECK(threads >= 1, "threads {}", threads);
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { WorkerMain(); });
  } catch (const std::system_error&) {  // a limit on threads or memory: fewer do the same work
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::Crowded() const {
  return always_crowded_ || __rdtsc() < crowded_until_.load(std::memory_order_relaxed);
}

// Waits for ready(), at most about `ticks`; whether it came. Every few microseconds another thread
// may have the processor: one that was woken here would else wait for milliseconds.
template <class Ready>
bool ThreadPool::Spin(uint64_t ticks, const Ready& ready) {
  if (ready()) return true;
  const uint64_t start = __rdtsc();
  uint64_t offered = start;
  for (uint64_t last = start;;) {
    if (last - offered > kOffer) {
      ::sched_yield();
      offered = last;
    } else {
      _mm_pause();
    }
    const bool is_ready = ready();
    const uint64_t now = __rdtsc();
    if (now - last > kTakenAway) {
      crowded_until_.store(now + kCrowdedFor, std::memory_order_relaxed);
    }
    if (is_ready) return true;
    if (now - start > ticks) return false;
    last = now;
  }
}

void ThreadPool::RunLoop(const Loop& loop) {
  loop_ = loop;
  next_.store(0, std::memory_order_relaxed);
  door_.store(0, std::memory_order_release);
  // Sequentially consistent, as is what workers do before they sleep: either they see the loop, or
  // they are seen here.
  generation_.fetch_add(1);
  if (sleepers_.load() != 0) {
    // One item for each thread is a share of something large: the first may take as long as all.
    const bool shares = loop.grain == 1 && loop.count <= threads();
    if (Crowded() && !shares) {
      for (const uint64_t start = __rdtsc(); TakePiece() && __rdtsc() - start < kWorthAWake;) {
      }
    }
    if (next_.load(std::memory_order_relaxed) < loop.count) generation_.notify_all();
  }
  while (TakePiece()) {
  }
  if (door_.fetch_or(kClosed, std::memory_order_acq_rel) == 0) return;
  const auto empty = [&] { return door_.load(std::memory_order_acquire) == kClosed; };
  if (Spin(Crowded() ? kSpinCrowded : kSpin, empty)) return;
  for (uint32_t door; (door = door_.load(std::memory_order_acquire)) != kClosed;) {
    door_.wait(door, std::memory_order_acquire);
  }
}

bool ThreadPool::TakePiece() {
  const int64_t begin = next_.fetch_add(loop_.grain, std::memory_order_relaxed);
  if (begin >= loop_.count) return false;
  loop_.call(loop_.body, begin, std::min(begin + loop_.grain, loop_.count));
  return true;
}

void ThreadPool::WorkerMain() {
  MarkEssentialThread();  // a loop cannot be given up in the middle
  uint32_t seen = 0;
  for (;;) {
    seen = AwaitLoopAfter(seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!Enter()) continue;
    while (TakePiece()) {
    }
    Leave();
  }
}

// The newest generation, once it is not `seen` any more.
uint32_t ThreadPool::AwaitLoopAfter(uint32_t seen) {
  uint32_t generation = seen;
  const auto changed = [&] {
    generation = generation_.load(std::memory_order_acquire);
    return generation != seen;
  };
  if (Spin(Crowded() ? 0 : kSpin, changed)) return generation;
  sleepers_.fetch_add(1);
  while ((generation = generation_.load()) == seen) generation_.wait(seen);
  sleepers_.fetch_sub(1);
  return generation;
}

// False if the loop has ended, or all of its pieces are taken.
bool ThreadPool::Enter() {
  uint32_t door = door_.load(std::memory_order_relaxed);
  do {
    if ((door & kClosed) != 0) return false;
  } while (!door_.compare_exchange_weak(door, door + 1, std::memory_order_acquire,
                                        std::memory_order_relaxed));
  return true;
}

void ThreadPool::Leave() {
  if (door_.fetch_sub(1, std::memory_order_acq_rel) == kClosed + 1) door_.notify_one();
}

}  // namespace halfbyte
