// The middle of what was measured several times.
#pragma once

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace halfbyte {

// The upper one of two middles; `values` may not be empty.
inline double Median(std::vector<double> values) {
  HB_CHECK(!values.empty(), "no values");
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace halfbyte
