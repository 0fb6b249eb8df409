// A small pool for data-parallel loops. The caller works too, so `threads` = 1 starts no thread.
// Workers spin for some microseconds after a loop and then sleep: short loops in a row start
// quickly, and an idle or oversubscribed machine is not burned.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace halfbyte {

// Processors this process may use: affinity mask and cgroup CPU quota, at least 1.
int AvailableProcessors();

class ThreadPool {
 public:
  explicit ThreadPool(int threads = AvailableProcessors());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) on disjoint pieces of [0, count), each of at most `grain` items, from
  // several threads; returns when all are done. Loops of at most one grain run in the caller.
  // One loop at a time: a body must not start another loop on the same pool. Bodies must not throw.
  template <class Body>
  void ParallelFor(int64_t count, int64_t grain, const Body& body) {
    if (workers_.empty() || count <= grain) {
      if (count > 0) body(int64_t{0}, count);
      return;
    }
    RunLoop({count, grain, &body, [](const void* b, int64_t begin, int64_t end) {
               (*static_cast<const Body*>(b))(begin, end);
             }});
  }

 private:
  struct Loop {
    int64_t count = 0;
    int64_t grain = 1;
    const void* body = nullptr;
    void (*call)(const void* body, int64_t begin, int64_t end) = nullptr;
  };

  void RunLoop(const Loop& loop);
  void TakePieces();
  void WorkerMain();

  Loop loop_;
  std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};  // +1 for each loop
  alignas(64) std::atomic<int32_t> running_{0};      // workers that have not finished this loop
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace halfbyte
