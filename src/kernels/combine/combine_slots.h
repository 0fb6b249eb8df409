// The last step of a layer (moe-layer.md §2, step 9): a token's slot values become its row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "device/context.h"
#include "kernels/route/router.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

struct CombineRule {
  bool weigh = false;      // by the routing weights, where those come after `down`; else by 1
  float output_scale = 1;  // of the sum
};

// out[t] = output_scale * sum of the token's slot values times their weights, j ascending, each
// step one fused multiply-add. value_of_slot(slot) is a row of out.columns numbers, or null for a
// slot without an expert, which is left out. Wherever the values were computed, equal values give
// equal bits.
template <class ValueOfSlot>
void CombineSlots(const Context& context, const Routing& routing, const CombineRule& rule,
                  const ValueOfSlot& value_of_slot, MatrixView<float> out) {
  constexpr int64_t kMinPiece = 4096;  // multiply-adds that outweigh the start of a piece
  const int64_t width = out.columns;
  const int64_t top_k = routing.top_k();
  context.pool().ParallelFor(
      out.rows, std::max<int64_t>(1, kMinPiece / std::max<int64_t>(1, width * top_k)),
      [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          float* sum = out.row(t);
          std::fill_n(sum, width, 0.0f);
          for (int64_t j = 0; j < top_k; ++j) {
            const float* value = value_of_slot(t * top_k + j);
            if (value == nullptr) continue;
            const float weight = rule.weigh ? routing.topk_weights.row(t)[j] : 1.0f;
            for (int64_t n = 0; n < width; ++n) sum[n] = std::fma(weight, value[n], sum[n]);
          }
          for (int64_t n = 0; n < width; ++n) sum[n] *= rule.output_scale;
        }
      });
}

}  // namespace halfbyte
