#include "paging/kv_pages.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

// Takes `count` pages into `table`, or none.
bool TakePages(PagePool& pool, int64_t count, std::vector<int32_t>& table) {
  if (pool.free_pages() < count) return false;
  for (int64_t i = 0; i < count; ++i) table.push_back(*pool.Take());
  return true;
}

void RetainPages(PagePool& pool, const std::vector<int32_t>& table) {
  for (const int32_t page : table) {
    if (page >= 0) pool.Retain(page);
  }
}

void ReleasePages(PagePool& pool, std::vector<int32_t>& table) {
  for (const int32_t page : table) {
    if (page >= 0) pool.Release(page);
  }
  table.clear();
}

// The first `count` of `table`, retained.
std::vector<int32_t> ShareFirst(PagePool& pool, const std::vector<int32_t>& table, int64_t count) {
  std::vector<int32_t> shared(table.begin(), table.begin() + count);
  RetainPages(pool, shared);
  return shared;
}

}  // namespace

int64_t KvPoolSizes::WindowPages(int64_t sequences, int64_t batch_tokens, int64_t snapshots,
                                 int64_t window) {
  const int64_t whole = CeilDiv(window, kWindowPageTokens);
  return (whole + 2) * sequences + CeilDiv(batch_tokens, kWindowPageTokens) + whole * snapshots;
}

KvPages::KvPages(const KvPoolSizes& sizes, int64_t window)
    : sizes_(sizes),
      window_(window),
      context_blocks_(sizes.context_blocks),
      window_pages_(sizes.window_pages),
      state_slots_(sizes.state_slots),
      tails_(sizes.tails) {}

KvPoolSizes KvPages::free() const {
  return {context_blocks_.free_pages(), window_pages_.free_pages(), state_slots_.free_pages(),
          tails_.free_pages()};
}

int64_t KvPages::FirstWindowToken(int64_t position) const {
  return std::max<int64_t>(0, position - window_ + 1);
}

Result<Sequence> KvPages::NewSequence() {
  const std::optional<int32_t> slot = state_slots_.Take();
  if (!slot) return MakeError("KV cache: all sequence slots are in use");
  return Sequence(this, *slot);
}

Result<Sequence> KvPages::Continue(const Snapshot& snapshot) {
  HB_ASSIGN_OR_RETURN(Sequence sequence, NewSequence());
  SequencePages& pages = sequence.pages_;
  pages.position = snapshot.position_;
  pages.context_blocks = snapshot.context_blocks_;
  pages.window_pages = snapshot.window_pages_;
  RetainPages(context_blocks_, pages.context_blocks);
  RetainPages(window_pages_, pages.window_pages);
  return sequence;
}

Result<Sequence> KvPages::Replay(const std::vector<int32_t>& context_blocks,
                                 int64_t replay_tokens) {
  HB_ASSIGN_OR_RETURN(Sequence sequence, NewSequence());
  SequencePages& pages = sequence.pages_;
  pages.replay_end = std::ssize(context_blocks) * kContextBlockTokens;
  pages.replay_start = pages.replay_end - replay_tokens;
  HB_CHECK(pages.replay_start >= 0, "{} tokens have no {} to replay", pages.replay_end,
           replay_tokens);
  pages.position = pages.replay_start;
  pages.context_blocks = context_blocks;
  pages.window_pages.assign(static_cast<size_t>(pages.position / kWindowPageTokens), -1);
  RetainPages(context_blocks_, pages.context_blocks);
  return sequence;
}

Result<Sequence> KvPages::Fork(const Sequence& sequence, std::vector<PageCopy>& copies) {
  const SequencePages& from = sequence.pages_;
  const int64_t full_blocks = from.position / kContextBlockTokens;
  const int64_t full_pages = from.position / kWindowPageTokens;
  const bool cut_block = from.position % kContextBlockTokens != 0;
  const bool cut_page = from.position % kWindowPageTokens != 0;
  if (context_blocks_.free_pages() < int64_t{cut_block} ||
      window_pages_.free_pages() < int64_t{cut_page}) {
    return MakeError("KV cache: no page is free for a copy of the sequence's last tokens");
  }
  HB_ASSIGN_OR_RETURN(Sequence fork, NewSequence());
  SequencePages& to = fork.pages_;
  to.position = from.position;
  to.context_blocks = ShareFirst(context_blocks_, from.context_blocks, full_blocks);
  to.window_pages = ShareFirst(window_pages_, from.window_pages, full_pages);
  copies.push_back({KvPool::kStateSlot, from.slot, to.slot});
  if (cut_block) {
    TakePages(context_blocks_, 1, to.context_blocks);
    copies.push_back({KvPool::kContextBlock, from.context_blocks[static_cast<size_t>(full_blocks)],
                      to.context_blocks.back()});
  }
  if (cut_page) {
    TakePages(window_pages_, 1, to.window_pages);
    copies.push_back({KvPool::kWindowPage, from.window_pages[static_cast<size_t>(full_pages)],
                      to.window_pages.back()});
  }
  return fork;
}

Status KvPages::ReserveContext(Sequence& sequence, int64_t tokens) {
  std::vector<int32_t>& table = sequence.pages_.context_blocks;
  const int64_t blocks = CeilDiv(tokens, kContextBlockTokens) - std::ssize(table);
  if (!TakePages(context_blocks_, blocks, table)) {
    return MakeError("KV cache: {} tokens need {} context blocks more, but {} are free", tokens,
                     blocks, context_blocks_.free_pages());
  }
  return {};
}

Status KvPages::Reserve(Sequence& sequence, int64_t tokens) {
  SequencePages& table = sequence.pages_;
  const int64_t end = table.position + tokens;
  const int64_t blocks = CeilDiv(end, kContextBlockTokens) - std::ssize(table.context_blocks);
  const int64_t pages = CeilDiv(end, kWindowPageTokens) - std::ssize(table.window_pages);
  if (blocks > context_blocks_.free_pages() || pages > window_pages_.free_pages()) {
    return MakeError(
        "KV cache: {} more tokens need {} context blocks and {} window pages, but {} and {} are "
        "free",
        tokens, std::max<int64_t>(blocks, 0), std::max<int64_t>(pages, 0),
        context_blocks_.free_pages(), window_pages_.free_pages());
  }
  TakePages(context_blocks_, blocks, table.context_blocks);
  TakePages(window_pages_, pages, table.window_pages);
  return {};
}

void KvPages::Advance(Sequence& sequence, int64_t tokens) {
  SequencePages& pages = sequence.pages_;
  pages.position += tokens;
  HB_CHECK(pages.position <= std::ssize(pages.window_pages) * kWindowPageTokens,
           "{} tokens in {} window pages", pages.position, std::ssize(pages.window_pages));
  const int64_t first_page = FirstWindowToken(pages.position) / kWindowPageTokens;
  for (int64_t page = first_page - 1; page >= 0; --page) {
    int32_t& id = pages.window_pages[static_cast<size_t>(page)];
    if (id < 0) break;  // given back earlier, and so are those before it
    window_pages_.Release(std::exchange(id, -1));
  }
}

Result<Snapshot> KvPages::TakeSnapshot(const Sequence& sequence) {
  const SequencePages& pages = sequence.pages_;
  if (pages.position == 0 || pages.position % kContextBlockTokens != 0) {
    return MakeError("KV cache: a snapshot is possible at multiples of {} tokens, not at {}",
                     kContextBlockTokens, pages.position);
  }
  const std::optional<int32_t> tail = tails_.Take();
  if (!tail) return MakeError("KV cache: the budget of snapshots is used up");
  Snapshot snapshot(this, *tail);
  snapshot.position_ = pages.position;
  snapshot.context_blocks_ =
      ShareFirst(context_blocks_, pages.context_blocks, pages.position / kContextBlockTokens);
  snapshot.window_pages_ =
      ShareFirst(window_pages_, pages.window_pages, pages.position / kWindowPageTokens);
  return snapshot;
}

HeldBlock KvPages::Hold(int32_t block) {
  context_blocks_.Retain(block);
  return HeldBlock(this, block);
}

void KvPages::ReplaceBlock(Sequence& sequence, int64_t index, int32_t block) {
  HB_CHECK((index + 1) * kContextBlockTokens <= sequence.position(), "block {} is not full", index);
  context_blocks_.Retain(block);
  int32_t& own = sequence.pages_.context_blocks[static_cast<size_t>(index)];
  context_blocks_.Release(std::exchange(own, block));
}

Sequence::Sequence(Sequence&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)), pages_(std::move(other.pages_)) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this != &other) {
    Release();
    owner_ = std::exchange(other.owner_, nullptr);
    pages_ = std::move(other.pages_);
  }
  return *this;
}

Sequence::~Sequence() { Release(); }

void Sequence::Release() {
  if (owner_ == nullptr) return;
  ReleasePages(owner_->context_blocks_, pages_.context_blocks);
  ReleasePages(owner_->window_pages_, pages_.window_pages);
  owner_->state_slots_.Release(pages_.slot);
  owner_ = nullptr;
}

Snapshot::Snapshot(Snapshot&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      tail_(other.tail_),
      position_(other.position_),
      context_blocks_(std::move(other.context_blocks_)),
      window_pages_(std::move(other.window_pages_)) {}

Snapshot& Snapshot::operator=(Snapshot&& other) noexcept {
  if (this != &other) {
    Release();
    owner_ = std::exchange(other.owner_, nullptr);
    tail_ = other.tail_;
    position_ = other.position_;
    context_blocks_ = std::move(other.context_blocks_);
    window_pages_ = std::move(other.window_pages_);
  }
  return *this;
}

Snapshot::~Snapshot() { Release(); }

void Snapshot::Release() {
  if (owner_ == nullptr) return;
  ReleasePages(owner_->context_blocks_, context_blocks_);
  ReleasePages(owner_->window_pages_, window_pages_);
  owner_->tails_.Release(tail_);
  owner_ = nullptr;
}

HeldBlock::HeldBlock(HeldBlock&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)), id_(other.id_) {}

HeldBlock& HeldBlock::operator=(HeldBlock&& other) noexcept {
  if (this != &other) {
    Release();
    owner_ = std::exchange(other.owner_, nullptr);
    id_ = other.id_;
  }
  return *this;
}

HeldBlock::~HeldBlock() { Release(); }

void HeldBlock::Release() {
  if (owner_ == nullptr) return;
  owner_->context_blocks_.Release(id_);
  owner_ = nullptr;
}

}  // namespace halfbyte
