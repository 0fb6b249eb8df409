// What a server says under /metrics (the text format of Prometheus), as far as a client sums it up.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace halfbyte {

// The samples of a Prometheus text: "name{label=\"x\"}" -> value.
using Metrics = std::map<std::string, double, std::less<>>;
Metrics ParseMetrics(std::string_view text);
// The sum of the samples called `name` whose labels have `label` in them ("reason=\"stop\""; empty:
// any); 0 if there is none.
double SumOf(const Metrics& metrics, std::string_view name, std::string_view label = "");

}  // namespace halfbyte
