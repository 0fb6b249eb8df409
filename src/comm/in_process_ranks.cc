#include "comm/in_process_ranks.h"

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <span>

namespace halfbyte {
namespace {

// Where the threads meet.
class MeetingPoint {
 public:
  explicit MeetingPoint(int size) : size_(size), parts_(static_cast<size_t>(size)) {}

  // Shows `mine` to the others and waits until all have done so. False: one is gone.
  bool Show(int rank, std::span<const std::byte> mine) {
    std::unique_lock lock(mutex_);
    parts_[static_cast<size_t>(rank)] = mine;
    return WaitForAll(lock);
  }
  // Waits until all have read; then what they showed may change.
  bool Read() {
    std::unique_lock lock(mutex_);
    return WaitForAll(lock);
  }
  // Between Show and Read.
  std::span<const std::byte> part(size_t rank) const { return parts_[rank]; }

  void Abandon() {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    changed_.notify_all();
  }

 private:
  bool WaitForAll(std::unique_lock<std::mutex>& lock) {
    const uint64_t meeting = meetings_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++meetings_;
      changed_.notify_all();
      return true;
    }
    changed_.wait(lock, [&] { return meetings_ != meeting || abandoned_; });
    return meetings_ != meeting;
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  uint64_t meetings_ = 0;
  bool abandoned_ = false;
  std::vector<std::span<const std::byte>> parts_;
};

class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(int rank, int size, std::shared_ptr<MeetingPoint> point)
      : Communicator(rank, size), point_(std::move(point)) {}
  ~InProcessCommunicator() override {
    if (!left()) point_->Abandon();
  }

 private:
  Status GatherBytes(std::span<const std::byte> mine, std::span<const int64_t> bytes,
                     std::byte* all) override {
    if (!point_->Show(rank(), mine)) return MakeError("another rank is gone");
    for (size_t r = 0; r < bytes.size(); ++r) {
      const auto count = static_cast<size_t>(bytes[r]);
      if (count > 0) std::memcpy(all, point_->part(r).data(), count);
      all += count;
    }
    if (!point_->Read()) return MakeError("another rank is gone");
    return {};
  }

  const std::shared_ptr<MeetingPoint> point_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> InProcessRanks(int size) {
  const auto point = std::make_shared<MeetingPoint>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<InProcessCommunicator>(rank, size, point));
  }
  return ranks;
}

}  // namespace halfbyte
