// Which pages of the KV cache belong to which sequence (server.md §1.4, §1.5; deepseek-v4.md §3).
// Bookkeeping only: ids and counts, no memory and no device; kv_memory.h holds the rows.
//
//   context block   256 tokens: the compressed rows and index keys of every compressing layer
//   window page      64 tokens: the window rows of every layer; freed once no query can reach it
//   state slot      per sequence: the compressors' rings
//   tail            per snapshot: the ring rows of the last group of overlapping compressors
//   snapshot        what a sequence needs to continue at a multiple of 256 tokens: shared context
//                   blocks and window pages, and a tail
//
// Sequences, snapshots and held blocks own their pages and give them back when destroyed; the
// KvPages must outlive them. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "paging/page_pool.h"

namespace halfbyte {

inline constexpr int64_t kContextBlockTokens = 256;
inline constexpr int64_t kWindowPageTokens = 64;
// Of one pool. More would hold over a billion tokens; up to here no product of sizes wraps.
inline constexpr int64_t kMostKvPages = int64_t{1} << 22;

struct KvPoolSizes {
  int64_t context_blocks = 0;
  int64_t window_pages = 0;
  int64_t state_slots = 0;
  int64_t tails = 0;  // snapshots

  // Window pages are never short: for each sequence what its window spans, the pages of one batch's
  // new tokens, and for each snapshot the whole pages of one window.
  static int64_t WindowPages(int64_t sequences, int64_t batch_tokens, int64_t snapshots,
                             int64_t window);
  bool operator==(const KvPoolSizes&) const = default;
};

// Where one sequence's rows lie.
struct SequencePages {
  int64_t position = 0;  // tokens so far
  int32_t slot = -1;
  std::vector<int32_t> context_blocks;  // page ids by block number
  std::vector<int32_t> window_pages;    // page ids by page number; -1 = given back, or never had
  // A replay (server.md §1.5): tokens [replay_start, replay_end) are computed over compressed rows
  // that are there already and are not written. No window row before replay_start is seen.
  int64_t replay_start = 0;
  int64_t replay_end = 0;
};

// Work on rows that goes with bookkeeping: to be carried out by whoever holds the memory.
enum class KvPool { kContextBlock, kWindowPage, kStateSlot };
struct PageCopy {
  KvPool pool = KvPool::kContextBlock;
  int32_t from = 0;
  int32_t to = 0;
};
// Between the ring rows before `position` in a slot, and a tail.
struct TailMove {
  int32_t slot = 0;
  int64_t position = 0;
  int32_t tail = 0;
};

class KvPages;

// One sequence: position and page tables.
class Sequence {
 public:
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;
  ~Sequence();

  int64_t position() const { return pages_.position; }
  const SequencePages& pages() const { return pages_; }

 private:
  friend class KvPages;
  Sequence(KvPages* owner, int32_t slot) : owner_(owner) { pages_.slot = slot; }
  void Release();

  KvPages* owner_;
  SequencePages pages_;
};

class Snapshot {
 public:
  Snapshot(Snapshot&& other) noexcept;
  Snapshot& operator=(Snapshot&& other) noexcept;
  ~Snapshot();

  int64_t position() const { return position_; }
  int32_t tail() const { return tail_; }

 private:
  friend class KvPages;
  Snapshot(KvPages* owner, int32_t tail) : owner_(owner), tail_(tail) {}
  void Release();

  KvPages* owner_;
  int32_t tail_;
  int64_t position_ = 0;
  std::vector<int32_t> context_blocks_;
  std::vector<int32_t> window_pages_;
};

// Keeps one context block from being freed.
class HeldBlock {
 public:
  HeldBlock(HeldBlock&& other) noexcept;
  HeldBlock& operator=(HeldBlock&& other) noexcept;
  ~HeldBlock();

  int32_t id() const { return id_; }

 private:
  friend class KvPages;
  HeldBlock(KvPages* owner, int32_t id) : owner_(owner), id_(id) {}
  void Release();

  KvPages* owner_;
  int32_t id_;
};

class KvPages {
 public:
  // `window`: positions a query looks back, itself included.
  KvPages(const KvPoolSizes& sizes, int64_t window);
  KvPages(const KvPages&) = delete;
  KvPages& operator=(const KvPages&) = delete;

  // An empty sequence; one continued from a snapshot, whose tail must be restored into the new
  // sequence's slot. Error: no state slot is free.
  Result<Sequence> NewSequence();
  Result<Sequence> Continue(const Snapshot& snapshot);
  // One that has full blocks but neither window nor rings: it computes the last `replay_tokens` of
  // them again, as many as make those exact at the blocks' end. Error: no state slot is free.
  Result<Sequence> Replay(const std::vector<int32_t>& context_blocks, int64_t replay_tokens);
  // A second sequence with the same tokens: full pages are shared, for the others `copies` says
  // what to copy. Error: a pool is exhausted; nothing changes then.
  Result<Sequence> Fork(const Sequence& sequence, std::vector<PageCopy>& copies);

  // Context blocks for `tokens` tokens in all. Pages of both kinds for `tokens` more tokens of the
  // sequence. Error: a pool is exhausted; nothing changes then.
  Status ReserveContext(Sequence& sequence, int64_t tokens);
  Status Reserve(Sequence& sequence, int64_t tokens);
  // The tokens are part of the sequence; window pages that no later query reaches are given back.
  void Advance(Sequence& sequence, int64_t tokens);

  // At a multiple of kContextBlockTokens; the tail must be saved from the sequence's slot before it
  // goes on. Error: not at such a boundary, or no tail is free.
  Result<Snapshot> TakeSnapshot(const Sequence& sequence);

  HeldBlock Hold(int32_t block);
  // Exchanges a full block of the sequence for another one that holds the same rows.
  void ReplaceBlock(Sequence& sequence, int64_t index, int32_t block);

  const KvPoolSizes& sizes() const { return sizes_; }
  KvPoolSizes free() const;

 private:
  friend class Sequence;
  friend class Snapshot;
  friend class HeldBlock;

  int64_t FirstWindowToken(int64_t position) const;  // that a query at `position` reaches

  KvPoolSizes sizes_;
  int64_t window_ = 0;
  PagePool context_blocks_;
  PagePool window_pages_;
  PagePool state_slots_;
  PagePool tails_;
};

}  // namespace halfbyte
