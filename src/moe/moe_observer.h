// Sees what flows into the two stages of a layer while it runs; for measuring activations
// (activation_scales.h). A layer without an observer spends nothing on it.
#pragma once

#include "kernels/dispatch_plan/dispatch_plan.h"
#include "kernels/route/router.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

class MoeObserver {
 public:
  // Valid during the call.
  struct Sample {
    MatrixView<const float> rows;
    Routing routing;  // global ids
    const DispatchPlan& plan;
  };

  virtual ~MoeObserver() = default;

  // Both are called by the thread that called Run, once for each piece of tokens, before anything
  // is quantized. rows: the hidden rows [tokens, hidden], those without a local expert too.
  virtual void OnGateUpInput(const Sample& sample) = 0;
  // rows: h [padded rows, intermediate], with the routing weight if that comes before `down`.
  virtual void OnDownInput(const Sample& sample) = 0;
};

}  // namespace halfbyte
