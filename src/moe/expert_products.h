// How the products of a layer's experts are computed: from packed weights (packed_products.h), or
// from the stored bytes (stored_products.h). MoeLayer asks for them in the order of its steps.
#pragma once

#include <cstdint>

#include "device/context.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "kernels/packed_linear/packed_linear.h"
#include "moe/moe_workspace.h"
#include "moe/packed_experts.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

enum class ExpertMatrix : uint8_t { kGate, kUp, kDown };

class ExpertProducts {
 public:
  virtual ~ExpertProducts() = default;

  // What a stage's products are computed from, by row of the plan. `quantized`: not x itself, but
  // what the workspace's codes, block_scales and quantized_scales hold of it. Writes row_scales,
  // too: what an element must be multiplied with beside its weight's global scale.
  //
  // x: hidden rows [tokens, hidden]; each goes to the rows of its slots.
  virtual void PrepareTokens(const Context& context, MatrixView<const float> x, int64_t top_k,
                             bool quantized, MoeWorkspace& workspace) const = 0;
  // h: [padded rows, intermediate] in the workspace; its content may be lost.
  virtual void PrepareH(const Context& context, MatrixView<float> h, bool quantized,
                        MoeWorkspace& workspace) const = 0;

  // Columns [task.begin, task.end) of y [rows of the task's expert, channels]: the prepared rows
  // times the matrix, both without their global scales.
  virtual void Multiply(const Context& context, ExpertMatrix matrix, const MoeWorkspace::Task& task,
                        const MoeWorkspace& workspace, MatrixView<float> y) const = 0;
  virtual float global_scale(ExpertMatrix matrix, LocalExpert expert) const = 0;

  // What computes them, and from what; null: kernels/linear, from the stored bytes.
  virtual const PackedKernel* kernel(const Context& context) const = 0;
  virtual const PackedExpert* packed_expert(LocalExpert expert) const = 0;
};

}  // namespace halfbyte
