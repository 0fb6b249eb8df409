#include "server/work_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

namespace halfbyte {

WorkPool::WorkPool(int threads, size_t max_queued)
    : max_queued_(max_queued), most_running_(static_cast<size_t>(std::max(1, threads - 1))) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Main(); });
  } catch (const std::exception&) {  // a limit on threads or memory: fewer do the same work
    if (threads_.empty()) throw;
  }
}

WorkPool::~WorkPool() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkPool::TryPost(ClientId client, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    Lane& lane = lanes_[client];
    if (lane.waiting.size() >= max_queued_) return false;
    if (lane.waiting.empty()) turns_.push_back(client);
    lane.waiting.push_back(std::move(job));
  }
  work_.notify_one();
  return true;
}

std::optional<ClientId> WorkPool::NextClient() {
  const auto next = std::ranges::find_if(
      turns_, [this](ClientId client) { return lanes_.at(client).running < most_running_; });
  if (next == turns_.end()) return std::nullopt;
  const ClientId client = *next;
  turns_.erase(next);
  return client;
}

void WorkPool::Main() {
  // Of this thread only: new requests wait rather than streams.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 5);
  std::unique_lock lock(mutex_);
  while (true) {
    std::optional<ClientId> client;
    work_.wait(lock, [&] { return closing_ || (client = NextClient()); });
    if (closing_) return;
    Lane& lane = lanes_.at(*client);
    std::function<void()> job = std::move(lane.waiting.front());
    lane.waiting.pop_front();
    if (!lane.waiting.empty()) turns_.push_back(*client);
    ++lane.running;
    lock.unlock();
    try {
      job();
    } catch (const std::bad_alloc&) {  // it has said so to whom it concerns
    }
    job = nullptr;  // what it holds goes here, not under the lock
    lock.lock();
    --lane.running;
    if (lane.waiting.empty() && lane.running == 0) lanes_.erase(*client);
    // Another of its jobs may run now.
    work_.notify_one();
  }
}

}  // namespace halfbyte
