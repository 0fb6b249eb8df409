#include "model/kv_cache.h"

#include <algorithm>
#include <utility>

namespace halfbyte {

Result<std::unique_ptr<KvCache>> KvCache::Create(const ModelConfig& config, KvFormat kv_format,
                                                 IndexFormat index_format,
                                                 const KvCacheLimits& limits) {
  // Too much stays too much for KvMemory, but no sum wraps.
  const auto bounded = [](int64_t value) { return std::min(value, 2 * kMostKvPages); };
  const int64_t sequences = bounded(limits.sequences);
  const int64_t snapshots = bounded(limits.snapshots);
  // As many blocks as any sharing of the context needs: each sequence rounds up.
  const KvPoolSizes sizes{
      .context_blocks = bounded(limits.context_tokens / kContextBlockTokens) +
                        (limits.context_tokens % kContextBlockTokens != 0 ? 1 : 0) + sequences - 1,
      .window_pages = KvPoolSizes::WindowPages(
          sequences, std::min(limits.batch_tokens, kMostKvPages * kContextBlockTokens * 16),
          snapshots, config.sliding_window),
      .state_slots = sequences,
      .tails = snapshots};
  HB_ASSIGN_OR_RETURN(KvMemory memory, KvMemory::Create(config, kv_format, index_format, sizes));
  return std::unique_ptr<KvCache>(new KvCache(std::move(memory), sizes, config.sliding_window));
}

Result<Sequence> KvCache::Continue(const Snapshot& snapshot) {
  HB_ASSIGN_OR_RETURN(Sequence sequence, pages_.Continue(snapshot));
  memory_.RestoreTail({sequence.pages().slot, snapshot.position(), snapshot.tail()});
  return sequence;
}

Result<Snapshot> KvCache::TakeSnapshot(const Sequence& sequence) {
  HB_ASSIGN_OR_RETURN(Snapshot snapshot, pages_.TakeSnapshot(sequence));
  memory_.SaveTail({sequence.pages().slot, snapshot.position(), snapshot.tail()});
  return snapshot;
}

}  // namespace halfbyte
