#include "loadgen/latencies.h"

#include <algorithm>
#include <cmath>

namespace halfbyte {
namespace {

constexpr double kFloorNs = 1000;  // class 0: up to 1 us
const double kClassWidth = std::log(1.01);

}  // namespace

void Latencies::Add(std::chrono::nanoseconds duration) {
  const double ns = std::max(0.0, static_cast<double>(duration.count()));
  const auto index =
      static_cast<size_t>(ns <= kFloorNs ? 0 : std::ceil(std::log(ns / kFloorNs) / kClassWidth));
  if (index >= classes_.size()) classes_.resize(index + 1);
  ++classes_[index];
  ++count_;
  max_ns_ = std::max(max_ns_, ns);
}

double Latencies::Percentile(double fraction) const {
  const auto wanted = static_cast<int64_t>(std::ceil(fraction * static_cast<double>(count_)));
  int64_t below = 0;
  for (size_t i = 0; i < classes_.size(); ++i) {
    below += classes_[i];
    if (below >= std::max<int64_t>(wanted, 1)) {
      return std::min(max_ns_, kFloorNs * std::exp(kClassWidth * static_cast<double>(i))) / 1e6;
    }
  }
  return 0;
}

Json Latencies::ToJson() const {
  return {{"count", count_},
          {"p50_ms", Rounded(Percentile(0.5))},
          {"p90_ms", Rounded(Percentile(0.9))},
          {"p99_ms", Rounded(Percentile(0.99))},
          {"max_ms", Rounded(max_ms())}};
}

}  // namespace halfbyte
