// When a client that sends or takes bytes is too slow: it may pause for `patience`, and beyond that
// it must keep up a rate. Each byte gives it the time that it may take, and never more than
// `patience` is in stock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace halfbyte {

class RateClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  RateClock(TimePoint now, Duration patience, int64_t bytes_per_second)
      : patience_(patience), bytes_per_second_(bytes_per_second), deadline_(now + patience) {}

  void Count(int64_t bytes, TimePoint now) {
    const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_second_);
    const auto earned =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    deadline_ = std::min(deadline_ + earned, now + patience_);
  }
  TimePoint deadline() const { return deadline_; }

 private:
  Duration patience_;
  int64_t bytes_per_second_;
  TimePoint deadline_;
};

}  // namespace halfbyte
