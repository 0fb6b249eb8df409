// How well a model predicts given text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/transformer.h"

namespace halfbyte {

struct Perplexity {
  double nll = 0;      // mean negative log-likelihood in nats
  int64_t tokens = 0;  // predictions made: each token but the first of every sequence
};

// Each sequence starts afresh. `progress` is told the tokens done after each forward call.
// Errors: no sequence of two tokens or more; what ForEachLogits returns.
Result<Perplexity> MeasurePerplexity(Transformer& model,
                                     std::span<const std::vector<int32_t>> sequences,
                                     const std::function<void(int64_t tokens)>& progress);

// Consecutive pieces of at most `context` tokens. Error: context below 2.
Result<std::vector<std::vector<int32_t>>> CutIntoContexts(std::span<const int32_t> tokens,
                                                          int64_t context);

}  // namespace halfbyte
