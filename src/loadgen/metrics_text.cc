#include "loadgen/metrics_text.h"

#include <algorithm>
#include <cstdlib>

namespace halfbyte {

Metrics ParseMetrics(std::string_view text) {
  Metrics metrics;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t space = line.rfind(' ');
    if (line.empty() || line.front() == '#' || space == std::string_view::npos) continue;
    const std::string value(line.substr(space + 1));
    metrics[std::string(line.substr(0, space))] = std::strtod(value.c_str(), nullptr);
  }
  return metrics;
}

double SumOf(const Metrics& metrics, std::string_view name, std::string_view label) {
  double sum = 0;
  for (auto sample = metrics.lower_bound(name);
       sample != metrics.end() && sample->first.starts_with(name); ++sample) {
    const std::string_view labels = std::string_view(sample->first).substr(name.size());
    const bool whole = labels.empty() || labels.front() == '{';
    if (whole && labels.find(label) != std::string_view::npos) sum += sample->second;
  }
  return sum;
}

}  // namespace halfbyte
