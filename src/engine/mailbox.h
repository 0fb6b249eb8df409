// Where the events of one request wait for its client. The engine puts them in and never waits;
// beyond the limits it cancels the request (server.md §1.1).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/wake.h"
#include "engine/output.h"

namespace halfbyte {

class Mailbox {
 public:
  static constexpr int64_t kMaxBytes = int64_t{1} << 20;
  static constexpr int64_t kMaxEvents = 8192;

  // `wake` is for who does not wait in WaitAndTake: marked whenever the mailbox stops being empty,
  // signalled when the engine has put all that it has for now. Must not call the engine.
  explicit Mailbox(Wake wake = {}) : wake_(std::move(wake)) {}

  // Everything that waits, joined into one event for each choice, in the order of their first ones.
  std::vector<OutputEvent> Take();

  // The same, but waits for something to come: for callers that have a thread to spare. Empty when
  // `deadline` passes.
  std::vector<OutputEvent> WaitAndTake(
      std::optional<EngineClock::time_point> deadline = std::nullopt);

  // Engine side. False when the limits are reached; the event is dropped then. An empty mailbox
  // takes an event of any size, and the end of a choice is always told.
  bool Put(OutputEvent event);
  // After one or more Puts, of this mailbox or others.
  void Signal() const { wake_.Signal(); }

 private:
  const Wake wake_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<OutputEvent> events_;
  int64_t bytes_ = 0;
  int64_t count_ = 0;  // events put since the last Take
};

}  // namespace halfbyte
