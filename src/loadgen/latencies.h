// Many durations in little memory: counted in classes 1 % wide, so percentiles are right to 1 %;
// the largest is exact.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/json.h"

namespace halfbyte {

// To three decimals, as reports show numbers.
inline double Rounded(double value) { return std::round(value * 1000) / 1000; }

class Latencies {
 public:
  void Add(std::chrono::nanoseconds duration);  // negative counts as 0

  int64_t count() const { return count_; }
  double max_ms() const { return max_ns_ / 1e6; }
  // The upper end of the class that holds the value at `fraction` (0.5: the median); 0 if empty.
  double Percentile(double fraction) const;  // milliseconds
  // {"count", "p50_ms", "p90_ms", "p99_ms", "max_ms"}
  Json ToJson() const;

 private:
  std::vector<int64_t> classes_;
  int64_t count_ = 0;
  double max_ns_ = 0;
};

}  // namespace halfbyte
