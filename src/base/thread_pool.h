// A small pool for data-parallel loops. The caller works too, so `threads` = 1 starts no thread.
//
// Nobody waits for a thread that does not run: a loop ends when its pieces are done, whether a
// worker came in time or not. Workers spin for 25 to 50 microseconds after a loop, so that short
// loops in a row start quickly, and then sleep. Who spins lets other threads have the processor
// every few microseconds; if one kept it for long, that marks the machine as crowded for about a
// tenth of a second: nobody spins meanwhile and short loops wake nobody, but for those of one item
// a thread. A pool of more threads than AvailableProcessors() is always crowded. Threads are not
// bound to processors; the program may.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace halfbyte {

// Processors this process may use: affinity mask and cgroup CPU quota (rounded up), at least 1.
int AvailableProcessors();

class ThreadPool {
 public:
  explicit ThreadPool(int threads = AvailableProcessors());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) on disjoint pieces of [0, count), each of at most `grain` items, from
  // several threads, and returns when all are done. A caller that works alone gets [0, count) as
  // one piece: with one thread, with at most one grain of items, and when the pool is in use, be it
  // by a loop around this one or by another thread's loop. Pieces must not wait for each other.
  // Bodies must not throw.
  template <class Body>
  void ParallelFor(int64_t count, int64_t grain, const Body& body) {
    if (workers_.empty() || count <= grain || in_use_.exchange(true, std::memory_order_acquire)) {
      if (count > 0) body(int64_t{0}, count);
      return;
    }
    RunLoop({count, grain, &body, [](const void* b, int64_t begin, int64_t end) {
               (*static_cast<const Body*>(b))(begin, end);
             }});
    in_use_.store(false, std::memory_order_release);
  }

 private:
  struct Loop {
    int64_t count = 0;
    int64_t grain = 1;
    const void* body = nullptr;
    void (*call)(const void* body, int64_t begin, int64_t end) = nullptr;
  };

  void RunLoop(const Loop& loop);
  bool TakePiece();
  bool Crowded() const;
  template <class Ready>
  bool Spin(uint64_t ticks, const Ready& ready);

  void WorkerMain();
  uint32_t AwaitLoopAfter(uint32_t seen);
  bool Enter();
  void Leave();

  static constexpr uint32_t kClosed = uint32_t{1} << 31;

  std::atomic<bool> in_use_{false};
  std::atomic<bool> stop_{false};
  bool always_crowded_ = false;
  std::atomic<uint64_t> crowded_until_{0};  // time stamp counter
  std::vector<std::thread> workers_;

  // The loop may be written while the door is closed and nobody is inside.
  alignas(64) Loop loop_;
  std::atomic<int64_t> next_{0};         // the first item nobody has taken
  std::atomic<uint32_t> door_{kClosed};  // workers inside, plus kClosed once all pieces are taken
  std::atomic<uint32_t> generation_{0};  // +1 for each loop: what idle workers watch
  std::atomic<uint32_t> sleepers_{0};    // workers that must be woken
};

}  // namespace halfbyte
