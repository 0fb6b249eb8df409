// Products from the stored bytes (kernels/linear), in fp32 or fp64 sums: for weights that have no
// packed form, for fp32 activations, and for the judge.
#pragma once

#include <utility>
#include <vector>

#include "moe/expert_products.h"
#include "moe/expert_weights.h"

namespace halfbyte {

class StoredProducts : public ExpertProducts {
 public:
  // experts[e] for local expert e, bytes of somebody else. fp64_sums: kRef.
  StoredProducts(std::vector<ExpertWeights> experts, bool fp64_sums)
      : experts_(std::move(experts)), fp64_sums_(fp64_sums) {}

  void PrepareTokens(const Context& context, MatrixView<const float> x, int64_t top_k,
                     bool quantized, MoeWorkspace& workspace) const override;
  void PrepareH(const Context& context, MatrixView<float> h, bool quantized,
                MoeWorkspace& workspace) const override;
  void Multiply(const Context& context, ExpertMatrix matrix, const MoeWorkspace::Task& task,
                const MoeWorkspace& workspace, MatrixView<float> y) const override;
  float global_scale(ExpertMatrix matrix, LocalExpert expert) const override {
    return Of(matrix, expert).global_scale.value();
  }
  const PackedKernel* kernel(const Context&) const override { return nullptr; }
  const PackedExpert* packed_expert(LocalExpert) const override { return nullptr; }

 private:
  const WeightMatrix& Of(ExpertMatrix matrix, LocalExpert expert) const;

  std::vector<ExpertWeights> experts_;
  bool fp64_sums_;
};

}  // namespace halfbyte
