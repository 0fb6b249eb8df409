// A progress line with rate and ETA on stderr, for work that takes more than a moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace halfbyte {

// How far a piece of work is.
struct ProgressReport {
  std::string label;
  std::string unit;  // of done and total: "B", "token"
  int64_t done = 0;
  int64_t total = 0;
  double seconds = 0;  // since it began

  double share() const;         // 0 .. 1
  double seconds_left() const;  // at the pace so far; 0 if there is none yet
  double rate() const;          // units per second; 0 if there is none yet
  // "load weights: 26 %, 41.50 GB of 159.61 GB, 1.20 GB/s, 1:38 left"; before anything is done:
  // the label.
  std::string Describe() const;
};
using ProgressListener = std::function<void(const ProgressReport&)>;

// The line is drawn only if stderr is a terminal. Advance may be called from any thread.
class Progress {
 public:
  // `total` in `unit`s; "B" prints with decimal prefixes. `listener`, if there is one, is told of
  // every advance, by one thread at a time.
  Progress(std::string label, int64_t total, std::string unit = "B",
           ProgressListener listener = nullptr);
  ~Progress();  // clears the line

  void Advance(int64_t amount);

 private:
  void Draw();

  const ProgressListener listener_;
  const bool visible_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  ProgressReport report_;
  double last_drawn_ = -1;
};

// "159.61 GB", "24.97 M"
std::string HumanQuantity(double amount, const std::string& unit);
// "159.61 GB"
std::string HumanBytes(int64_t bytes);

}  // namespace halfbyte
