// Logits of every token of a prompt, in pieces of chosen sizes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "model/transformer.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

// Runs `tokens` through a fresh sequence and hands over the logits chunk by chunk, in order:
// sink(first token, logits [count, vocab]). chunks: sizes of the forward calls; the last size
// repeats until the prompt ends; empty = as large as the model allows.
// Errors: a chunk size below 1 or above the model's batch_tokens; more tokens than the model has
// positions for; logits that are not finite; what Forward and sink return.
using LogitsSink = std::function<Status(int64_t first, MatrixView<const float> logits)>;
Status ForEachLogits(Transformer& model, std::span<const int32_t> tokens,
                     std::span<const int64_t> chunks, const LogitsSink& sink);

}  // namespace halfbyte
