#include "model/kv_cache.h"

#include <algorithm>
#include <utility>

namespace halfbyte {

KvPoolSizes KvCacheLimits::Pools(int64_t window) const {
  // Too much stays too much for KvMemory, but no sum wraps.
  const auto bounded = [](int64_t value) { return std::min(value, 2 * kMostKvPages); };
  const int64_t slots = bounded(sequences), tails = bounded(snapshots);
  const int64_t batch = std::min(batch_tokens, kMostKvPages * kContextBlockTokens * 16);
  // As many blocks as any sharing of the context needs: each sequence rounds up.
  return {.context_blocks = bounded(context_tokens / kContextBlockTokens) +
                            (context_tokens % kContextBlockTokens != 0 ? 1 : 0) + slots - 1,
          .window_pages = KvPoolSizes::WindowPages(slots, batch, tails, window),
          .state_slots = slots,
          .tails = tails};
}

Result<Sequence> KvCache::Continue(const Snapshot& snapshot) {
  HB_ASSIGN_OR_RETURN(Sequence sequence, pages_.Continue(snapshot));
  HB_RETURN_IF_ERROR(
      memory_->RestoreTail({sequence.pages().slot, snapshot.position(), snapshot.tail()}));
  return sequence;
}

Result<Snapshot> KvCache::TakeSnapshot(const Sequence& sequence) {
  HB_ASSIGN_OR_RETURN(Snapshot snapshot, pages_.TakeSnapshot(sequence));
  HB_RETURN_IF_ERROR(
      memory_->SaveTail({sequence.pages().slot, snapshot.position(), snapshot.tail()}));
  return snapshot;
}

}  // namespace halfbyte
