// RMSNorm over rows: y = x * rsqrt(mean(x^2) + eps) * weight, in fp32 (deepseek-v4.md §2.0).
#pragma once

#include "device/context.h"
#include "numerics/rounding.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

// x, y: [rows, columns]; y may be x. weight: [columns] fp32, or null for no weight (the per-head
// norm of queries). A row's result depends on that row alone: the sum of its squares is in segments
// (kernels/segment_sum.h); then 1 / sqrt(sum / columns + eps), x times it, weight times that, and
// one rounding.
void RmsNorm(const Context& context, MatrixView<const float> x, const float* weight, float eps,
             Rounding rounding, MatrixView<float> y);

// The rule as plain loops, bit for bit.
void RmsNormReference(MatrixView<const float> x, const float* weight, float eps, Rounding rounding,
                      MatrixView<float> y);

}  // namespace halfbyte
