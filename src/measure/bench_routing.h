// How the steps of a bench choose their experts.
//
//   rotating     the experts that have rested longest (rotating_routing.h); no expert twice in a
//                step, as long as there are enough
//   uniform      each token takes top_k random experts
//   dirichlet:A  the same with popular experts: each step draws the experts' popularity from a
//                symmetric Dirichlet distribution, and each token its experts one after the other
//                in proportion to it. The smaller A, the more the steps are skewed; 0.5 is what
//                benchmarks of serving use.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "base/result.h"
#include "measure/rotating_routing.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

struct BenchRouting {
  enum class Kind : uint8_t { kRotating, kUniform, kDirichlet };
  Kind kind = Kind::kRotating;
  double concentration = 1;  // kDirichlet

  std::string name() const;  // as it is parsed
};

// Error: neither "rotating", "uniform" nor "dirichlet:A" with A in 0.01..100.
Result<BenchRouting> ParseBenchRouting(std::string_view text);

class RoutingSource {
 public:
  RoutingSource(const MoeShape& shape, BenchRouting routing, uint32_t seed = 1)
      : routing_(routing), cycle_(shape, seed), random_(seed) {}

  // logits [tokens, experts] from which every router chooses the next step's experts.
  void TakeLogits(MatrixView<float> logits);

  RotatingRouting& cycle() { return cycle_; }

 private:
  BenchRouting routing_;
  RotatingRouting cycle_;
  std::mt19937 random_;
};

}  // namespace halfbyte
