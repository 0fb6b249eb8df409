// One product per group of columns, for the grouped output projection (deepseek-v4.md §2.7).
#pragma once

#include "device/context.h"
#include "tensor/tensor_view.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

// x [tokens, groups * K], w [groups * N, K], y [tokens, groups * N]:
//   y[t, g*N + n] = sum_k x[t, g*K + k] * w[g*N + n, k]
// in the order of operations of kernels/linear. Any dimension may be 0; shapes that disagree abort.
void GroupedLinear(const Context& context, MatrixView<const float> x, int64_t groups,
                   const WeightMatrix& w, MatrixView<float> y);

}  // namespace halfbyte
