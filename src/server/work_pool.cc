#include "server/work_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

namespace halfbyte {

WorkPool::WorkPool(int threads, size_t max_queued) : max_queued_(max_queued) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Main(); });
}

WorkPool::~WorkPool() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkPool::TryPost(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= max_queued_) return false;
    queue_.push_back(std::move(job));
  }
  work_.notify_one();
  return true;
}

void WorkPool::Main() {
  // Of this thread only: new requests wait rather than streams.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 5);
  for (;;) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (closing_) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    job();
  }
}

}  // namespace halfbyte
