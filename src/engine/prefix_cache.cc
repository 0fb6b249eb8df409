#include "engine/prefix_cache.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace halfbyte {
namespace {

std::span<const int32_t> BlockIds(std::span<const int32_t> tokens, int64_t block) {
  return tokens.subspan(static_cast<size_t>(block * kContextBlockTokens), kContextBlockTokens);
}

}  // namespace

uint64_t PrefixCache::MixIds(uint64_t parent, std::span<const int32_t> ids) {
  uint64_t key = parent;
  for (const int32_t id : ids) {
    key = (key ^ static_cast<uint32_t>(id)) * 0x9E3779B97F4A7C15u;
    key ^= key >> 29;
  }
  return key;
}

PrefixCache::PrefixCache(KvPages& pages, bool enabled, Hash hash)
    : pages_(pages), enabled_(enabled), hash_(hash) {}

PrefixCache::~PrefixCache() {
  Clear();
  HB_CHECK(blocks_.empty(), "{} blocks are still held", blocks_.size());
}

PrefixCache::Chain::Chain(PrefixCache* cache, Block* last, std::string salt)
    : cache_(cache), last_(last), salt_(std::move(salt)) {
  cache_->Hold(last_);
}

PrefixCache::Chain::Chain(Chain&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      last_(std::exchange(other.last_, nullptr)),
      salt_(std::move(other.salt_)) {}

PrefixCache::Chain& PrefixCache::Chain::operator=(Chain&& other) noexcept {
  if (this != &other) {
    if (cache_ != nullptr) cache_->Unhold(last_);
    cache_ = std::exchange(other.cache_, nullptr);
    last_ = std::exchange(other.last_, nullptr);
    salt_ = std::move(other.salt_);
  }
  return *this;
}

PrefixCache::Chain::~Chain() {
  if (cache_ != nullptr) cache_->Unhold(last_);
}

PrefixCache::Chain PrefixCache::Chain::Clone() const { return {cache_, last_, salt_}; }

int64_t PrefixCache::Chain::tokens() const {
  return last_ != nullptr ? (last_->number + 1) * kContextBlockTokens : 0;
}

std::vector<int32_t> PrefixCache::Chain::context_blocks() const {
  std::vector<int32_t> ids(static_cast<size_t>(tokens() / kContextBlockTokens));
  for (const Block* block = last_; block != nullptr; block = block->parent) {
    ids[static_cast<size_t>(block->number)] = block->page.id();
  }
  return ids;
}

uint64_t PrefixCache::KeyAfter(const Block* parent, std::string_view salt,
                               std::span<const int32_t> ids) const {
  return hash_(parent != nullptr ? parent->key : std::hash<std::string_view>()(salt), ids);
}

PrefixCache::Block* PrefixCache::FindChild(Block* parent, std::string_view salt,
                                           std::span<const int32_t> ids, uint64_t key) {
  const auto [begin, end] = blocks_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    Block& block = *it->second;
    if (block.parent == parent && (parent != nullptr || block.salt == salt) &&
        std::ranges::equal(block.ids, ids)) {
      return &block;
    }
  }
  return nullptr;
}

PrefixCache::Match PrefixCache::Find(std::string_view salt, std::span<const int32_t> tokens,
                                     int64_t limit, int64_t replay_tokens) {
  Match match;
  Block* found = nullptr;
  Block* usable = nullptr;  // the last one with a snapshot
  int64_t usable_tokens = 0;
  const int64_t most = std::min(limit, std::ssize(tokens)) / kContextBlockTokens;
  for (int64_t i = 0; i < most; ++i) {
    const std::span<const int32_t> ids = BlockIds(tokens, i);
    Block* next = FindChild(found, salt, ids, KeyAfter(found, salt, ids));
    if (next == nullptr) break;
    found = next;
    match.found_tokens += kContextBlockTokens;
    if (!found->snapshot) continue;
    usable = found;
    usable_tokens = match.found_tokens;
  }
  const bool replays = match.found_tokens - replay_tokens > usable_tokens;
  match.chain = Chain(this, replays ? found : usable, std::string(salt));
  if (!replays && usable != nullptr) {
    match.snapshot = &*usable->snapshot;
    usable->rolling = false;
    UseSnapshot(usable);
  }
  return match;
}

void PrefixCache::Hold(Block* last) {
  for (Block* block = last; block != nullptr; block = block->parent) {
    if (block->chains++ > 0) continue;
    --unheld_;
    evictable_.erase({block->last_use, block});
  }
}

void PrefixCache::Unhold(Block* last) {
  // From the end, so that children are older than their parents.
  for (Block* block = last; block != nullptr; block = block->parent) {
    HB_CHECK(block->chains > 0, "a block is held by no chain");
    if (--block->chains > 0) continue;
    ++unheld_;
    block->last_use = ++uses_;
    if (block->children == 0) evictable_.emplace(block->last_use, block);
  }
}

void PrefixCache::Extend(Chain& chain, Sequence& sequence, std::span<const int32_t> tokens) {
  if (!enabled_) return;
  int64_t depth = chain.tokens() / kContextBlockTokens;
  for (; (depth + 1) * kContextBlockTokens <= std::ssize(tokens); ++depth) {
    const std::span<const int32_t> ids = BlockIds(tokens, depth);
    const uint64_t key = KeyAfter(chain.last_, chain.salt_, ids);
    Block* block = FindChild(chain.last_, chain.salt_, ids, key);
    const int32_t own = sequence.pages().context_blocks[static_cast<size_t>(depth)];
    if (block == nullptr) {
      auto added = std::make_unique<Block>(
          Block{.key = key,
                .parent = chain.last_,
                .number = depth,
                .salt = chain.last_ == nullptr ? chain.salt_ : std::string(),
                .ids = {ids.begin(), ids.end()},
                .page = pages_.Hold(own)});
      block = added.get();
      blocks_.emplace(key, std::move(added));
      if (block->parent != nullptr) ++block->parent->children;
    } else {
      if (block->page.id() != own) pages_.ReplaceBlock(sequence, depth, block->page.id());
      if (block->chains == 0) {
        --unheld_;
        evictable_.erase({block->last_use, block});
      }
    }
    ++block->chains;  // those before it are held by this chain already
    chain.last_ = block;
  }
}

std::optional<TailMove> PrefixCache::TakeSnapshot(const Chain& chain, const Sequence& sequence,
                                                  bool rolling) {
  Block* block = chain.last_;
  if (!enabled_ || block == nullptr || block->snapshot || !FreeATail()) return std::nullopt;
  HB_CHECK(sequence.position() == chain.tokens(), "a snapshot at {} for a block that ends at {}",
           sequence.position(), chain.tokens());
  auto snapshot = pages_.TakeSnapshot(sequence);
  HB_CHECK(snapshot, "{}", snapshot.error().message);
  block->snapshot = *std::move(snapshot);
  block->rolling = rolling;
  UseSnapshot(block);
  Block* before = block->parent;
  if (rolling && before != nullptr && before->rolling) DropSnapshot(before);
  return TailMove{sequence.pages().slot, block->snapshot->position(), block->snapshot->tail()};
}

void PrefixCache::UseSnapshot(Block* block) {
  snapshots_.erase({block->snapshot_use, block});
  block->snapshot_use = ++uses_;
  snapshots_.emplace(block->snapshot_use, block);
}

void PrefixCache::DropSnapshot(Block* block) {
  if (!block->snapshot) return;
  snapshots_.erase({block->snapshot_use, block});
  block->snapshot.reset();
  block->rolling = false;
}

bool PrefixCache::FreeATail() {
  if (pages_.free().tails > 0) return true;
  if (snapshots_.empty()) return false;
  DropSnapshot(snapshots_.begin()->second);
  return true;
}

void PrefixCache::Evict(Block* block) {
  evictable_.erase({block->last_use, block});
  DropSnapshot(block);
  --unheld_;
  if (Block* parent = block->parent; parent != nullptr) {
    if (--parent->children == 0 && parent->chains == 0) {
      evictable_.emplace(parent->last_use, parent);
    }
  }
  const auto [begin, end] = blocks_.equal_range(block->key);
  blocks_.erase(std::find_if(begin, end, [&](const auto& it) { return it.second.get() == block; }));
}

int64_t PrefixCache::available() const { return pages_.free().context_blocks + unheld_; }

bool PrefixCache::MakeFree(int64_t count) {
  if (available() < count) return false;
  while (pages_.free().context_blocks < count) {
    HB_CHECK(!evictable_.empty(), "{} unheld blocks, none of them evictable", unheld_);
    Evict(evictable_.begin()->second);
  }
  return true;
}

void PrefixCache::Clear() {
  while (!evictable_.empty()) Evict(evictable_.begin()->second);
}

}  // namespace halfbyte
