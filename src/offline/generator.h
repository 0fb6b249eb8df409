// Generates a continuation of one prompt, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/output.h"
#include "model/transformer.h"
#include "sampling/sampler.h"

namespace halfbyte {

struct GenerateRequest {
  std::vector<int32_t> prompt;
  std::optional<int64_t> max_tokens;  // absent: until the end token or the end of the context
  SamplingParams sampling;
  std::vector<int64_t> stop_ids;    // end the text; the one that came is in the result
  std::vector<int32_t> masked_ids;  // never drawn
  int64_t min_tokens = 0;           // no end token before
};

struct GenerateResult {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kLength;
  double prompt_seconds = 0;
  double generate_seconds = 0;
};

// Calls on_token for every token as it comes; false ends the text. Errors: an empty prompt, one
// that leaves no room in the model's context, max_tokens that do not fit or are below 1; what
// Forward and Sample return.
Result<GenerateResult> GenerateTokens(Transformer& model, const GenerateRequest& request,
                                      const std::function<bool(int32_t)>& on_token);

}  // namespace halfbyte
