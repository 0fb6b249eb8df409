#include "measure/rotating_routing.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace halfbyte {

RotatingRouting::RotatingRouting(const MoeShape& shape, uint32_t seed)
    : top_k_(shape.top_k), cycle_(static_cast<size_t>(shape.experts)) {
  std::iota(cycle_.begin(), cycle_.end(), 0);
  std::shuffle(cycle_.begin(), cycle_.end(), std::mt19937(seed));
}

std::vector<int32_t> RotatingRouting::Take(int64_t count) {
  std::vector<int32_t> experts(static_cast<size_t>(count));
  for (int32_t& expert : experts) {
    expert = cycle_[next_];
    next_ = (next_ + 1) % cycle_.size();
  }
  return experts;
}

void RotatingRouting::TakeLogits(MatrixView<float> logits) {
  for (int64_t t = 0; t < logits.rows; ++t) {
    float* row = logits.row(t);
    std::fill_n(row, logits.columns, -1.0f);
    const std::vector<int32_t> chosen = Take(top_k_);
    for (int64_t j = 0; j < top_k_; ++j) {
      const float below_one = static_cast<float>(j) / static_cast<float>(top_k_);
      row[chosen[static_cast<size_t>(j)]] = 1.0f - below_one;
    }
  }
}

}  // namespace halfbyte
