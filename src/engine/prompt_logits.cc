#include "engine/prompt_logits.h"

#include <algorithm>

namespace halfbyte {

Status ForEachLogits(Transformer& model, std::span<const int32_t> tokens,
                     std::span<const int64_t> chunks, const LogitsSink& sink) {
  const int64_t largest = model.options().batch_tokens;
  for (const int64_t chunk : chunks) {
    if (chunk < 1 || chunk > largest) {
      return MakeError("chunk size {} is outside 1..{}", chunk, largest);
    }
  }
  const int64_t total = std::ssize(tokens);
  HB_ASSIGN_OR_RETURN(const auto cache, model.NewCache({.context_tokens = total}));
  HB_ASSIGN_OR_RETURN(Sequence sequence, cache->NewSequence());
  for (size_t i = 0; sequence.position() < total; ++i) {
    const int64_t first = sequence.position();
    const int64_t wanted = chunks.empty() ? largest : chunks[std::min(i, chunks.size() - 1)];
    const int64_t count = std::min(wanted, total - first);
    const BatchItem item{&sequence,
                         tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                         BatchItem::Logits::kAll};
    HB_ASSIGN_OR_RETURN(const auto logits, model.Forward(*cache, {&item, 1}));
    HB_RETURN_IF_ERROR(sink(first, logits));
  }
  return {};
}

}  // namespace halfbyte
