// The KV cache of all sequences of one model: pools of pages that cover every layer, as an engine
// wants them (server.md §1.4, §1.5; deepseek-v4.md §3).
//
//   context block   256 tokens: the compressed rows and index keys of every compressing layer
//   window page      64 tokens: the window rows of every layer; freed once no query can reach it
//   state slot      per sequence: the compressors' rings
//   snapshot        what a sequence needs to continue at a multiple of 256 tokens: shared context
//                   blocks and window pages, and the ring rows of the last group
//
// Sequences and snapshots own their pages and give them back when destroyed; the cache must outlive
// them. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "device/zeroed_memory.h"
#include "kernels/compressor/compressor.h"
#include "kernels/kv_row/kv_row.h"
#include "model/page_pool.h"

namespace halfbyte {

inline constexpr int64_t kContextBlockTokens = 256;
inline constexpr int64_t kWindowPageTokens = 64;

struct KvCacheLimits {
  int64_t sequences = 1;
  int64_t context_tokens = 4096;  // over all sequences, rounded up to whole blocks for each
  int64_t batch_tokens = 512;     // most tokens of one forward call
  int64_t snapshots = 0;
};

class Sequence;
class Snapshot;

class KvCache {
 public:
  // Errors: a rate that does not divide a context block; sizes that do not fit in memory.
  static Result<std::unique_ptr<KvCache>> Create(const ModelConfig& config, KvFormat kv_format,
                                                 IndexFormat index_format,
                                                 const KvCacheLimits& limits);

  // An empty sequence; one continued from a snapshot. Error: no state slot is free.
  Result<Sequence> NewSequence();
  Result<Sequence> Continue(const Snapshot& snapshot);

  // Pages for `tokens` more tokens of the sequence. Error: a pool is exhausted; nothing changes
  // then.
  Status Reserve(Sequence& sequence, int64_t tokens);
  // After a forward call: the tokens are part of the sequence, and window pages that no later query
  // reaches are given back.
  void Advance(Sequence& sequence, int64_t tokens);

  // At a multiple of kContextBlockTokens. Error: not at such a boundary, or no room for a snapshot.
  Result<Snapshot> TakeSnapshot(const Sequence& sequence);

  // Views for the kernels of one layer.
  const KvRow& kv_row() const { return kv_row_; }
  const IndexRow& index_row() const { return index_row_; }
  PagedRows WindowRows(const Sequence& sequence, int64_t layer) const;
  PagedRows CompressedRows(const Sequence& sequence, int64_t layer) const;
  PagedRows IndexRows(const Sequence& sequence, int64_t layer) const;
  CompressorRing AttentionRing(const Sequence& sequence, int64_t layer) const;
  CompressorRing IndexerRing(const Sequence& sequence, int64_t layer) const;

  int64_t free_context_blocks() const;
  int64_t free_window_pages() const;
  int64_t free_state_slots() const;
  // Bytes per unit, for reports and budgets.
  int64_t context_block_bytes() const { return context_block_bytes_; }
  int64_t window_page_bytes() const { return window_page_bytes_; }
  int64_t state_slot_bytes() const { return state_floats_ * int64_t{sizeof(float)}; }

 private:
  friend class Sequence;
  friend class Snapshot;

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

  KvCache() = default;
  void PlanState(const ModelConfig& config);
  Status AllocatePools(const ModelConfig& config);
  int64_t FirstWindowToken(int64_t position) const;  // that a query at `position` reaches
  int64_t TailFloats() const;
  void CopyTail(int64_t position, int32_t slot, float* tail, bool restore) const;

  KvRow kv_row_;
  IndexRow index_row_;
  int64_t window_ = 0;
  std::vector<LayerPools> layers_;
  std::vector<RingRange> rings_;
  int64_t state_floats_ = 0;
  int64_t context_block_bytes_ = 0;
  int64_t window_page_bytes_ = 0;
  PagePool context_blocks_;
  PagePool window_pages_;
  PagePool state_slots_;
  int64_t snapshots_left_ = 0;
  ZeroedMemory rows_;
  ZeroedMemory state_;
};

// One sequence: position and page tables.
class Sequence {
 public:
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;
  ~Sequence();

  int64_t position() const { return position_; }  // tokens so far

 private:
  friend class KvCache;
  Sequence(KvCache* cache, int32_t slot) : cache_(cache), slot_(slot) {}
  void Release();

  KvCache* cache_;
  int32_t slot_;
  int64_t position_ = 0;
  std::vector<int32_t> context_table_;  // page ids by block number
  std::vector<int32_t> window_table_;   // page ids by page number; -1 = given back
};

class Snapshot {
 public:
  Snapshot(Snapshot&& other) noexcept;
  Snapshot& operator=(Snapshot&& other) noexcept;
  ~Snapshot();

  int64_t position() const { return position_; }

 private:
  friend class KvCache;
  explicit Snapshot(KvCache* cache) : cache_(cache) {}
  void Release();

  KvCache* cache_;
  int64_t position_ = 0;
  std::vector<int32_t> context_table_;
  std::vector<int32_t> window_table_;
  std::vector<float> tail_;  // ring rows of the last group of overlapping compressors
};

}  // namespace halfbyte
