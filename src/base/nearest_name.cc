#include "base/nearest_name.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace halfbyte {
namespace {

// Edits from `a` to `b`: rows of the usual table, the last three of them.
size_t Distance(std::string_view a, std::string_view b) {
  std::array<std::vector<size_t>, 3> rows;
  for (auto& row : rows) row.resize(b.size() + 1);
  auto& [before, last, row] = rows;
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<std::string> NearestName(std::string_view name,
                                       std::span<const std::string> candidates) {
  std::optional<std::string> nearest;
  size_t best = name.size() / 3 + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(name, candidate);
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace halfbyte
