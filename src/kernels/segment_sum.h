// Long row sums that several processors may share: a row is cut into segments of kSegmentColumns
// columns, the last one may be shorter; each is summed in sixteen lanes (simd16.h), and the sums of
// the segments are added in a binary tree: neighbours (0, 1), (2, 3), ..., then the neighbours of
// these, level by level; the odd last one of a level goes up as it is. So the order depends on the
// number of columns alone. Under the rule of simd16.h about what a body may call.
#pragma once

#include <cstring>

#include "kernels/simd16.h"

namespace halfbyte {

inline constexpr int64_t kSegmentColumns = 256;

namespace HB_SIMD_NAMESPACE {

// The tree for up to kMost rows side by side. Sums of segments come in ascending order; the part at
// level l is the sum of 2^l neighbours that still waits for its other half.
template <int kMost>
class TreeSum {
 public:
  explicit TreeSum(int64_t rows = kMost) : rows_(rows) {}

  // sums: [rows], used up.
  void Add(float* sums) {
    int level = 0;
    for (; (count_ >> level) % 2 != 0; ++level) AddTo(parts_[level], sums);
    std::memcpy(parts_[level], sums, static_cast<size_t>(rows_) * sizeof(float));
    ++count_;
  }

  // totals: [rows], zeros if there was nothing to add.
  void Total(float* totals) const {
    int level = 0;
    while (level < kLevels && (count_ >> level) % 2 == 0) ++level;
    if (level == kLevels) {
      std::memset(totals, 0, static_cast<size_t>(rows_) * sizeof(float));
      return;
    }
    std::memcpy(totals, parts_[level], static_cast<size_t>(rows_) * sizeof(float));
    for (++level; count_ >> level != 0; ++level) {
      if ((count_ >> level) % 2 != 0) AddTo(parts_[level], totals);
    }
  }

 private:
  static constexpr int kLevels = 24;  // for rows of up to 2^32 - 1 columns

  void AddTo(const float* part, float* sums) const {
    for (int64_t i = 0; i < rows_; ++i) sums[i] = part[i] + sums[i];
  }

  float parts_[kLevels][kMost];
  int64_t rows_;
  int64_t count_ = 0;
};

}  // namespace HB_SIMD_NAMESPACE

}  // namespace halfbyte
