// A few threads for what takes too long on an IO thread: reading JSON and tokenising. They give way
// to the threads of the engine and of IO (nice 5).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace halfbyte {

class WorkPool {
 public:
  WorkPool(int threads, size_t max_queued);
  // What is queued is dropped; waits for jobs that run.
  ~WorkPool();

  // False, without waiting, if the queue is full.
  bool TryPost(std::function<void()> job);

 private:
  void Main();

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::function<void()>> queue_;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace halfbyte
