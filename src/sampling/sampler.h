// Chooses the next token from logits: server.md §1.8, steps 5 to 9. Pure: the same arguments give
// the same token, on any thread and in any batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace halfbyte {

struct LogitBias {
  int32_t token = 0;
  double bias = 0;  // [-100, 100]
};

struct SamplingParams {
  double temperature = 1.0;  // [0, 2]; 0 takes the best token, the lowest id on ties
  double top_p = 1.0;        // (0, 1]; 1 is off
  int64_t top_k = 0;         // -1 and 0 are off, else >= 1
  double min_p = 0.0;        // [0, 1]; 0 is off
  uint64_t seed = 0;         // of the random numbers

  // Applied to the logits before all of the above (logit_rules.h).
  double repetition_penalty = 1.0;    // (0, 10]; 1 is off
  double frequency_penalty = 0.0;     // [-2, 2]; 0 is off
  double presence_penalty = 0.0;      // [-2, 2]; 0 is off
  std::vector<LogitBias> logit_bias;  // each id once, at most 1024
};

// Error naming the field, its value and the range.
Status Validate(const SamplingParams& params);

// `logits`: one row, fp32 [vocabulary]; -infinity masks a token. `output_index` counts the tokens
// drawn for this sequence so far, `choice` tells the sequences of a request apart; with the seed
// they determine the random number.
//
// With q_i = exp((z_i - max z) / temperature) in double, in this order: min_p keeps q_i >= min_p;
// top_k keeps the k first by (q down, id up); top_p keeps the shortest prefix in that order whose
// sum reaches top_p of what is left; then u in [0, 1) picks the first kept token in id order whose
// partial sum exceeds u times the sum (sums run within blocks of 1,024 ids, then over blocks).
//
// Errors: parameters out of range; NaN or +infinity among the logits, or nothing but -infinity
// ("nonfinite_logits: ..."). Never returns a token whose q is 0.
Result<int> Sample(std::span<const float> logits, const SamplingParams& params,
                   uint32_t output_index, uint32_t choice);

}  // namespace halfbyte
