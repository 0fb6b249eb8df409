// A KV cache for a caller that runs its own sequences: memory and bookkeeping together. (An engine
// keeps the two apart: paging/step_plan.h.)
//
// Sequences and snapshots own their pages and give them back when destroyed; the cache must outlive
// them. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/result.h"
#include "model/kv_memory.h"
#include "paging/kv_pages.h"

namespace halfbyte {

struct KvCacheLimits {
  int64_t sequences = 1;
  int64_t context_tokens = 4096;  // over all sequences, rounded up to whole blocks for each
  int64_t batch_tokens = 512;     // most tokens of one forward call
  int64_t snapshots = 0;

  // The pools of a cache with these limits, for a model with that window.
  KvPoolSizes Pools(int64_t window) const;
};

class KvCache {
 public:
  // memory: of `sizes`, for a model with that window.
  KvCache(std::unique_ptr<KvMemory> memory, const KvPoolSizes& sizes, int64_t window)
      : memory_(std::move(memory)), pages_(sizes, window) {}

  // An empty sequence; one continued from a snapshot. Error: no state slot is free, or the device
  // failed.
  Result<Sequence> NewSequence() { return pages_.NewSequence(); }
  Result<Sequence> Continue(const Snapshot& snapshot);
  // At a multiple of kContextBlockTokens. Error: not at such a boundary, no room for a snapshot, or
  // the device failed.
  Result<Snapshot> TakeSnapshot(const Sequence& sequence);

  KvPages& pages() { return pages_; }
  KvMemory& memory() { return *memory_; }

 private:
  std::unique_ptr<KvMemory> memory_;
  KvPages pages_;
};

}  // namespace halfbyte
