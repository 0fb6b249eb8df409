#include "offline/prompt_logits.h"

#include <algorithm>
#include <cmath>

namespace halfbyte {
namespace {

// A NaN among the weights, or a scale that is far too large, comes out here.
Status CheckFinite(int64_t first, MatrixView<const float> logits) {
  for (int64_t r = 0; r < logits.rows; ++r) {
    const std::span row(logits.row(r), static_cast<size_t>(logits.columns));
    if (std::ranges::all_of(row, [](float x) { return std::isfinite(x); })) continue;
    return MakeError("the logits after token {} are not finite; halfbyte verify finds bad weights",
                     first + r);
  }
  return {};
}

}  // namespace

Status ForEachLogits(Transformer& model, std::span<const int32_t> tokens,
                     std::span<const int64_t> chunks, const LogitsSink& sink) {
  const int64_t largest = model.options().batch_tokens;
  for (const int64_t chunk : chunks) {
    if (chunk < 1 || chunk > largest) {
      return MakeError("chunk size {} is outside 1..{}", chunk, largest);
    }
  }
  const int64_t total = std::ssize(tokens);
  if (total > model.config().max_position_embeddings) {
    return MakeError("{} tokens do not fit the model's context of {}", total,
                     model.config().max_position_embeddings);
  }
  HB_ASSIGN_OR_RETURN(const auto cache, model.NewCache({.context_tokens = total}));
  HB_ASSIGN_OR_RETURN(Sequence sequence, cache->NewSequence());
  for (size_t i = 0; sequence.position() < total; ++i) {
    const int64_t first = sequence.position();
    const int64_t wanted = chunks.empty() ? largest : chunks[std::min(i, chunks.size() - 1)];
    const int64_t count = std::min(wanted, total - first);
    const BatchItem item{&sequence,
                         tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                         LogitsWanted::kAll};
    HB_ASSIGN_OR_RETURN(const auto logits, model.Forward(*cache, {&item, 1}));
    HB_RETURN_IF_ERROR(CheckFinite(first, logits));
    HB_RETURN_IF_ERROR(sink(first, logits));
  }
  return {};
}

}  // namespace halfbyte
