// A progress line with rate and ETA on stderr, for work that takes more than a moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace halfbyte {

// Silent unless stderr is a terminal. Advance may be called from any thread.
class Progress {
 public:
  // `total` in `unit`s; "B" prints with decimal prefixes.
  Progress(std::string label, int64_t total, std::string unit = "B");
  ~Progress();  // clears the line

  void Advance(int64_t amount);

 private:
  void Draw(double seconds);

  const std::string label_;
  const int64_t total_;
  const std::string unit_;
  const bool visible_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  int64_t done_ = 0;
  double last_drawn_ = -1;
};

// "159.61 GB", "24.97 M"
std::string HumanQuantity(double amount, const std::string& unit);

}  // namespace halfbyte
