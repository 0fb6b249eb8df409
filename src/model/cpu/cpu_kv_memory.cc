#include "model/cpu/cpu_kv_memory.h"

#include <algorithm>
#include <cstring>

#include "tensor/scale_layout.h"

namespace halfbyte {

Result<std::unique_ptr<CpuKvMemory>> CpuKvMemory::Create(const KvLayout& layout,
                                                         const KvPoolSizes& sizes) {
  HB_RETURN_IF_ERROR(KvLayout::CheckSizes(sizes));
  std::unique_ptr<CpuKvMemory> memory(new CpuKvMemory(layout));
  HB_RETURN_IF_ERROR(memory->Allocate(sizes));
  return memory;
}

Status CpuKvMemory::Allocate(const KvPoolSizes& sizes) {
  const int64_t row = layout().kv_row().bytes(), index_row = layout().index_row().bytes();
  int64_t total = 0;
  std::vector<int64_t> offsets;
  for (const KvLayout::Layer& layer : layout().layers()) {
    const int64_t entries = sizes.context_blocks * layer.entries_per_block;
    for (const int64_t bytes : {sizes.window_pages * kWindowPageTokens * row, entries * row,
                                layer.indexed ? entries * index_row : int64_t{0}}) {
      offsets.push_back(total);
      total += RoundUp(bytes, 64);
    }
  }
  HB_ASSIGN_OR_RETURN(rows_, ZeroedMemory::Allocate(total, "KV cache"));
  HB_ASSIGN_OR_RETURN(
      state_,
      ZeroedMemory::Allocate(sizes.state_slots * layout().state_slot_bytes(), "KV cache state"));
  HB_ASSIGN_OR_RETURN(
      tails_, ZeroedMemory::Allocate(sizes.tails * layout().tail_bytes(), "KV cache snapshots"));
  for (size_t at = 0; at < offsets.size(); at += 3) {
    pools_.push_back({rows_.data() + offsets[at], rows_.data() + offsets[at + 1],
                      rows_.data() + offsets[at + 2]});
  }
  return {};
}

float* CpuKvMemory::Slot(int32_t slot) const {
  return reinterpret_cast<float*>(state_.data() + slot * layout().state_slot_bytes());
}

// The ring rows of the last group before a boundary; other rings have an empty group there.
template <class Move>
void CpuKvMemory::ForEachTailRow(const TailMove& move, const Move& move_row) {
  auto* tail = reinterpret_cast<float*>(tails_.data() + move.tail * layout().tail_bytes());
  for (const KvLayout::Ring& ring : layout().rings()) {
    if (!ring.overlap) continue;
    for (int64_t p = move.position - ring.rate; p < move.position; ++p) {
      move_row(Slot(move.slot) + ring.offset + p % ring.rows() * ring.row_floats, tail,
               ring.row_floats);
      tail += ring.row_floats;
    }
  }
}

Status CpuKvMemory::SaveTail(const TailMove& move) {
  ForEachTailRow(
      move, [](const float* row, float* tail, int64_t floats) { std::copy_n(row, floats, tail); });
  return {};
}

Status CpuKvMemory::RestoreTail(const TailMove& move) {
  ForEachTailRow(
      move, [](float* row, const float* tail, int64_t floats) { std::copy_n(tail, floats, row); });
  return {};
}

Status CpuKvMemory::Copy(const PageCopy& copy) {
  const auto copy_page = [&copy](std::byte* pool, int64_t bytes) {
    if (bytes > 0) std::memcpy(pool + copy.to * bytes, pool + copy.from * bytes, bytes);
  };
  if (copy.pool == KvPool::kStateSlot) {
    copy_page(state_.data(), layout().state_slot_bytes());
    return {};
  }
  const int64_t row = layout().kv_row().bytes(), index_row = layout().index_row().bytes();
  for (size_t l = 0; l < pools_.size(); ++l) {
    if (copy.pool == KvPool::kWindowPage) {
      copy_page(pools_[l].window, kWindowPageTokens * row);
    } else {
      const KvLayout::Layer& layer = layout().layers()[l];
      copy_page(pools_[l].compressed, layer.entries_per_block * row);
      if (layer.indexed) copy_page(pools_[l].index, layer.entries_per_block * index_row);
    }
  }
  return {};
}

PagedRows CpuKvMemory::WindowRows(const SequencePages& pages, int64_t l) const {
  return {pools_[static_cast<size_t>(l)].window, pages.window_pages.data(), kWindowPageTokens,
          layout().kv_row().bytes()};
}

PagedRows CpuKvMemory::CompressedRows(const SequencePages& pages, int64_t l) const {
  return {pools_[static_cast<size_t>(l)].compressed, pages.context_blocks.data(),
          layer(l).entries_per_block, layout().kv_row().bytes()};
}

PagedRows CpuKvMemory::IndexRows(const SequencePages& pages, int64_t l) const {
  return {pools_[static_cast<size_t>(l)].index, pages.context_blocks.data(),
          layer(l).entries_per_block, layout().index_row().bytes()};
}

CompressorRing CpuKvMemory::RingOf(const SequencePages& pages, int64_t ring) const {
  const KvLayout::Ring& at = layout().rings()[static_cast<size_t>(ring)];
  return {Slot(pages.slot) + at.offset, at.rows()};
}

CompressorRing CpuKvMemory::AttentionRing(const SequencePages& pages, int64_t l) const {
  return RingOf(pages, layer(l).attention_ring);
}

CompressorRing CpuKvMemory::IndexerRing(const SequencePages& pages, int64_t l) const {
  return RingOf(pages, layer(l).indexer_ring);
}

}  // namespace halfbyte
