// RMSNorm over rows: y = x * rsqrt(mean(x^2) + eps) * weight, in fp32 (deepseek-v4.md §2.0).
#pragma once

#include "device/context.h"
#include "numerics/rounding.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

// x, y: [rows, columns]; y may be x. weight: [columns] fp32, or null for no weight (the per-head
// norm of queries). The row sum runs in sixteen lanes, so a row's result depends on that row alone.
void RmsNorm(const Context& context, MatrixView<const float> x, const float* weight, float eps,
             Rounding rounding, MatrixView<float> y);

}  // namespace halfbyte
