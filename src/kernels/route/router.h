// From router logits to chosen experts and their weights (deepseek-v4.md §2.8).
//
//   score_e = sqrt(softplus(logit_e)) (or another function)
//   ids     = the top_k experts by score + selection bias, ties to the lower id; or the row of a
//             table that belongs to the token id, without bias
//   w_j     = score of id j / sum of the chosen scores * routed_scaling_factor
//
// Other families (checkpoints.md §5.1, §5.3) differ in the score, in the way the chosen scores
// become weights, in where the factor is applied, and in choosing groups of experts first.
//
// Scores are within 6 units of the last place of their formulas for logits from -87 on, and the
// same with every C library: exp is that of kernels/simd16_exp.h, below -88 it is 0.
//
// The bias decides the selection only. (A bias of the router's linear layer, as gpt-oss has it, is
// part of the logits.) Everything is fp32: rounding logits to bf16 would change selections. Rows
// are independent of each other.
//
// NaN and +infinity (RTE-01): such a logit counts as the worst of the row and has weight 0, so ids
// stay distinct and inside [0, experts); rows that hold one are counted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/context.h"
#include "kernels/route/router_params.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

// One token's choices per row, by falling selection score. An id outside [0, experts) means no
// expert: routers never write one, but padding may.
template <class Id, class Weight>
struct BasicRouting {
  MatrixView<Id> topk_ids;          // [tokens, top_k] global ids
  MatrixView<Weight> topk_weights;  // [tokens, top_k]

  int64_t tokens() const { return topk_ids.rows; }
  int64_t top_k() const { return topk_ids.columns; }
  BasicRouting Rows(int64_t begin, int64_t count) const {
    return {topk_ids.Rows(begin, count), topk_weights.Rows(begin, count)};
  }
  operator BasicRouting<const Id, const Weight>() const { return {topk_ids, topk_weights}; }
};
using MutableRouting = BasicRouting<int32_t, float>;
using Routing = BasicRouting<const int32_t, const float>;

struct RouterCounters {
  int64_t rows = 0;
  int64_t bad_rows = 0;  // with a NaN or +infinity among the logits
};

// logits [tokens, experts]; bias [experts] or empty. Shapes that disagree abort.
RouterCounters Route(const Context& context, const RouterParams& params,
                     MatrixView<const float> logits, std::span<const float> bias,
                     MutableRouting routing);

// Hash layers: ids are row token_ids[t] of `table` [vocabulary, top_k], weights come from the
// logits. The token ids have been checked against the vocabulary.
RouterCounters RouteByTable(const Context& context, const RouterParams& params,
                            MatrixView<const float> logits, MatrixView<const int32_t> table,
                            std::span<const int32_t> token_ids, MutableRouting routing);

}  // namespace halfbyte
