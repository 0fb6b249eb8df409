// Draws the tokens of one choice: logits in, token and its log-probabilities out, by all rules of
// server.md §1.8.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/output.h"
#include "engine/request.h"
#include "sampling/logit_rules.h"

namespace halfbyte {

class ChoiceSampler {
 public:
  // `choice` is 0 .. n-1. `request` must outlive this. `eos_ids`: the model's end tokens.
  ChoiceSampler(const Request& request, int32_t choice, std::span<const int32_t> eos_ids,
                bool processed_logprobs);

  struct Draw {
    int32_t token = 0;
    std::optional<LogprobEntry> logprobs;  // if the request wants them
  };
  // The next token from one row of logits. `reasoning`: the choice is inside its reasoning. Error:
  // "nonfinite_logits: ...".
  Result<Draw> Next(std::span<const float> logits, bool reasoning);

 private:
  const Request& request_;
  const uint32_t choice_;
  const bool processed_logprobs_;
  LogitRules rules_;
  std::vector<int32_t> eos_ids_;
  int64_t drawn_ = 0;
  std::vector<float> row_;  // a copy to be changed
};

}  // namespace halfbyte
