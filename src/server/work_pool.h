// A few threads for what takes too long on an IO thread: reading JSON and tokenising. They give way
// to the threads of the engine and of IO (nice 5). Clients take turns, and one of them never has
// all threads: whatever its jobs are, those of another begin at once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/request.h"

namespace halfbyte {

class WorkPool {
 public:
  // At most `max_queued` jobs of one client wait.
  WorkPool(int threads, size_t max_queued);
  // What is queued is dropped; waits for jobs that run.
  ~WorkPool();

  // False, without waiting, if the client's queue is full.
  bool TryPost(ClientId client, std::function<void()> job);

 private:
  struct Lane {  // of one client that has jobs
    std::deque<std::function<void()>> waiting;
    size_t running = 0;
  };

  void Main();
  // Whose turn it is, taken off the turns.
  std::optional<ClientId> NextClient();

  const size_t max_queued_;
  const size_t most_running_;  // of one client
  std::mutex mutex_;
  std::condition_variable work_;
  std::map<ClientId, Lane> lanes_;
  std::list<ClientId> turns_;  // of clients with waiting jobs
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace halfbyte
