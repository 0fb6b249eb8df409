#include "engine/mailbox.h"

#include <algorithm>
#include <utility>

namespace halfbyte {

std::vector<OutputEvent> Mailbox::Take() {
  const std::lock_guard lock(mutex_);
  bytes_ = 0;
  count_ = 0;
  return std::exchange(events_, {});
}

std::vector<OutputEvent> Mailbox::WaitAndTake(std::optional<EngineClock::time_point> deadline) {
  {
    std::unique_lock lock(mutex_);
    const auto filled = [this] { return !events_.empty(); };
    if (deadline) {
      filled_.wait_until(lock, *deadline, filled);
    } else {
      filled_.wait(lock, filled);
    }
  }
  return Take();
}

bool Mailbox::Put(OutputEvent event) {
  bool was_empty;
  {
    const std::lock_guard lock(mutex_);
    const int64_t bytes = event.bytes();
    const bool full = count_ == kMaxEvents || (bytes_ > 0 && bytes_ + bytes > kMaxBytes);
    if (full && !event.finish) return false;
    bytes_ += bytes;
    ++count_;
    was_empty = events_.empty();
    // The latest event of this choice takes the text; with several choices they come in turns.
    const auto same = std::ranges::find(events_, event.choice, &OutputEvent::choice);
    if (same == events_.end()) {
      events_.push_back(std::move(event));
    } else {
      Append(*same, std::move(event));
    }
  }
  if (was_empty) {
    filled_.notify_one();
    wake_.Mark();
  }
  return true;
}

}  // namespace halfbyte
