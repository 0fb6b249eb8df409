// Carries wakes from any thread to the thread that owns the connections. Cheap on both sides: a
// target that waits is not added again, and the owner is signalled once until it looks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "http/http.h"

namespace halfbyte {

class Connection;

class WakeQueue : public std::enable_shared_from_this<WakeQueue> {
 public:
  // Outlives its connection: what a Wake holds.
  struct Target {
    Connection* connection;             // for the owner's thread only; null when it has ended
    std::atomic<bool> waiting = false;  // is in the queue
  };

  // `signal` asks the owner's thread to call Take.
  explicit WakeQueue(std::function<void()> signal) : signal_(std::move(signal)) {}

  Wake MakeWake(std::shared_ptr<Target> target);

  // Owner: what was woken since the last call.
  std::vector<std::shared_ptr<Target>> Take();
  // Owner: `signal` is not called any more after this.
  void Close();

 private:
  void Mark(const std::shared_ptr<Target>& target);
  void Signal();

  std::mutex mutex_;
  std::function<void()> signal_;
  bool signalled_ = false;  // since the last Take
  std::vector<std::shared_ptr<Target>> targets_;
};

}  // namespace halfbyte
