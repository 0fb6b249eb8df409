#include "offline/perplexity.h"

#include <algorithm>
#include <cmath>

#include "offline/prompt_logits.h"

namespace halfbyte {
namespace {

// -log softmax(logits)[target]
double NegativeLogLikelihood(std::span<const float> logits, int32_t target) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - max);
  return std::log(sum) + max - logits[static_cast<size_t>(target)];
}

}  // namespace

Result<Perplexity> MeasurePerplexity(Transformer& model,
                                     std::span<const std::vector<int32_t>> sequences,
                                     const std::function<void(int64_t tokens)>& progress) {
  Perplexity result;
  double total = 0;
  for (const std::vector<int32_t>& tokens : sequences) {
    if (tokens.size() < 2) continue;
    HB_RETURN_IF_ERROR(ForEachLogits(
        model, tokens, {}, [&](int64_t first, MatrixView<const float> logits) -> Status {
          for (int64_t i = 0; i < logits.rows && first + i + 1 < std::ssize(tokens); ++i) {
            total += NegativeLogLikelihood({logits.row(i), static_cast<size_t>(logits.columns)},
                                           tokens[static_cast<size_t>(first + i + 1)]);
            ++result.tokens;
          }
          progress(logits.rows);
          return {};
        }));
  }
  if (result.tokens == 0) {
    return MakeError("nothing to predict: a sequence needs at least two tokens");
  }
  result.nll = total / static_cast<double>(result.tokens);
  return result;
}

Result<std::vector<std::vector<int32_t>>> CutIntoContexts(std::span<const int32_t> tokens,
                                                          int64_t context) {
  if (context < 2) return MakeError("--context {}: at least 2 tokens are needed", context);
  std::vector<std::vector<int32_t>> pieces;
  for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(context)) {
    const size_t count = std::min(static_cast<size_t>(context), tokens.size() - at);
    pieces.emplace_back(tokens.begin() + static_cast<int64_t>(at),
                        tokens.begin() + static_cast<int64_t>(at + count));
  }
  return pieces;
}

}  // namespace halfbyte
