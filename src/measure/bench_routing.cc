#include "measure/bench_routing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace halfbyte {
namespace {

constexpr double kLeastConcentration = 0.01;
constexpr double kMostConcentration = 100;
// Experts below this are never among the first; scores of still lower logits would be 0.
constexpr float kLeastLogit = -60;

// log of a Gamma(alpha) number: log of a number a little larger, moved down (alpha may be so small
// that the number itself is 0).
float LogGamma(double alpha, std::mt19937& random) {
  std::gamma_distribution<double> gamma(alpha + 1);
  std::uniform_real_distribution<double> uniform(1e-12, 1);
  return static_cast<float>(std::log(gamma(random)) + std::log(uniform(random)) / alpha);
}

// Largest first, these give experts drawn one after the other in proportion to their popularity
// (the Gumbel trick), whose common factor does not matter.
void DrawByPopularity(double concentration, MatrixView<float> logits, std::mt19937& random) {
  std::vector<float> popularity(static_cast<size_t>(logits.columns));
  for (float& log_p : popularity) log_p = LogGamma(concentration, random);
  std::extreme_value_distribution<float> gumbel;
  for (int64_t t = 0; t < logits.rows; ++t) {
    for (int64_t e = 0; e < logits.columns; ++e) {
      logits.row(t)[e] = std::max(kLeastLogit, popularity[static_cast<size_t>(e)] + gumbel(random));
    }
  }
}

}  // namespace

std::string BenchRouting::name() const {
  if (kind == Kind::kRotating) return "rotating";
  if (kind == Kind::kUniform) return "uniform";
  return fmt::format("dirichlet:{}", concentration);
}

Result<BenchRouting> ParseBenchRouting(std::string_view text) {
  if (text == "rotating") return BenchRouting{BenchRouting::Kind::kRotating};
  if (text == "uniform") return BenchRouting{BenchRouting::Kind::kUniform};
  constexpr std::string_view kDirichlet = "dirichlet:";
  if (text.starts_with(kDirichlet)) {
    const std::string_view number = text.substr(kDirichlet.size());
    const char* const end = number.data() + number.size();
    BenchRouting routing{BenchRouting::Kind::kDirichlet};
    const auto [stop, error] = std::from_chars(number.data(), end, routing.concentration);
    if (error == std::errc() && stop == end && routing.concentration >= kLeastConcentration &&
        routing.concentration <= kMostConcentration) {
      return routing;
    }
  }
  return MakeError("routing '{}' is neither rotating, uniform nor dirichlet:A with A from {} to {}",
                   text, kLeastConcentration, kMostConcentration);
}

void RoutingSource::TakeLogits(MatrixView<float> logits) {
  switch (routing_.kind) {
    case BenchRouting::Kind::kRotating:
      return cycle_.TakeLogits(logits);
    case BenchRouting::Kind::kDirichlet:
      return DrawByPopularity(routing_.concentration, logits, random_);
    case BenchRouting::Kind::kUniform:
      break;
  }
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t t = 0; t < logits.rows; ++t) {
    for (int64_t e = 0; e < logits.columns; ++e) logits.row(t)[e] = uniform(random_);
  }
}

}  // namespace halfbyte
