// Log-probabilities to report (server.md §1.8 step 1): log-softmax of a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace halfbyte {

// One token with its natural-log probability; -infinity is possible.
struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0;

  bool operator==(const TokenLogprob&) const = default;
};

struct LogprobEntry {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // best first, lowest id first among equals
  // Where the token's text begins in its channel, in characters (code points).
  int64_t text_offset = 0;

  bool operator==(const LogprobEntry&) const = default;
};

// `logits`: finite or -infinity, at least one finite. `token`: an id of the row; `top`: how many
// best tokens are listed beside it (the drawn one may be among them), best first, lowest id first
// among equals. Sums in double, in id order. text_offset stays 0.
LogprobEntry LogprobsOf(std::span<const float> logits, int32_t token, int32_t top);

}  // namespace halfbyte
