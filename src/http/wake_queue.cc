#include "http/wake_queue.h"

#include <utility>

namespace halfbyte {

Wake WakeQueue::MakeWake(std::shared_ptr<Target> target) {
  return Wake([queue = shared_from_this(), target = std::move(target)] { queue->Mark(target); },
              [queue = shared_from_this()] { queue->Signal(); });
}

void WakeQueue::Mark(const std::shared_ptr<Target>& target) {
  if (target->waiting.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  if (!signal_) return;
  try {
    targets_.push_back(target);
  } catch (...) {
    target->waiting = false;
    throw;
  }
}

void WakeQueue::Signal() {
  const std::lock_guard lock(mutex_);
  if (!signal_ || targets_.empty() || signalled_) return;
  signal_();
  signalled_ = true;
}

std::vector<std::shared_ptr<WakeQueue::Target>> WakeQueue::Take() {
  std::vector<std::shared_ptr<Target>> targets;
  {
    const std::lock_guard lock(mutex_);
    targets.swap(targets_);
    signalled_ = false;
  }
  for (const auto& target : targets) target->waiting = false;
  return targets;
}

void WakeQueue::Close() {
  const std::lock_guard lock(mutex_);
  signal_ = nullptr;
  targets_.clear();
}

}  // namespace halfbyte
