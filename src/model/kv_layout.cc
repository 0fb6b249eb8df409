#include "model/kv_layout.h"

#include <algorithm>
#include <bit>

namespace halfbyte {
namespace {

Status CheckRates(const ModelConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    if (layer.compress_rate > 0 && kContextBlockTokens % layer.compress_rate != 0) {
      return MakeError("KV cache: compression rate {} does not divide the {} tokens of a block",
                       layer.compress_rate, kContextBlockTokens);
    }
  }
  return {};
}

Status CheckIndexRows(const ModelConfig& config, IndexFormat format) {
  const int64_t dim = config.index_head_dim;
  if (format == IndexFormat::kMxfp4 &&
      (!std::has_single_bit(static_cast<uint64_t>(dim)) || dim < 2 ||
       dim > IndexRow::kMaxMxfp4Dim) &&
      std::ranges::any_of(config.layers, [](const LayerConfig& layer) {
        return layer.attention == AttentionKind::kC4;
      })) {
    return MakeError("KV cache: index_head_dim {} is no power of two from 2 to {}; use --math fp32",
                     dim, IndexRow::kMaxMxfp4Dim);
  }
  return {};
}

}  // namespace

Result<KvLayout> KvLayout::Create(const ModelConfig& config, MathMode math) {
  const bool exact = math == MathMode::kFp32;
  return Create(config, exact ? KvFormat::kF32 : KvFormat::kFp8,
                exact ? IndexFormat::kF32 : IndexFormat::kMxfp4);
}

Result<KvLayout> KvLayout::Create(const ModelConfig& config, KvFormat kv_format,
                                  IndexFormat index_format) {
  HB_RETURN_IF_ERROR(CheckRates(config));
  HB_RETURN_IF_ERROR(CheckIndexRows(config, index_format));
  KvLayout layout;
  layout.kv_row_ = {kv_format, config.head_dim, config.rope_dim};
  layout.index_row_ = {index_format, config.index_head_dim};
  for (const LayerConfig& kind : config.layers) {
    Layer layer;
    layer.indexed = kind.attention == AttentionKind::kC4;
    if (kind.compress_rate > 0) layer.entries_per_block = kContextBlockTokens / kind.compress_rate;
    if (kind.attention != AttentionKind::kWindow) {
      layer.attention_ring = layout.AddRing(kind.compress_rate, layer.indexed, config.head_dim);
    }
    if (layer.indexed) {
      layer.indexer_ring = layout.AddRing(kind.compress_rate, true, config.index_head_dim);
    }
    layout.window_page_bytes_ += kWindowPageTokens * layout.kv_row_.bytes();
    layout.context_block_bytes_ +=
        layer.entries_per_block *
        (layout.kv_row_.bytes() + (layer.indexed ? layout.index_row_.bytes() : 0));
    layout.layers_.push_back(layer);
  }
  return layout;
}

int64_t KvLayout::AddRing(int64_t rate, bool overlap, int64_t dim) {
  const Ring ring{state_floats_, rate, overlap, 2 * (overlap ? 2 * dim : dim)};
  state_floats_ += ring.rows() * ring.row_floats;
  if (overlap) tail_floats_ += rate * ring.row_floats;
  rings_.push_back(ring);
  return std::ssize(rings_) - 1;
}

int64_t KvLayout::BytesOf(const KvPoolSizes& sizes) const {
  return sizes.context_blocks * context_block_bytes() + sizes.window_pages * window_page_bytes() +
         sizes.state_slots * state_slot_bytes() + sizes.tails * tail_bytes();
}

Status KvLayout::CheckSizes(const KvPoolSizes& sizes) {
  if (std::max({sizes.context_blocks, sizes.state_slots, sizes.tails}) > kMostKvPages ||
      sizes.window_pages > 16 * kMostKvPages) {
    return MakeError(
        "KV cache: {} context blocks, {} window pages, {} sequences and {} snapshots are more than "
        "can be held; allow less",
        sizes.context_blocks, sizes.window_pages, sizes.state_slots, sizes.tails);
  }
  return {};
}

}  // namespace halfbyte
