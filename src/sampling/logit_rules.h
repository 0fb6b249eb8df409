// What is done to the logits of a sequence before a token is drawn: masks, biases, penalties
// (server.md §1.8, steps 2 to 4). Keeps counts of the tokens seen, so a step costs no more for a
// longer text.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "sampling/sampler.h"

namespace halfbyte {

class LogitRules {
 public:
  LogitRules(const SamplingParams& params, std::span<const int32_t> prompt);

  // Steps 2 to 4 on one row, in place, in this order: `masks` (lists of ids; ids outside the row
  // are ignored) to -infinity; biases; repetition penalty r for tokens of prompt or output (z > 0 ?
  // z / r : z * r); minus frequency_penalty * c + presence_penalty, for tokens that came c > 0
  // times in the output. In fp32.
  void Apply(std::span<const std::span<const int32_t>> masks, std::span<float> logits) const;

  // Nothing but masks can change a row.
  bool only_masks() const { return !penalize_ && params_.logit_bias.empty(); }

  // A token was drawn.
  void Count(int32_t token);

 private:
  SamplingParams params_;
  bool penalize_;
  std::unordered_map<int32_t, int64_t>
      seen_;  // by id: times in the output, 0 if in the prompt only
};

}  // namespace halfbyte
