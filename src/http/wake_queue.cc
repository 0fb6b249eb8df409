#include "http/wake_queue.h"

#include <utility>

namespace halfbyte {

Wake WakeQueue::MakeWake(std::shared_ptr<Target> target) {
  return [queue = shared_from_this(), target = std::move(target)] { queue->Push(target); };
}

void WakeQueue::Push(const std::shared_ptr<Target>& target) {
  if (target->waiting.exchange(true)) return;
  const std::lock_guard lock(mutex_);
  if (!signal_) return;
  targets_.push_back(target);
  if (targets_.size() == 1) signal_();
}

std::vector<std::shared_ptr<WakeQueue::Target>> WakeQueue::Take() {
  std::vector<std::shared_ptr<Target>> targets;
  {
    const std::lock_guard lock(mutex_);
    targets.swap(targets_);
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
