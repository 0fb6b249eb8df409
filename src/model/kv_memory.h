// The rows of the KV cache: pools of pages that cover every layer, as an engine wants them
// (server.md §1.4; deepseek-v4.md §3). Who owns which page is the business of
// paging/kv_pages.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "device/zeroed_memory.h"
#include "kernels/compressor/compressor.h"
#include "kernels/kv_row/kv_row.h"
#include "paging/kv_pages.h"

namespace halfbyte {

class KvMemory {
 public:
  // Errors: a rate that does not divide a context block; sizes that do not fit in memory.
  static Result<KvMemory> Create(const ModelConfig& config, KvFormat kv_format,
                                 IndexFormat index_format, const KvPoolSizes& sizes);

  // Views for the kernels of one layer.
  const KvRow& kv_row() const { return kv_row_; }
  const IndexRow& index_row() const { return index_row_; }
  PagedRows WindowRows(const SequencePages& pages, int64_t layer) const;
  PagedRows CompressedRows(const SequencePages& pages, int64_t layer) const;
  PagedRows IndexRows(const SequencePages& pages, int64_t layer) const;
  CompressorRing AttentionRing(const SequencePages& pages, int64_t layer) const;
  CompressorRing IndexerRing(const SequencePages& pages, int64_t layer) const;

  void Copy(const PageCopy& copy);
  void SaveTail(const TailMove& move);
  void RestoreTail(const TailMove& move);

  // Bytes per unit, for reports and budgets.
  int64_t context_block_bytes() const { return context_block_bytes_; }
  int64_t window_page_bytes() const { return window_page_bytes_; }
  int64_t state_slot_bytes() const { return state_floats_ * int64_t{sizeof(float)}; }
  int64_t BytesOf(const KvPoolSizes& sizes) const;
  int64_t tail_bytes() const { return tail_floats_ * int64_t{sizeof(float)}; }

 private:
  // Where a layer's rows lie. Each layer has its own contiguous pool, indexed by page id.
  struct LayerPools {
    int64_t rate = 0;
    bool overlap = false;
    std::byte* window = nullptr;      // [window pages, 64] rows
    std::byte* compressed = nullptr;  // [context blocks, 256 / rate] rows
    std::byte* index = nullptr;       // the same for index keys; kC4 only
    int64_t attention_ring = -1;      // offset in floats inside a state slot
    int64_t indexer_ring = -1;
  };
  struct RingRange {  // where one ring lies in a slot
    int64_t offset = 0;
    int64_t rate = 0;
    bool overlap = false;
    int64_t row_floats = 0;
  };

  KvMemory() = default;
  void PlanState(const ModelConfig& config);
  Status AllocatePools(const ModelConfig& config, const KvPoolSizes& sizes);
  float* Slot(int32_t slot) const;
  template <class Move>
  void ForEachTailRow(const TailMove& move, const Move& move_row);

  KvRow kv_row_;
  IndexRow index_row_;
  std::vector<LayerPools> layers_;
  std::vector<RingRange> rings_;
  int64_t state_floats_ = 0;
  int64_t tail_floats_ = 0;
  int64_t context_block_bytes_ = 0;
  int64_t window_page_bytes_ = 0;
  ZeroedMemory rows_;
  ZeroedMemory state_;
  ZeroedMemory tails_;
};

}  // namespace halfbyte
