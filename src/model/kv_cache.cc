#include "model/kv_cache.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

// A pool of more pages would hold over a billion tokens; up to here no product of sizes wraps.
constexpr int64_t kMostPages = int64_t{1} << 22;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

Status CheckLimits(const KvCacheLimits& limits) {
  if (limits.context_tokens > kMostPages * kContextBlockTokens || limits.sequences > kMostPages ||
      limits.batch_tokens > kMostPages || limits.snapshots > kMostPages) {
    return MakeError(
        "KV cache: {} tokens of context in {} sequences, batches of {} tokens and {} snapshots are "
        "more than can be held; allow less",
        limits.context_tokens, limits.sequences, limits.batch_tokens, limits.snapshots);
  }
  return {};
}

// Takes `count` pages into `table`, or none.
bool TakePages(PagePool& pool, int64_t count, std::vector<int32_t>& table) {
  if (pool.free_pages() < count) return false;
  for (int64_t i = 0; i < count; ++i) table.push_back(*pool.Take());
  return true;
}

void ReleasePages(PagePool& pool, std::vector<int32_t>& table) {
  for (const int32_t page : table) {
    if (page >= 0) pool.Release(page);
  }
  table.clear();
}

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::Create(const ModelConfig& config, KvFormat kv_format,
                                                 IndexFormat index_format,
                                                 const KvCacheLimits& limits) {
  HB_RETURN_IF_ERROR(CheckLimits(limits));
  for (const LayerConfig& layer : config.layers) {
    if (layer.compress_rate > 0 && kContextBlockTokens % layer.compress_rate != 0) {
      return MakeError("KV cache: compression rate {} does not divide the {} tokens of a block",
                       layer.compress_rate, kContextBlockTokens);
    }
  }
  const int64_t index_dim = config.index_head_dim;
  if (index_format == IndexFormat::kMxfp4 &&
      (!std::has_single_bit(static_cast<uint64_t>(index_dim)) || index_dim < 2 ||
       index_dim > IndexRow::kMaxMxfp4Dim) &&
      std::ranges::any_of(config.layers, [](const LayerConfig& layer) {
        return layer.attention == AttentionKind::kC4;
      })) {
    return MakeError("KV cache: index_head_dim {} is no power of two from 2 to {}; use --math fp32",
                     index_dim, IndexRow::kMaxMxfp4Dim);
  }
  std::unique_ptr<KvCache> cache(new KvCache());
  cache->kv_row_ = {kv_format, config.head_dim, config.rope_dim};
  cache->index_row_ = {index_format, config.index_head_dim};
  cache->window_ = config.sliding_window;
  const int64_t window_pages_each = CeilDiv(config.sliding_window, kWindowPageTokens) + 2;
  cache->context_blocks_ =
      PagePool(CeilDiv(limits.context_tokens, kContextBlockTokens) + limits.sequences - 1);
  cache->window_pages_ = PagePool(window_pages_each * (limits.sequences + limits.snapshots) +
                                  CeilDiv(limits.batch_tokens, kWindowPageTokens));
  cache->state_slots_ = PagePool(limits.sequences);
  cache->snapshots_left_ = limits.snapshots;
  cache->PlanState(config);
  HB_RETURN_IF_ERROR(cache->AllocatePools(config));
  return cache;
}

void KvCache::PlanState(const ModelConfig& config) {
  const auto add_ring = [&](int64_t rate, bool overlap, int64_t dim) {
    const int64_t row_floats = 2 * (overlap ? 2 * dim : dim);
    rings_.push_back({state_floats_, rate, overlap, row_floats});
    state_floats_ += (overlap ? 2 * rate : rate) * row_floats;
    return rings_.back().offset;
  };
  for (const LayerConfig& layer : config.layers) {
    LayerPools pools;
    pools.rate = layer.compress_rate;
    pools.overlap = layer.attention == AttentionKind::kC4;
    if (layer.attention != AttentionKind::kWindow) {
      pools.attention_ring = add_ring(layer.compress_rate, pools.overlap, config.head_dim);
    }
    if (layer.attention == AttentionKind::kC4) {
      pools.indexer_ring = add_ring(layer.compress_rate, true, config.index_head_dim);
    }
    layers_.push_back(pools);
  }
}

Status KvCache::AllocatePools(const ModelConfig& config) {
  const int64_t window_bytes = kWindowPageTokens * kv_row_.bytes();
  const int64_t pages = window_pages_.free_pages();
  const int64_t blocks = context_blocks_.free_pages();
  int64_t total = 0;
  std::vector<int64_t> offsets;
  for (const LayerConfig& layer : config.layers) {
    const int64_t rows =
        layer.compress_rate > 0 ? kContextBlockTokens / layer.compress_rate : int64_t{0};
    const int64_t index_rows = layer.attention == AttentionKind::kC4 ? rows : 0;
    window_page_bytes_ += window_bytes;
    context_block_bytes_ += rows * kv_row_.bytes() + index_rows * index_row_.bytes();
    for (const int64_t bytes : {pages * window_bytes, blocks * rows * kv_row_.bytes(),
                                blocks * index_rows * index_row_.bytes()}) {
      offsets.push_back(total);
      total += RoundUp(bytes, 64);
    }
  }
  HB_ASSIGN_OR_RETURN(rows_, ZeroedMemory::Allocate(total, "KV cache"));
  HB_ASSIGN_OR_RETURN(state_, ZeroedMemory::Allocate(state_slots_.free_pages() * state_slot_bytes(),
                                                     "KV cache state"));
  for (size_t l = 0; l < layers_.size(); ++l) {
    layers_[l].window = rows_.data() + offsets[3 * l];
    layers_[l].compressed = rows_.data() + offsets[3 * l + 1];
    layers_[l].index = rows_.data() + offsets[3 * l + 2];
  }
  return {};
}

int64_t KvCache::FirstWindowToken(int64_t position) const {
  return std::max<int64_t>(0, position - window_ + 1);
}

Result<Sequence> KvCache::NewSequence() {
  const std::optional<int32_t> slot = state_slots_.Take();
  if (!slot) return MakeError("KV cache: all sequence slots are in use");
  return Sequence(this, *slot);
}

Status KvCache::Reserve(Sequence& sequence, int64_t tokens) {
  const int64_t end = sequence.position_ + tokens;
  const int64_t blocks = CeilDiv(end, kContextBlockTokens) - std::ssize(sequence.context_table_);
  const int64_t pages = CeilDiv(end, kWindowPageTokens) - std::ssize(sequence.window_table_);
  if (blocks > context_blocks_.free_pages() || pages > window_pages_.free_pages()) {
    return MakeError(
        "KV cache: {} more tokens need {} context blocks and {} window pages, but {} and {} are "
        "free",
        tokens, std::max<int64_t>(blocks, 0), std::max<int64_t>(pages, 0),
        context_blocks_.free_pages(), window_pages_.free_pages());
  }
  TakePages(context_blocks_, blocks, sequence.context_table_);
  TakePages(window_pages_, pages, sequence.window_table_);
  return {};
}

void KvCache::Advance(Sequence& sequence, int64_t tokens) {
  sequence.position_ += tokens;
  HB_CHECK(sequence.position_ <= std::ssize(sequence.window_table_) * kWindowPageTokens,
           "{} tokens in {} window pages", sequence.position_, std::ssize(sequence.window_table_));
  const int64_t first_page = FirstWindowToken(sequence.position_) / kWindowPageTokens;
  for (int64_t page = first_page - 1; page >= 0; --page) {
    int32_t& id = sequence.window_table_[static_cast<size_t>(page)];
    if (id < 0) break;  // given back earlier, and so are those before it
    window_pages_.Release(std::exchange(id, -1));
  }
}

// Copies the ring rows of the last group before `position` between a slot and a tail.
void KvCache::CopyTail(int64_t position, int32_t slot, float* tail, bool restore) const {
  float* state = reinterpret_cast<float*>(state_.data()) + slot * state_floats_;
  for (const RingRange& ring : rings_) {
    if (!ring.overlap) continue;  // its group is empty at a block boundary
    for (int64_t p = position - ring.rate; p < position; ++p) {
      float* row = state + ring.offset + p % (2 * ring.rate) * ring.row_floats;
      float* from = restore ? tail : row;
      float* to = restore ? row : tail;
      std::copy_n(from, ring.row_floats, to);
      tail += ring.row_floats;
    }
  }
}

int64_t KvCache::TailFloats() const {
  int64_t floats = 0;
  for (const RingRange& ring : rings_) {
    if (ring.overlap) floats += ring.rate * ring.row_floats;
  }
  return floats;
}

Result<Snapshot> KvCache::TakeSnapshot(const Sequence& sequence) {
  const int64_t position = sequence.position_;
  if (position == 0 || position % kContextBlockTokens != 0) {
    return MakeError("KV cache: a snapshot is possible at multiples of {} tokens, not at {}",
                     kContextBlockTokens, position);
  }
  if (snapshots_left_ == 0) return MakeError("KV cache: the budget of snapshots is used up");
  --snapshots_left_;
  Snapshot snapshot(this);
  snapshot.position_ = position;
  snapshot.context_table_.assign(sequence.context_table_.begin(),
                                 sequence.context_table_.begin() + position / kContextBlockTokens);
  snapshot.window_table_.assign(sequence.window_table_.begin(),
                                sequence.window_table_.begin() + position / kWindowPageTokens);
  for (const int32_t block : snapshot.context_table_) context_blocks_.Retain(block);
  for (const int32_t page : snapshot.window_table_) {
    if (page >= 0) window_pages_.Retain(page);
  }
  snapshot.tail_.resize(static_cast<size_t>(TailFloats()));
  CopyTail(position, sequence.slot_, snapshot.tail_.data(), /*restore=*/false);
  return snapshot;
}

Result<Sequence> KvCache::Continue(const Snapshot& snapshot) {
  HB_ASSIGN_OR_RETURN(Sequence sequence, NewSequence());
  sequence.position_ = snapshot.position_;
  sequence.context_table_ = snapshot.context_table_;
  sequence.window_table_ = snapshot.window_table_;
  for (const int32_t block : sequence.context_table_) context_blocks_.Retain(block);
  for (const int32_t page : sequence.window_table_) {
    if (page >= 0) window_pages_.Retain(page);
  }
  // CopyTail only reads the tail when it restores.
  CopyTail(snapshot.position_, sequence.slot_, const_cast<float*>(snapshot.tail_.data()),
           /*restore=*/true);
  return sequence;
}

PagedRows KvCache::WindowRows(const Sequence& sequence, int64_t layer) const {
  return {layers_[static_cast<size_t>(layer)].window, sequence.window_table_.data(),
          kWindowPageTokens, kv_row_.bytes()};
}

PagedRows KvCache::CompressedRows(const Sequence& sequence, int64_t layer) const {
  const LayerPools& pools = layers_[static_cast<size_t>(layer)];
  return {pools.compressed, sequence.context_table_.data(),
          pools.rate > 0 ? kContextBlockTokens / pools.rate : 0, kv_row_.bytes()};
}

PagedRows KvCache::IndexRows(const Sequence& sequence, int64_t layer) const {
  const LayerPools& pools = layers_[static_cast<size_t>(layer)];
  return {pools.index, sequence.context_table_.data(), kContextBlockTokens / pools.rate,
          index_row_.bytes()};
}

CompressorRing KvCache::AttentionRing(const Sequence& sequence, int64_t layer) const {
  const LayerPools& pools = layers_[static_cast<size_t>(layer)];
  float* state = reinterpret_cast<float*>(state_.data()) + sequence.slot_ * state_floats_;
  return {state + pools.attention_ring, pools.overlap ? 2 * pools.rate : pools.rate};
}

CompressorRing KvCache::IndexerRing(const Sequence& sequence, int64_t layer) const {
  const LayerPools& pools = layers_[static_cast<size_t>(layer)];
  float* state = reinterpret_cast<float*>(state_.data()) + sequence.slot_ * state_floats_;
  return {state + pools.indexer_ring, 2 * pools.rate};
}

int64_t KvCache::free_context_blocks() const { return context_blocks_.free_pages(); }
int64_t KvCache::free_window_pages() const { return window_pages_.free_pages(); }
int64_t KvCache::free_state_slots() const { return state_slots_.free_pages(); }

Sequence::Sequence(Sequence&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      slot_(other.slot_),
      position_(other.position_),
      context_table_(std::move(other.context_table_)),
      window_table_(std::move(other.window_table_)) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this != &other) {
    Release();
    cache_ = std::exchange(other.cache_, nullptr);
    slot_ = other.slot_;
    position_ = other.position_;
    context_table_ = std::move(other.context_table_);
    window_table_ = std::move(other.window_table_);
  }
  return *this;
}

Sequence::~Sequence() { Release(); }

void Sequence::Release() {
  if (cache_ == nullptr) return;
  ReleasePages(cache_->context_blocks_, context_table_);
  ReleasePages(cache_->window_pages_, window_table_);
  cache_->state_slots_.Release(slot_);
  cache_ = nullptr;
}

Snapshot::Snapshot(Snapshot&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      position_(other.position_),
      context_table_(std::move(other.context_table_)),
      window_table_(std::move(other.window_table_)),
      tail_(std::move(other.tail_)) {}

Snapshot& Snapshot::operator=(Snapshot&& other) noexcept {
  if (this != &other) {
    Release();
    cache_ = std::exchange(other.cache_, nullptr);
    position_ = other.position_;
    context_table_ = std::move(other.context_table_);
    window_table_ = std::move(other.window_table_);
    tail_ = std::move(other.tail_);
  }
  return *this;
}

Snapshot::~Snapshot() { Release(); }

void Snapshot::Release() {
  if (cache_ == nullptr) return;
  ReleasePages(cache_->context_blocks_, context_table_);
  ReleasePages(cache_->window_pages_, window_table_);
  ++cache_->snapshots_left_;
  cache_ = nullptr;
}

}  // namespace halfbyte
