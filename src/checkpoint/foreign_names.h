// Tensor names that no table of tensor_name.h has: whose they look like, and what helps.
#pragma once

#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/finding.h"

namespace halfbyte {

struct ForeignNames {
  std::string_view sign;    // part of such a name; after '^' its beginning
  std::string_view whose;   // "GGUF (llama.cpp)"
  std::string_view remedy;  // a sentence's second half
};

// Null if nobody's names that we know of look like this.
const ForeignNames* WhoseName(std::string_view name);

// For a checkpoint most of whose `tensors` are unknown: one error instead of one line for each.
Finding ExplainForeignNames(const std::vector<CheckpointTensor>& unknown, size_t tensors);

// A tensor that holds all experts of a layer quantized, or their scales: mlp.experts.gate_up_proj
// of bytes, gate_up_proj_blocks (gpt-oss), gate_up_proj_weight_scale (ModelOpt), w13_weight (vLLM).
bool HoldsPackedExperts(const CheckpointTensor& tensor);
Finding ExplainPackedExperts(const CheckpointTensor& first);

}  // namespace halfbyte
