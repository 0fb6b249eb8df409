// The small steps between products.
#pragma once

#include <cstdint>
#include <span>

#include "device/context.h"
#include "numerics/rounding.h"
#include "tensor/tensor_view.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

// x = round(x)
void RoundRows(const Context& context, Rounding rounding, MatrixView<float> x);

// x = round(factor * x)
void ScaleRows(const Context& context, float factor, Rounding rounding, MatrixView<float> x);

// x = round(x + y)
void AddRows(const Context& context, MatrixView<const float> y, Rounding rounding,
             MatrixView<float> x);

// Row ids[t] of the table in each of `copies` consecutive parts of out [tokens, copies * columns].
// The ids have been checked.
void EmbedTokens(const Context& context, const WeightMatrix& table, std::span<const int32_t> ids,
                 int64_t copies, Rounding rounding, MatrixView<float> out);

}  // namespace halfbyte
