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
// The bias decides the selection only. (A bias of the router's linear layer, as gpt-oss has it, is
// part of the logits.) Everything is fp32: rounding logits to bf16 would change selections. Rows
// are independent of each other.
//
// NaN and +infinity (RTE-01): such a logit counts as the worst of the row and has weight 0, so ids
// stay distinct and inside [0, experts); rows that hold one are counted.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/context.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

enum class RouterScore : uint8_t { kSqrtSoftplus, kSigmoid, kSoftmax, kIdentity };

// How the chosen scores become weights.
enum class Renormalization : uint8_t {
  kNone,
  kSum,              // divided by their sum + epsilon
  kSelectedSoftmax,  // softmax over them; with kIdentity, over the chosen logits (gpt-oss)
};

// What routed_scaling_factor multiplies: the weights, or the sum of the routed experts
// (Nemotron-H). In the second case it leaves the weights alone and belongs into
// MoeParams::output_scale.
enum class ScaleOn : uint8_t { kWeights, kOutput };

struct RouterParams {
  int64_t experts = 0;
  int64_t top_k = 0;  // 1..experts
  RouterScore score = RouterScore::kSqrtSoftplus;
  Renormalization renormalization = Renormalization::kSum;
  float epsilon = 0;  // DeepSeek-V3: 1e-20
  float routed_scaling_factor = 1;
  ScaleOn scale_on = ScaleOn::kWeights;
  // Experts in `groups` equal consecutive groups, of which the chosen_groups best take part in the
  // selection (DeepSeek-V3: 8 and 4). A group is as good as the sum of its two best keys (score +
  // bias); ties go to the lower group. An expert of another group is never chosen, whatever its
  // key: top_k must not exceed the experts of the chosen groups. Not for tables.
  int64_t groups = 1;
  int64_t chosen_groups = 1;
};

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

// tid2eid as files store it, I64 or I32 [vocabulary, top_k], checked: every entry in [0, experts).
// Errors name the tensor and the token.
Result<std::vector<int32_t>> ReadHashTable(const TensorView& tensor, int64_t experts, int64_t top_k,
                                           std::string_view name);

}  // namespace halfbyte
