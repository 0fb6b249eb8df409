// How logits become choices and weights (router.h). Plain numbers: device code includes this.
#pragma once

#include <cstdint>

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

}  // namespace halfbyte
