// What the tests of the layer share: a random layer in any format, its input, and two oracles.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "moe/moe_layer.h"

namespace halfbyte {

struct TestShape {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t experts = 0;
  int64_t tokens = 0;
  int64_t top_k = 0;
};

struct TestInput {
  TestShape shape;
  std::vector<float> hidden;  // bf16 numbers, N(0, 1)
  std::vector<int32_t> ids;   // distinct within a token
  std::vector<float> weights;

  TestInput(const TestShape& shape, uint32_t seed);
  // Those tokens, in that order.
  TestInput Select(const std::vector<int64_t>& tokens) const;

  MatrixView<const float> Hidden() const { return {hidden.data(), shape.tokens, shape.hidden}; }
  halfbyte::Routing Routing() const {
    return {{ids.data(), shape.tokens, shape.top_k}, {weights.data(), shape.tokens, shape.top_k}};
  }
};

struct TestLayer {
  TestShape shape;
  std::vector<ExpertWeights> experts;
  std::vector<std::vector<std::byte>> storage;
  // The weights before they were brought into their format, by expert: gate, up, down.
  std::vector<std::vector<float>> originals;
  mutable int64_t clamped = 0;  // gates beyond the limit that ExactLayer met

  // Weights N(0, spread^2 / K); gate and up get different global scales.
  TestLayer(const TestShape& shape, WeightFormat format, uint32_t seed, float spread = 3);

  // Limit 10, nothing static.
  MoeParams Params(Arithmetic arithmetic) const;
  MoeLimits Limits(int64_t max_tokens) const {
    return {max_tokens, shape.top_k, shape.experts, shape.hidden, shape.intermediate};
  }
  // The experts of the placement, or all.
  MoeLayer Layer(const MoeParams& params, const ExpertPlacement* placement = nullptr) const;

  struct RunOptions {
    CpuIsa isa = BestCpuIsa();
    int threads = 2;
    int64_t max_tokens = 64;
    const ExpertPlacement* placement = nullptr;
    MoeWorkspace* workspace = nullptr;
    MoeCounters* counters = nullptr;
  };
  // The output buffer holds NaN before.
  std::vector<float> Run(const MoeParams& params, const TestInput& input,
                         const RunOptions& options) const;
  std::vector<float> Run(const MoeParams& params, const TestInput& input) const {
    return Run(params, input, RunOptions());
  }
};

// A plain loop over slots with the layer's rounding points, on LinearReference, the scalar
// activation and the one-block quantizer: MoeLayer must give the same bits.
std::vector<float> ReferencePipeline(const TestLayer& layer, const MoeParams& params,
                                     const TestInput& input);

// "Dequantised" of moe-layer.md §10: fp64 math on the decoded weights, nothing rounded.
std::vector<double> ExactLayer(const TestLayer& layer, const TestInput& input);
// "Original": the same on the weights before quantization.
std::vector<double> OriginalLayer(const TestLayer& layer, const TestInput& input);

struct Agreement {
  double cosine = 0;
  double worst_row_cosine = 1;
  double relative_l2 = 0;
};
template <class A, class B>
Agreement Compare(const std::vector<A>& value, const std::vector<B>& reference, int64_t columns) {
  Agreement agreement;
  double dot = 0, values = 0, references = 0, error = 0;
  for (size_t row = 0; row < value.size(); row += static_cast<size_t>(columns)) {
    double row_dot = 0, row_values = 0, row_references = 0;
    for (size_t i = row; i < row + static_cast<size_t>(columns); ++i) {
      const double a = value[i], b = reference[i];
      row_dot += a * b;
      row_values += a * a;
      row_references += b * b;
      error += (a - b) * (a - b);
    }
    agreement.worst_row_cosine =
        std::min(agreement.worst_row_cosine, row_dot / std::sqrt(row_values * row_references));
    dot += row_dot;
    values += row_values;
    references += row_references;
  }
  agreement.cosine = dot / std::sqrt(values * references);
  agreement.relative_l2 = std::sqrt(error / references);
  return agreement;
}

}  // namespace halfbyte
