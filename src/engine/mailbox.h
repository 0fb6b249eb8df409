// Where the events of one request wait for its client. The engine puts them in and never waits;
// beyond the limits it cancels the request (server.md §1.1).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/output.h"

namespace halfbyte {

class Mailbox {
 public:
  static constexpr int64_t kMaxBytes = int64_t{1} << 20;
  static constexpr int64_t kMaxEvents = 8192;

  // `wake` is called from the engine's thread whenever the mailbox stops being empty: it must
  // return at once (post to an executor, notify a condition) and not call the engine. May be null.
  explicit Mailbox(std::function<void()> wake = nullptr) : wake_(std::move(wake)) {}

  // Everything that waits, joined into one event for each choice, in the order of their first ones.
  std::vector<OutputEvent> Take();

  // The same, but waits for something to come: for callers that have a thread to spare. Empty when
  // `deadline` passes.
  std::vector<OutputEvent> WaitAndTake(
      std::optional<EngineClock::time_point> deadline = std::nullopt);

  // Engine side. False when the limits are reached; the event is dropped then. An empty mailbox
  // takes an event of any size, and the end of a choice is always told.
  bool Put(OutputEvent event);

 private:
  const std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<OutputEvent> events_;
  int64_t bytes_ = 0;
  int64_t count_ = 0;  // events put since the last Take
};

}  // namespace halfbyte
