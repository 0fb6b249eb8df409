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
// The sum over all label values of the samples called `name`; 0 if there is none.
double SumOf(const Metrics& metrics, std::string_view name);

}  // namespace halfbyte
