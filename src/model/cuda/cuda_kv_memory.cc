#include "model/cuda/cuda_kv_memory.h"

#include <array>

#include "device/cuda/cuda_device.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

constexpr int64_t kAlignment = 256;

// Zeros, as the host's are: what nobody has written is a number.
Result<DeviceBuffer> Zeros(int64_t bytes, const char* what, cudaStream_t stream) {
  HB_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Allocate(bytes, what));
  if (bytes == 0) return buffer;
  HB_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(buffer.data(), 0, static_cast<size_t>(bytes), stream), what));
  return buffer;
}

DeviceRows AttentionRows(const KvRow& row, int64_t rows_per_page) {
  const int64_t main = row.fp8_dim() + 2 * row.rope_dim;
  return {.rows_per_page = rows_per_page, .main_bytes = main, .scale_bytes = row.bytes() - main};
}

DeviceRows IndexRows(const IndexRow& row, int64_t rows_per_page) {
  const int64_t main = row.dim / 2;
  return {.rows_per_page = rows_per_page, .main_bytes = main, .scale_bytes = row.bytes() - main};
}

// What device_step.h says of rows.
bool IsLaidOut(const DeviceRows& rows, int64_t scale_bytes) {
  return rows.main_bytes % 16 == 0 && rows.scale_bytes == scale_bytes &&
         rows.page_bytes() % 16 == 0;
}

}  // namespace

Result<std::unique_ptr<CudaKvMemory>> CudaKvMemory::Create(const KvLayout& layout,
                                                           const KvPoolSizes& sizes,
                                                           cudaStream_t stream) {
  HB_RETURN_IF_ERROR(KvLayout::CheckSizes(sizes));
  std::unique_ptr<CudaKvMemory> memory(new CudaKvMemory(layout, sizes, stream));
  HB_RETURN_IF_ERROR(memory->Allocate());
  return memory;
}

Status CudaKvMemory::Allocate() {
  int64_t total = 0;
  std::vector<std::array<int64_t, 3>> offsets;
  const auto take = [&](const DeviceRows& rows, int64_t pages) {
    const int64_t offset = total;
    total += RoundUp(pages * rows.page_bytes(), kAlignment);
    return offset;
  };
  for (const KvLayout::Layer& layer : layout().layers()) {
    const LayerPools pools{
        .window = AttentionRows(layout().kv_row(), kWindowPageTokens),
        .entries = AttentionRows(layout().kv_row(), layer.entries_per_block),
        .index = IndexRows(layout().index_row(), layer.indexed ? layer.entries_per_block : 0)};
    if (!IsLaidOut(pools.window, 8) || !IsLaidOut(pools.entries, 8) ||
        (layer.indexed && !IsLaidOut(pools.index, 4))) {
      return MakeError(
          "KV cache: rows of head_dim {} with {} rotary ones and of index_head_dim {}, {} to a "
          "block, do not lie at multiples of 16 bytes, as a GPU needs them; run it on the CPU",
          layout().kv_row().head_dim, layout().kv_row().rope_dim, layout().index_row().dim,
          layer.entries_per_block);
    }
    offsets.push_back({take(pools.window, sizes_.window_pages),
                       take(pools.entries, sizes_.context_blocks),
                       take(pools.index, sizes_.context_blocks)});
    pools_.push_back(pools);
  }
  HB_ASSIGN_OR_RETURN(rows_, Zeros(total, "KV cache", stream_));
  HB_ASSIGN_OR_RETURN(
      state_, Zeros(sizes_.state_slots * layout().state_slot_bytes(), "KV cache state", stream_));
  HB_ASSIGN_OR_RETURN(tails_,
                      Zeros(sizes_.tails * layout().tail_bytes(), "KV cache snapshots", stream_));
  for (size_t l = 0; l < pools_.size(); ++l) {
    pools_[l].window.pool = rows_.data() + offsets[l][0];
    pools_[l].entries.pool = rows_.data() + offsets[l][1];
    pools_[l].index.pool = rows_.data() + offsets[l][2];
  }
  return {};
}

Status CudaKvMemory::Move(std::byte* to, const std::byte* from, int64_t bytes) const {
  if (bytes == 0) return {};
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_),
      "copy of rows of the KV cache");
}

Status CudaKvMemory::CopyPage(const DeviceRows& rows, const PageCopy& copy) const {
  const int64_t bytes = rows.page_bytes();
  return Move(rows.pool + copy.to * bytes, rows.pool + copy.from * bytes, bytes);
}

Status CudaKvMemory::Copy(const PageCopy& copy) {
  if (copy.pool == KvPool::kStateSlot) {
    const int64_t bytes = layout().state_slot_bytes();
    return Move(state_.data() + copy.to * bytes, state_.data() + copy.from * bytes, bytes);
  }
  for (const LayerPools& pools : pools_) {
    if (copy.pool == KvPool::kWindowPage) {
      HB_RETURN_IF_ERROR(CopyPage(pools.window, copy));
    } else {
      HB_RETURN_IF_ERROR(CopyPage(pools.entries, copy));
      HB_RETURN_IF_ERROR(CopyPage(pools.index, copy));
    }
  }
  return {};
}

// Calls body(rows of the last group before a boundary, their place in the tail, bytes) for each
// ring that overlaps; the others have an empty group there. A boundary is a multiple of the rate,
// so a group's rows lie together.
template <class Body>
Status CudaKvMemory::ForEachTailPart(const TailMove& move, const Body& body) const {
  const int64_t slot_floats = layout().state_slot_bytes() / int64_t{sizeof(float)};
  std::byte* tail = tails_.data() + move.tail * layout().tail_bytes();
  for (const KvLayout::Ring& ring : layout().rings()) {
    if (!ring.overlap) continue;
    const int64_t row = (move.position - ring.rate) % ring.rows();
    float* const rows = state() + move.slot * slot_floats + ring.offset + row * ring.row_floats;
    const int64_t bytes = ring.rate * ring.row_floats * int64_t{sizeof(float)};
    HB_RETURN_IF_ERROR(body(reinterpret_cast<std::byte*>(rows), tail, bytes));
    tail += bytes;
  }
  return {};
}

Status CudaKvMemory::SaveTail(const TailMove& move) {
  return ForEachTailPart(move, [this](std::byte* rows, std::byte* tail, int64_t bytes) {
    return Move(tail, rows, bytes);
  });
}

Status CudaKvMemory::RestoreTail(const TailMove& move) {
  return ForEachTailPart(move, [this](std::byte* rows, std::byte* tail, int64_t bytes) {
    return Move(rows, tail, bytes);
  });
}

}  // namespace halfbyte
