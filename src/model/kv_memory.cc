#include "model/kv_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

Status CheckSizes(const KvPoolSizes& sizes) {
  if (std::max({sizes.context_blocks, sizes.state_slots, sizes.tails}) > kMostKvPages ||
      sizes.window_pages > 16 * kMostKvPages) {
    return MakeError(
        "KV cache: {} context blocks, {} window pages, {} sequences and {} snapshots are more than "
        "can be held; allow less",
        sizes.context_blocks, sizes.window_pages, sizes.state_slots, sizes.tails);
  }
  return {};
}

}  // namespace

Result<KvMemory> KvMemory::Create(const ModelConfig& config, KvFormat kv_format,
                                  IndexFormat index_format, const KvPoolSizes& sizes) {
  HB_RETURN_IF_ERROR(CheckSizes(sizes));
  for (const LayerConfig& layer : config.layers) {
    if (layer.compress_rate > 0 && kContextBlockTokens % layer.compress_rate != 0) {
      return MakeError("KV cache: compression rate {} does not divide the {} tokens of a block",
                       layer.compress_rate, kContextBlockTokens);
    }
  }
  const int64_t index_dim = config.index_head_dim;
  if (index_format == IndexFormat::kMxfp4 &&
      (!std::has_single_bit(static_cast<uint64_t>(index_dim)) || index_dim < 2 ||
       index_dim > IndexRow::kMaxMxfp4Dim) &&
      std::ranges::any_of(config.layers, [](const LayerConfig& layer) {
        return layer.attention == AttentionKind::kC4;
      })) {
    return MakeError("KV cache: index_head_dim {} is no power of two from 2 to {}; use --math fp32",
                     index_dim, IndexRow::kMaxMxfp4Dim);
  }
  KvMemory memory;
  memory.kv_row_ = {kv_format, config.head_dim, config.rope_dim};
  memory.index_row_ = {index_format, config.index_head_dim};
  memory.PlanState(config);
  HB_RETURN_IF_ERROR(memory.AllocatePools(config, sizes));
  return memory;
}

void KvMemory::PlanState(const ModelConfig& config) {
  const auto add_ring = [&](int64_t rate, bool overlap, int64_t dim) {
    const int64_t row_floats = 2 * (overlap ? 2 * dim : dim);
    rings_.push_back({state_floats_, rate, overlap, row_floats});
    state_floats_ += (overlap ? 2 * rate : rate) * row_floats;
    if (overlap) tail_floats_ += rate * row_floats;
    return rings_.back().offset;
  };
  for (const LayerConfig& layer : config.layers) {
    LayerPools pools;
    pools.rate = layer.compress_rate;
    pools.overlap = layer.attention == AttentionKind::kC4;
    if (layer.attention != AttentionKind::kWindow) {
      pools.attention_ring = add_ring(layer.compress_rate, pools.overlap, config.head_dim);
    }
    if (layer.attention == AttentionKind::kC4) {
      pools.indexer_ring = add_ring(layer.compress_rate, true, config.index_head_dim);
    }
    layers_.push_back(pools);
  }
}

Status KvMemory::AllocatePools(const ModelConfig& config, const KvPoolSizes& sizes) {
  const int64_t window_bytes = kWindowPageTokens * kv_row_.bytes();
  int64_t total = 0;
  std::vector<int64_t> offsets;
  for (const LayerConfig& layer : config.layers) {
    const int64_t rows =
        layer.compress_rate > 0 ? kContextBlockTokens / layer.compress_rate : int64_t{0};
    const int64_t index_rows = layer.attention == AttentionKind::kC4 ? rows : 0;
    window_page_bytes_ += window_bytes;
    context_block_bytes_ += rows * kv_row_.bytes() + index_rows * index_row_.bytes();
    for (const int64_t bytes :
         {sizes.window_pages * window_bytes, sizes.context_blocks * rows * kv_row_.bytes(),
          sizes.context_blocks * index_rows * index_row_.bytes()}) {
      offsets.push_back(total);
      total += RoundUp(bytes, 64);
    }
  }
  HB_ASSIGN_OR_RETURN(rows_, ZeroedMemory::Allocate(total, "KV cache"));
  HB_ASSIGN_OR_RETURN(
      state_, ZeroedMemory::Allocate(sizes.state_slots * state_slot_bytes(), "KV cache state"));
  HB_ASSIGN_OR_RETURN(tails_,
                      ZeroedMemory::Allocate(sizes.tails * tail_bytes(), "KV cache snapshots"));
  for (size_t l = 0; l < layers_.size(); ++l) {
    layers_[l].window = rows_.data() + offsets[3 * l];
    layers_[l].compressed = rows_.data() + offsets[3 * l + 1];
    layers_[l].index = rows_.data() + offsets[3 * l + 2];
  }
  return {};
}

int64_t KvMemory::BytesOf(const KvPoolSizes& sizes) const {
  return sizes.context_blocks * context_block_bytes() + sizes.window_pages * window_page_bytes() +
         sizes.state_slots * state_slot_bytes() + sizes.tails * tail_bytes();
}

float* KvMemory::Slot(int32_t slot) const {
  return reinterpret_cast<float*>(state_.data()) + slot * state_floats_;
}

// The ring rows of the last group before a boundary; other rings have an empty group there.
template <class Move>
void KvMemory::ForEachTailRow(const TailMove& move, const Move& move_row) {
  float* tail = reinterpret_cast<float*>(tails_.data()) + move.tail * tail_floats_;
  for (const RingRange& ring : rings_) {
    if (!ring.overlap) continue;
    for (int64_t p = move.position - ring.rate; p < move.position; ++p) {
      move_row(Slot(move.slot) + ring.offset + p % (2 * ring.rate) * ring.row_floats, tail,
               ring.row_floats);
      tail += ring.row_floats;
    }
  }
}

void KvMemory::SaveTail(const TailMove& move) {
  ForEachTailRow(
      move, [](const float* row, float* tail, int64_t floats) { std::copy_n(row, floats, tail); });
}

void KvMemory::RestoreTail(const TailMove& move) {
  ForEachTailRow(
      move, [](float* row, const float* tail, int64_t floats) { std::copy_n(tail, floats, row); });
}

void KvMemory::Copy(const PageCopy& copy) {
  const auto copy_page = [&copy](std::byte* pool, int64_t bytes) {
    if (bytes > 0) std::memcpy(pool + copy.to * bytes, pool + copy.from * bytes, bytes);
  };
  if (copy.pool == KvPool::kStateSlot) return copy_page(state_.data(), state_slot_bytes());
  for (const LayerPools& pools : layers_) {
    if (copy.pool == KvPool::kWindowPage) {
      copy_page(pools.window, kWindowPageTokens * kv_row_.bytes());
    } else if (pools.rate > 0) {
      const int64_t rows = kContextBlockTokens / pools.rate;
      copy_page(pools.compressed, rows * kv_row_.bytes());
      if (pools.overlap) copy_page(pools.index, rows * index_row_.bytes());
    }
  }
}

PagedRows KvMemory::WindowRows(const SequencePages& pages, int64_t layer) const {
  return {layers_[static_cast<size_t>(layer)].window, pages.window_pages.data(), kWindowPageTokens,
          kv_row_.bytes()};
}

PagedRows KvMemory::CompressedRows(const SequencePages& pages, int64_t layer) const {
  const LayerPools& pools = layers_[static_cast<size_t>(layer)];
  return {pools.compressed, pages.context_blocks.data(),
          pools.rate > 0 ? kContextBlockTokens / pools.rate : 0, kv_row_.bytes()};
}

PagedRows KvMemory::IndexRows(const SequencePages& pages, int64_t layer) const {
  const LayerPools& pools = layers_[static_cast<size_t>(layer)];
  return {pools.index, pages.context_blocks.data(), kContextBlockTokens / pools.rate,
          index_row_.bytes()};
}

CompressorRing KvMemory::AttentionRing(const SequencePages& pages, int64_t layer) const {
  const LayerPools& pools = layers_[static_cast<size_t>(layer)];
  return {Slot(pages.slot) + pools.attention_ring, pools.overlap ? 2 * pools.rate : pools.rate};
}

CompressorRing KvMemory::IndexerRing(const SequencePages& pages, int64_t layer) const {
  const LayerPools& pools = layers_[static_cast<size_t>(layer)];
  return {Slot(pages.slot) + pools.indexer_ring, 2 * pools.rate};
}

}  // namespace halfbyte
