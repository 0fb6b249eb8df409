#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <vector>

#include "model/cpu/cpu_kv_memory.h"
#include "paging/paging_test_sequences.h"

namespace halfbyte {
namespace {

LayerConfig Layer(int64_t rate) {
  if (rate == 0) return {AttentionKind::kWindow, 0, false};
  return {rate == 4 ? AttentionKind::kC4 : AttentionKind::kC128, rate, false};
}

// The layers of the real models: `first`, then 4 and 128 in turns (deepseek-v4.md §1.3).
ModelConfig RealConfig(int64_t layers, int64_t first) {
  ModelConfig config;
  config.head_dim = 512;
  config.rope_dim = 64;
  config.index_head_dim = 128;
  config.sliding_window = 128;
  for (int64_t i = 0; i < layers; ++i) {
    config.layers.push_back(Layer(i < 2 ? first : i % 2 == 0 ? 4 : 128));
  }
  return config;
}
ModelConfig Flash() { return RealConfig(43, 0); }
ModelConfig Pro() { return RealConfig(61, 128); }

ModelConfig SmallConfig() {
  ModelConfig config;
  config.head_dim = 2;
  config.rope_dim = 2;
  config.index_head_dim = 2;
  config.sliding_window = 128;
  config.layers = {Layer(0), Layer(4), Layer(128), Layer(4)};
  return config;
}

Result<std::unique_ptr<KvCache>> Create(const ModelConfig& config, KvFormat kv_format,
                                        IndexFormat index_format, const KvCacheLimits& limits) {
  HB_ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::Create(config, kv_format, index_format));
  const KvPoolSizes sizes = limits.Pools(config.sliding_window);
  HB_ASSIGN_OR_RETURN(auto memory, CpuKvMemory::Create(layout, sizes));
  return std::make_unique<KvCache>(std::move(memory), sizes, config.sliding_window);
}

std::unique_ptr<KvCache> Make(const KvCacheLimits& limits,
                              const ModelConfig& config = SmallConfig()) {
  auto cache = Create(config, KvFormat::kF32, IndexFormat::kF32, limits);
  EXPECT_TRUE(cache.has_value()) << cache.error().message;
  return *std::move(cache);
}

const CpuKvMemory& RowsOf(KvCache& cache) { return static_cast<CpuKvMemory&>(cache.memory()); }

struct FreeCounts {
  int64_t blocks, pages, slots;
  explicit FreeCounts(KvCache& cache)
      : blocks(cache.pages().free().context_blocks),
        pages(cache.pages().free().window_pages),
        slots(cache.pages().free().state_slots) {}
  friend bool operator==(const FreeCounts&, const FreeCounts&) = default;
};

TEST(KvCache,
     HasTheSizesOfTheSpecificationForTheRealModels) {  // deepseek-v4.md §3.2, server.md §1.4
  const auto create = [](const ModelConfig& config) {
    return *KvLayout::Create(config, KvFormat::kFp8, IndexFormat::kMxfp4);
  };
  const auto flash = create(Flash()), pro = create(Pro());
  // Main layers only; each draft layer would add 64 * 584 = 37,376.
  EXPECT_EQ(flash.window_page_bytes(), 1607168);
  EXPECT_EQ(pro.window_page_bytes(), 2279936);
  // server.md counts FP8 index rows of 132 bytes, ours are MXFP4 of 68.
  EXPECT_EQ(flash.context_block_bytes(), 985664 - 21 * 64 * (132 - 68));
  EXPECT_EQ(pro.context_block_bytes(), 1410928 - 30 * 64 * (132 - 68));
  EXPECT_EQ(static_cast<double>(flash.context_block_bytes()) / 256, 3514.25);
  EXPECT_EQ(static_cast<double>(pro.context_block_bytes()) / 256, 5031.4375);
  EXPECT_EQ(flash.state_slot_bytes(), 12206080);
  EXPECT_EQ(pro.state_slot_bytes(), 18710528);
}

TEST(KvCache, AThousandTokensHoldWhatTheCaseSays) {  // kv-rows-1000, MDL-08
  const auto cache = Make({.sequences = 1, .context_tokens = 1000});
  Sequence sequence = *cache->NewSequence();
  const FreeCounts before(*cache);
  Grow(cache->pages(), sequence, 1000);
  // 250 entries at rate 4 and 7 at rate 128, in 4 blocks; 128 window rows, in 3 pages at most.
  EXPECT_EQ(before.blocks - cache->pages().free().context_blocks, 4);
  EXPECT_EQ(RowsOf(*cache).CompressedRows(sequence.pages(), 1).rows_per_page, 64);
  EXPECT_EQ(RowsOf(*cache).IndexRows(sequence.pages(), 1).rows_per_page, 64);
  EXPECT_EQ(RowsOf(*cache).CompressedRows(sequence.pages(), 2).rows_per_page, 2);
  EXPECT_LE(before.pages - cache->pages().free().window_pages, 3);
}

TEST(KvCache, AdmitsExactlyTheContextItWasMadeFor) {
  for (const int64_t tokens : {1, 255, 256, 257, 1000, 4096}) {
    const auto cache = Make({.sequences = 1, .context_tokens = tokens, .batch_tokens = 64});
    Sequence sequence = *cache->NewSequence();
    int64_t admitted = 0;
    while (cache->pages().Reserve(sequence, 1)) {
      cache->pages().Advance(sequence, 1);
      ++admitted;
    }
    EXPECT_EQ(admitted, (tokens + 255) / 256 * 256);
  }
}

TEST(KvCache, AnySharingOfTheContextFits) {  // every sequence rounds up to whole blocks
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t sequences = 1 + static_cast<int64_t>(random() % 5);
    const int64_t tokens = sequences + static_cast<int64_t>(random() % 3000);
    const auto cache =
        Make({.sequences = sequences, .context_tokens = tokens, .batch_tokens = 64 * sequences});
    std::list<Sequence> alive;
    int64_t left = tokens;
    for (int64_t i = 0; i < sequences; ++i) {
      const int64_t share = i + 1 == sequences ? left : static_cast<int64_t>(random() % (left + 1));
      left -= share;
      alive.push_back(*cache->NewSequence());
      Grow(cache->pages(), alive.back(), share);
    }
  }
}

TEST(KvCache, WindowPagesSufficeForEveryBatchItWasMadeFor) {
  // Sequences at the worst positions, all with their chunks of one batch reserved at once.
  for (const int64_t batch : {4, 64, 70, 512}) {
    const auto cache = Make({.sequences = 4, .context_tokens = 4 * 2048, .batch_tokens = batch});
    std::vector<Sequence> alive;
    for (int64_t i = 0; i < 4; ++i) {
      alive.push_back(*cache->NewSequence());
      Grow(cache->pages(), alive.back(), 383 + 64 * i, 4);
    }
    for (int64_t shift = 0; shift < 64; ++shift) {
      for (Sequence& sequence : alive) {
        EXPECT_TRUE(cache->pages().Reserve(sequence, batch / 4)) << "batch " << batch;
      }
      for (Sequence& sequence : alive) cache->pages().Advance(sequence, 1);
    }
  }
}

TEST(KvCache, WindowPagesAreFreedOnceOutOfReachAndNeverEarlier) {
  for (const int64_t window : {1, 8, 64, 100, 128, 129, 200}) {
    ModelConfig config = SmallConfig();
    config.sliding_window = window;
    std::mt19937 random(static_cast<uint32_t>(window));
    const auto cache = Make({.sequences = 1, .context_tokens = 4096, .batch_tokens = 300}, config);
    const int64_t all = cache->pages().free().window_pages;
    Sequence sequence = *cache->NewSequence();
    while (sequence.position() < 3000) {
      const int64_t count = 1 + static_cast<int64_t>(random() % (random() % 4 == 0 ? 300 : 5));
      ASSERT_TRUE(cache->pages().Reserve(sequence, count));
      const int64_t old = sequence.position();
      const int32_t* table = RowsOf(*cache).WindowRows(sequence.pages(), 0).table;
      // During the call the first query, at `old`, reaches back to old - window + 1.
      for (int64_t p = std::max<int64_t>(0, old - window + 1); p < old + count; ++p) {
        ASSERT_GE(table[p / 64], 0) << "position " << p << " is gone for the query at " << old;
      }
      cache->pages().Advance(sequence, count);
      const int64_t position = sequence.position();
      int64_t held = 0;
      for (int64_t page = 0; page * 64 < position; ++page) {
        const bool reachable = page * 64 + 63 >= position - window + 1;
        ASSERT_EQ(table[page] >= 0, reachable) << "page " << page << " at " << position;
        held += reachable ? 1 : 0;
      }
      ASSERT_EQ(all - cache->pages().free().window_pages, held);
    }
  }
}

TEST(KvCache, AnExhaustedPoolIsAnErrorAndChangesNothing) {
  const auto cache = Make({.sequences = 2, .context_tokens = 512, .batch_tokens = 64});
  Sequence sequence = *cache->NewSequence();
  Grow(cache->pages(), sequence, 100);
  const FreeCounts before(*cache);
  const Status blocks = cache->pages().Reserve(sequence, 700);  // more blocks than there are
  ASSERT_FALSE(blocks);
  EXPECT_NE(blocks.error().message.find("700 more tokens need 3 context blocks"), std::string::npos)
      << blocks.error().message;
  EXPECT_EQ(FreeCounts(*cache), before);
  EXPECT_EQ(sequence.position(), 100);
  EXPECT_TRUE(cache->pages().Reserve(sequence, 64));
  EXPECT_FALSE(cache->pages().Reserve(sequence, int64_t{1} << 40));

  Sequence second = *cache->NewSequence();
  const FreeCounts full(*cache);
  const auto third = cache->NewSequence();
  ASSERT_FALSE(third);
  EXPECT_NE(third.error().message.find("sequence slots"), std::string::npos);
  EXPECT_EQ(FreeCounts(*cache), full);
}

TEST(KvCache, TooLongAChunkLacksWindowPagesAndChangesNothing) {
  const auto cache = Make({.sequences = 1, .context_tokens = 1 << 16, .batch_tokens = 64});
  Sequence sequence = *cache->NewSequence();
  const FreeCounts before(*cache);
  EXPECT_FALSE(cache->pages().Reserve(sequence, 8192));
  EXPECT_EQ(FreeCounts(*cache), before);
  Grow(cache->pages(), sequence, 8192);
}

TEST(KvCache, ReservingTwiceTakesNothingMore) {
  const auto cache = Make({.sequences = 1, .context_tokens = 1024});
  Sequence sequence = *cache->NewSequence();
  ASSERT_TRUE(cache->pages().Reserve(sequence, 200));
  const FreeCounts once(*cache);
  ASSERT_TRUE(cache->pages().Reserve(sequence, 200));
  ASSERT_TRUE(cache->pages().Reserve(sequence, 0));
  EXPECT_EQ(FreeCounts(*cache), once);
}

TEST(KvCache, SnapshotsExistAtMultiplesOf256Only) {
  const auto cache = Make({.sequences = 1, .context_tokens = 1024, .snapshots = 9});
  Sequence sequence = *cache->NewSequence();
  for (const int64_t position : {0, 1, 255, 256, 257, 384, 511, 512, 768}) {
    Grow(cache->pages(), sequence, position - sequence.position());
    const FreeCounts before(*cache);
    const auto snapshot = cache->TakeSnapshot(sequence);
    EXPECT_EQ(snapshot.has_value(), position > 0 && position % 256 == 0) << position;
    if (snapshot) {
      EXPECT_EQ(snapshot->position(), position);
    } else {
      EXPECT_NE(snapshot.error().message.find("multiples of 256"), std::string::npos);
    }
    EXPECT_EQ(FreeCounts(*cache), before);  // pages are shared
  }
}

TEST(KvCache, TheBudgetOfSnapshotsIsKeptAndComesBack) {
  const auto cache = Make({.sequences = 1, .context_tokens = 1024, .snapshots = 1});
  Sequence sequence = *cache->NewSequence();
  Grow(cache->pages(), sequence, 256);
  {
    const Snapshot snapshot = *cache->TakeSnapshot(sequence);
    const auto another = cache->TakeSnapshot(sequence);
    ASSERT_FALSE(another);
    EXPECT_NE(another.error().message.find("budget"), std::string::npos);
  }
  EXPECT_TRUE(cache->TakeSnapshot(sequence));
  const auto none = Make({.sequences = 1, .context_tokens = 1024});
  Sequence without = *none->NewSequence();
  Grow(none->pages(), without, 256);
  EXPECT_FALSE(none->TakeSnapshot(without));
}

TEST(KvCache, ASnapshotOutlivesItsSequenceAndKeepsTwoWindowPages) {
  const auto cache = Make({.sequences = 2, .context_tokens = 2048, .snapshots = 1});
  const FreeCounts start(*cache);
  {
    auto sequence = std::make_optional(*cache->NewSequence());
    Grow(cache->pages(), *sequence, 512);
    const Snapshot snapshot = *cache->TakeSnapshot(*sequence);
    Grow(cache->pages(), *sequence, 300);
    sequence.reset();
    EXPECT_EQ(start.blocks - cache->pages().free().context_blocks, 2);
    EXPECT_EQ(start.pages - cache->pages().free().window_pages, 2);
    EXPECT_EQ(cache->pages().free().state_slots, start.slots);
    Sequence continued = *cache->Continue(snapshot);
    EXPECT_EQ(continued.position(), 512);
    Grow(cache->pages(), continued, 100);
    const Sequence second = *cache->Continue(snapshot);
    const FreeCounts before(*cache);
    EXPECT_FALSE(cache->Continue(snapshot));  // no slot left
    EXPECT_EQ(FreeCounts(*cache), before);
  }
  EXPECT_EQ(FreeCounts(*cache), start);
}

TEST(KvCache, MovingHandsOverThePages) {
  const auto cache = Make({.sequences = 3, .context_tokens = 2048, .snapshots = 2});
  const FreeCounts start(*cache);
  {
    Sequence a = *cache->NewSequence();
    Grow(cache->pages(), a, 300);
    const FreeCounts with_a(*cache);
    const int32_t* table = RowsOf(*cache).CompressedRows(a.pages(), 1).table;
    const int32_t first = table[0];
    Sequence b = std::move(a);
    EXPECT_EQ(FreeCounts(*cache), with_a);
    EXPECT_EQ(b.position(), 300);
    EXPECT_EQ(RowsOf(*cache).CompressedRows(b.pages(), 1).table[0], first);
    Sequence c = *cache->NewSequence();
    Grow(cache->pages(), c, 700);
    c = std::move(b);  // gives c's own pages back
    EXPECT_EQ(FreeCounts(*cache), with_a);
    EXPECT_EQ(c.position(), 300);
    Sequence& same = c;
    c = std::move(same);
    EXPECT_EQ(c.position(), 300);
    EXPECT_EQ(FreeCounts(*cache), with_a);
    std::vector<Sequence> many;  // moves on growth
    many.push_back(std::move(c));
    many.push_back(*cache->NewSequence());
    many.push_back(*cache->NewSequence());
    many.erase(many.begin());
    EXPECT_EQ(cache->pages().free().state_slots, start.slots - 2);
    EXPECT_EQ(cache->pages().free().context_blocks, start.blocks);

    Grow(cache->pages(), many[0], 256);
    Snapshot one = *cache->TakeSnapshot(many[0]);
    Snapshot two = *cache->TakeSnapshot(many[0]);
    EXPECT_FALSE(cache->TakeSnapshot(many[0]));
    one = std::move(two);
    EXPECT_EQ(one.position(), 256);
    const Snapshot three = std::move(one);
    EXPECT_TRUE(cache->TakeSnapshot(many[0]));  // assignment gave one back
  }
  EXPECT_EQ(FreeCounts(*cache), start);
}

TEST(KvCache, LayersStoresAndSlotsDoNotOverlap) {  // R133
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kFp8}) {
    const auto cache =
        *Create(SmallConfig(), format, IndexFormat::kF32, {.sequences = 3, .context_tokens = 1000});
    const Sequence sequences[] = {*cache->NewSequence(), *cache->NewSequence(),
                                  *cache->NewSequence()};
    const int64_t blocks = cache->pages().free().context_blocks,
                  pages = cache->pages().free().window_pages;
    std::vector<std::pair<const std::byte*, const std::byte*>> ranges;
    const auto add_pool = [&](const PagedRows& rows, int64_t count) {
      ranges.emplace_back(rows.pool, rows.pool + count * rows.rows_per_page * rows.row_bytes);
    };
    const auto add_ring = [&](const CompressorRing& ring, int64_t channels) {
      const auto* begin = reinterpret_cast<const std::byte*>(ring.data);
      ranges.emplace_back(begin, begin + ring.rows * 2 * channels * 4);
    };
    for (const int64_t layer : {0, 1, 2, 3})
      add_pool(RowsOf(*cache).WindowRows(sequences[0].pages(), layer), pages);
    for (const int64_t layer : {1, 2, 3}) {
      add_pool(RowsOf(*cache).CompressedRows(sequences[0].pages(), layer), blocks);
    }
    for (const int64_t layer : {1, 3})
      add_pool(RowsOf(*cache).IndexRows(sequences[0].pages(), layer), blocks);
    for (const Sequence& sequence : sequences) {
      for (const int64_t layer : {1, 3}) {
        add_ring(RowsOf(*cache).AttentionRing(sequence.pages(), layer), 4);
        add_ring(RowsOf(*cache).IndexerRing(sequence.pages(), layer), 4);
        EXPECT_EQ(RowsOf(*cache).AttentionRing(sequence.pages(), layer).rows, 8);
      }
      add_ring(RowsOf(*cache).AttentionRing(sequence.pages(), 2), 2);
      EXPECT_EQ(RowsOf(*cache).AttentionRing(sequence.pages(), 2).rows, 128);
    }
    std::ranges::sort(ranges);
    for (size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
  }
}

TEST(KvCache, RefusesWhatItCannotHold) {
  const auto error_of = [](const ModelConfig& config, IndexFormat format,
                           const KvCacheLimits& limits) {
    const auto cache = Create(config, KvFormat::kF32, format, limits);
    return cache ? std::string() : cache.error().message;
  };
  ModelConfig config = SmallConfig();
  config.layers[2].compress_rate = 100;
  EXPECT_NE(error_of(config, IndexFormat::kF32, {}).find("rate 100"), std::string::npos);
  for (const int64_t dim : {1, 24, 2048}) {
    config = SmallConfig();
    config.index_head_dim = dim;
    EXPECT_NE(error_of(config, IndexFormat::kMxfp4, {}).find("--math fp32"), std::string::npos);
    EXPECT_EQ(error_of(config, IndexFormat::kF32, {}), "") << dim;
    config.layers = {Layer(0), Layer(128)};  // no indexer, no matter
    EXPECT_EQ(error_of(config, IndexFormat::kMxfp4, {}), "") << dim;
  }
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const KvCacheLimits& limits : {KvCacheLimits{.context_tokens = kHuge},
                                      {.context_tokens = int64_t{1} << 50},
                                      {.sequences = int64_t{1} << 40},
                                      {.sequences = kHuge},
                                      {.batch_tokens = kHuge},
                                      {.snapshots = kHuge}}) {
    const std::string error = error_of(Pro(), IndexFormat::kMxfp4, limits);
    EXPECT_NE(error.find("KV cache"), std::string::npos) << error;
  }
}

// A sequence that marks every row it writes with a hash of its tokens so far, and can tell whether
// everything it may still read is there.
class MarkedSequence {
 public:
  MarkedSequence(KvCache& cache, Sequence sequence, std::vector<uint32_t> hashes)
      : cache_(&cache), sequence_(std::move(sequence)), hashes_(std::move(hashes)) {}

  Sequence& sequence() { return sequence_; }
  const std::vector<uint32_t>& hashes() const { return hashes_; }

  void Advance(int64_t tokens, std::mt19937& random) {
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t p = std::ssize(hashes_);
      hashes_.push_back((p > 0 ? hashes_.back() : 1u) * 2654435761u + random());
      ForEachRowOf(p, [&](uint32_t* row, uint32_t mark) { *row = mark; });
    }
    cache_->pages().Advance(sequence_, tokens);
  }

  void ExpectIntact() const {
    const int64_t position = sequence_.position();
    ASSERT_EQ(position, std::ssize(hashes_));
    for (int64_t p = 0; p < position; ++p) {
      ForEachRowOf(p, [&](const uint32_t* row, uint32_t mark) {
        ASSERT_EQ(*row, mark) << "position " << p << " of " << position;
      });
    }
  }

 private:
  template <class Body>
  void ForEachRowOf(int64_t p, const Body& body) const {
    const int64_t next = std::max<int64_t>(sequence_.position(), p);
    const auto mark = [&](uint32_t store) {
      return hashes_[static_cast<size_t>(p)] ^ (store * 0x9e3779b9u);
    };
    if (p > next - 128) {
      for (const int64_t layer : {0, 1, 2, 3}) {
        body(Row(RowsOf(*cache_).WindowRows(sequence_.pages(), layer), p),
             mark(static_cast<uint32_t>(layer)));
      }
    }
    for (const int64_t layer : {1, 2, 3}) {
      const int64_t rate = layer == 2 ? 128 : 4;
      const auto store = static_cast<uint32_t>(10 * layer);
      if ((p + 1) % rate == 0) {
        body(Row(RowsOf(*cache_).CompressedRows(sequence_.pages(), layer), p / rate), mark(store));
        if (rate == 4)
          body(Row(RowsOf(*cache_).IndexRows(sequence_.pages(), layer), p / 4), mark(store + 1));
      }
      // What the next entry still needs of the rings: the unfinished group, with overlap also the
      // group before it.
      const int64_t needed = next / rate * rate - (rate == 4 ? 4 : 0);
      if (p < needed) continue;
      const int64_t channels = rate == 4 ? 4 : 2;
      body(reinterpret_cast<uint32_t*>(
               RowsOf(*cache_).AttentionRing(sequence_.pages(), layer).slot(p, channels)),
           mark(store + 2));
      if (rate == 4) {
        body(reinterpret_cast<uint32_t*>(
                 RowsOf(*cache_).IndexerRing(sequence_.pages(), layer).slot(p, channels)),
             mark(store + 3));
      }
    }
  }
  static uint32_t* Row(const PagedRows& rows, int64_t i) {
    EXPECT_GE(rows.table[i / rows.rows_per_page], 0) << "row " << i << " has no page";
    return reinterpret_cast<uint32_t*>(rows.row(i));
  }

  KvCache* cache_;
  Sequence sequence_;
  std::vector<uint32_t> hashes_;
};

TEST(KvCache, AThousandRandomLivesLeaveNoTraceAndNeverMixRows) {  // MDL-08
  const auto cache =
      Make({.sequences = 5, .context_tokens = 12000, .batch_tokens = 300, .snapshots = 6});
  const FreeCounts start(*cache);
  std::mt19937 random(7);
  struct Kept {
    Snapshot snapshot;
    std::vector<uint32_t> hashes;
  };
  {
    std::list<MarkedSequence> alive;
    std::list<Kept> kept;
    int grown = 0, snapshots = 0, continued = 0, forked = 0, refused = 0;
    const auto pick = [&](auto& list) {
      return std::next(list.begin(), static_cast<int64_t>(random() % list.size()));
    };
    for (int round = 0; round < 3000; ++round) {
      const uint32_t what = random() % 100;
      if (what < 5) {
        auto sequence = cache->NewSequence();
        ASSERT_EQ(sequence.has_value(), alive.size() < 5);
        if (sequence) alive.emplace_back(*cache, *std::move(sequence), std::vector<uint32_t>());
      } else if (what < 85 && !alive.empty()) {
        MarkedSequence& one = *pick(alive);
        // Often exactly to the next boundary, where snapshots are possible.
        const int64_t to_boundary = 256 - one.sequence().position() % 256;
        const int64_t count =
            random() % 2 == 0 ? to_boundary : 1 + static_cast<int64_t>(random() % 300);
        if (cache->pages().Reserve(one.sequence(), count)) {
          one.Advance(count, random);
          ++grown;
        } else {
          ++refused;
        }
        if (random() % 8 == 0) one.ExpectIntact();
        if (one.sequence().position() % 256 == 0 && random() % 2 == 0) {
          auto snapshot = cache->TakeSnapshot(one.sequence());
          ASSERT_EQ(snapshot.has_value(), kept.size() < 6 && one.sequence().position() > 0);
          if (snapshot) {
            kept.push_back({*std::move(snapshot), one.hashes()});
            ++snapshots;
          }
        }
      } else if (what < 90 && !kept.empty()) {
        const auto from = pick(kept);
        auto sequence = cache->Continue(from->snapshot);
        ASSERT_EQ(sequence.has_value(), alive.size() < 5);
        if (sequence) {
          alive.emplace_back(*cache, *std::move(sequence), from->hashes);
          alive.back().ExpectIntact();
          ++continued;
        }
      } else if (what < 92 && !alive.empty()) {
        MarkedSequence& one = *pick(alive);
        std::vector<PageCopy> copies;
        auto fork = cache->pages().Fork(one.sequence(), copies);
        ASSERT_EQ(copies.empty(), !fork.has_value());
        for (const PageCopy& copy : copies) ASSERT_TRUE(cache->memory().Copy(copy));
        if (fork) {
          alive.emplace_back(*cache, *std::move(fork), one.hashes());
          ++forked;
        }
      } else if (what < 96 && !alive.empty()) {
        const auto one = pick(alive);
        one->ExpectIntact();
        alive.erase(one);
      } else if (!kept.empty()) {
        kept.erase(pick(kept));
      }
      if (HasFatalFailure()) return;
    }
    for (const MarkedSequence& one : alive) one.ExpectIntact();
    EXPECT_GT(grown, 500);
    EXPECT_GT(snapshots, 50);
    EXPECT_GT(continued, 30);
    EXPECT_GT(forked, 10);
    EXPECT_GT(refused, 10);
  }
  EXPECT_EQ(FreeCounts(*cache), start);
}

TEST(KvCacheDeathTest, AdvancingBeyondTheReservedPagesAborts) {
  const auto cache = Make({.sequences = 1, .context_tokens = 1024});
  Sequence sequence = *cache->NewSequence();
  ASSERT_TRUE(cache->pages().Reserve(sequence, 64));
  EXPECT_DEATH(cache->pages().Advance(sequence, 65), "65");
}

}  // namespace
}  // namespace halfbyte
