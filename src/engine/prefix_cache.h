// Cached prefixes (server.md §1.5): full blocks of 256 tokens as a tree, found by a chained hash of
// their ids, and at some of them a snapshot to continue from.
//
// A sequence that follows a path of the tree holds it through a Chain; blocks that no chain holds
// may be evicted, least recently used first, children before parents, a snapshot with its block.
// Nothing here moves rows: where the cache takes a snapshot it says which tail must be saved.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paging/kv_pages.h"

namespace halfbyte {

class PrefixCache {
  struct Block;

 public:
  // Key of a block from the key of the one before it and its own ids. Equal keys of different
  // blocks do no harm: ids are compared as well.
  using Hash = uint64_t (*)(uint64_t parent, std::span<const int32_t> ids);
  static uint64_t MixIds(uint64_t parent, std::span<const int32_t> ids);

  // `pages` must outlive the cache. Disabled, it finds nothing and keeps nothing.
  PrefixCache(KvPages& pages, bool enabled, Hash hash = MixIds);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The cached blocks that one sequence consists of so far, held.
  class Chain {
   public:
    Chain() = default;
    Chain(Chain&& other) noexcept;
    Chain& operator=(Chain&& other) noexcept;
    ~Chain();
    Chain Clone() const;
    int64_t tokens() const;
    std::vector<int32_t> context_blocks() const;  // page ids by block number

   private:
    friend class PrefixCache;
    Chain(PrefixCache* cache, Block* last, std::string salt);

    PrefixCache* cache_ = nullptr;
    Block* last_ = nullptr;  // null: no block yet
    std::string salt_;
  };

  struct Match {
    Chain chain;                         // the blocks to share; none: start afresh
    const Snapshot* snapshot = nullptr;  // at their end, to continue from; null: to be replayed
    int64_t found_tokens = 0;            // of cached blocks, shared or not
  };
  // The longest cached prefix of `tokens` that ends at or before `limit` tokens and has a snapshot;
  // or a longer one without, if a replay of `replay_tokens` leaves less to compute. Prefixes are
  // shared under the same salt only.
  Match Find(std::string_view salt, std::span<const int32_t> tokens, int64_t limit,
             int64_t replay_tokens);

  // The sequence has computed all of `tokens`: its full blocks beyond the chain become part of it.
  // A block that is cached already is kept once: the sequence takes the cached one.
  void Extend(Chain& chain, Sequence& sequence, std::span<const int32_t> tokens);

  // A snapshot of a sequence that stands at the end of its chain. `rolling`: to be replaced by the
  // sequence's next rolling one, unless somebody used it meanwhile. Returns the tail to save;
  // nothing if there is a snapshot already, or no room for one.
  std::optional<TailMove> TakeSnapshot(const Chain& chain, const Sequence& sequence, bool rolling);

  // Evicts until `count` context blocks are free. False, with nothing evicted, if there are not as
  // many.
  bool MakeFree(int64_t count);
  // Context blocks that are free or may be.
  int64_t available() const;
  // Evicts all that no chain holds.
  void Clear();

  int64_t cached_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t held_blocks() const { return cached_blocks() - unheld_; }

 private:
  struct Block {
    uint64_t key = 0;
    Block* parent = nullptr;
    int64_t number = 0;  // its tokens start at number * 256
    std::string salt;    // of a first block
    std::vector<int32_t> ids;
    HeldBlock page;
    std::optional<Snapshot> snapshot;
    bool rolling = false;
    int64_t chains = 0;  // that hold it
    int64_t children = 0;
    uint64_t last_use = 0;
    uint64_t snapshot_use = 0;
  };

  Block* FindChild(Block* parent, std::string_view salt, std::span<const int32_t> ids,
                   uint64_t key);
  uint64_t KeyAfter(const Block* parent, std::string_view salt, std::span<const int32_t> ids) const;
  void Hold(Block* last);
  void Unhold(Block* last);
  void Evict(Block* block);
  void DropSnapshot(Block* block);
  void UseSnapshot(Block* block);
  bool FreeATail();

  KvPages& pages_;
  const bool enabled_;
  const Hash hash_;
  uint64_t uses_ = 0;
  int64_t unheld_ = 0;
  std::unordered_multimap<uint64_t, std::unique_ptr<Block>> blocks_;  // by key
  std::set<std::pair<uint64_t, Block*>> evictable_;  // unheld without children, by last use
  std::set<std::pair<uint64_t, Block*>> snapshots_;  // by last use
};

}  // namespace halfbyte
