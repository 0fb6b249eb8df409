// The rows of the KV cache in the memory of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "device/zeroed_memory.h"
#include "kernels/compressor/compressor.h"
#include "kernels/kv_row/kv_row.h"
#include "model/kv_memory.h"

namespace halfbyte {

class CpuKvMemory : public KvMemory {
 public:
  // Errors: KvLayout::CheckSizes's; sizes that do not fit in memory.
  static Result<std::unique_ptr<CpuKvMemory>> Create(const KvLayout& layout,
                                                     const KvPoolSizes& sizes);

  // Views for the kernels of one layer.
  PagedRows WindowRows(const SequencePages& pages, int64_t layer) const;
  PagedRows CompressedRows(const SequencePages& pages, int64_t layer) const;
  PagedRows IndexRows(const SequencePages& pages, int64_t layer) const;
  CompressorRing AttentionRing(const SequencePages& pages, int64_t layer) const;
  CompressorRing IndexerRing(const SequencePages& pages, int64_t layer) const;

  Status Copy(const PageCopy& copy) override;  // these never fail
  Status SaveTail(const TailMove& move) override;
  Status RestoreTail(const TailMove& move) override;

 private:
  // Where a layer's rows lie. Each layer has its own contiguous pool, indexed by page id.
  struct LayerPools {
    std::byte* window = nullptr;      // [window pages, 64] rows
    std::byte* compressed = nullptr;  // [context blocks, entries of a block] rows
    std::byte* index = nullptr;       // the same for index keys
  };

  explicit CpuKvMemory(const KvLayout& layout) : KvMemory(layout) {}
  Status Allocate(const KvPoolSizes& sizes);
  const KvLayout::Layer& layer(int64_t l) const {
    return layout().layers()[static_cast<size_t>(l)];
  }
  float* Slot(int32_t slot) const;
  CompressorRing RingOf(const SequencePages& pages, int64_t ring) const;
  template <class Move>
  void ForEachTailRow(const TailMove& move, const Move& move_row);

  std::vector<LayerPools> pools_;
  ZeroedMemory rows_;
  ZeroedMemory state_;
  ZeroedMemory tails_;
};

}  // namespace halfbyte
