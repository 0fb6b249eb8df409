#include "model/cuda/decode_bucket.h"

#include <algorithm>

namespace halfbyte {
namespace {

int64_t ContextBound(const ModelConfig& config, int64_t longest, int64_t most) {
  int64_t bound = 4096;
  for (const LayerConfig& layer : config.layers) {
    if (layer.attention == AttentionKind::kC4) {
      bound = layer.compress_rate * (config.index_topk + 1) - 1;
    }
  }
  while (bound < longest) bound *= 4;
  return std::min(bound, most);
}

}  // namespace

std::optional<int64_t> DecodeBucket(int64_t sequences) {
  const auto* const found = std::ranges::lower_bound(kDecodeBuckets, sequences);
  if (found == std::end(kDecodeBuckets)) return std::nullopt;
  return *found;
}

std::optional<StepSizes> DecodeSizes(const ModelConfig& config, const StepSizes& step,
                                     int64_t most_rows, int64_t most_context) {
  if (step.shape.count(TokenSet::kAll) != step.sequences || !step.all_wanted()) return std::nullopt;
  const std::optional<int64_t> rows = DecodeBucket(step.sequences);
  if (!rows || *rows > most_rows) return std::nullopt;
  const int64_t context = ContextBound(config, step.shape.longest(TokenSet::kAll), most_context);
  return StepSizes{{.tokens = {*rows, *rows}, .context = {context, context}}, *rows};
}

}  // namespace halfbyte
