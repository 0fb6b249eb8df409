// Products from packed weights (kernels/packed_linear): rows become operands of its kernels.
#pragma once

#include <utility>

#include "moe/expert_products.h"
#include "moe/moe_params.h"

namespace halfbyte {

class PackedProducts : public ExpertProducts {
 public:
  // Any arithmetic but kRef.
  PackedProducts(PackedExperts experts, Arithmetic arithmetic)
      : experts_(std::move(experts)), arithmetic_(arithmetic) {}

  void PrepareTokens(const Context& context, MatrixView<const float> x, int64_t top_k,
                     bool quantized, MoeWorkspace& workspace) const override;
  void PrepareH(const Context& context, MatrixView<float> h, bool quantized,
                MoeWorkspace& workspace) const override;
  void Multiply(const Context& context, ExpertMatrix matrix, const MoeWorkspace::Task& task,
                const MoeWorkspace& workspace, MatrixView<float> y) const override;
  float global_scale(ExpertMatrix matrix, LocalExpert expert) const override {
    return Of(matrix, expert).global_scale.value();
  }
  const PackedKernel* kernel(const Context& context) const override;
  const PackedExpert* packed_expert(LocalExpert expert) const override { return &experts_[expert]; }

 private:
  const PackedMatrix& Of(ExpertMatrix matrix, LocalExpert expert) const;

  PackedExperts experts_;
  Arithmetic arithmetic_;
};

}  // namespace halfbyte
