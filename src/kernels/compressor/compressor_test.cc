#include "kernels/compressor/compressor.h"

#include <gtest/gtest.h>

#include <memory>

#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

constexpr float kStale = 1e6f;  // what rings hold before: a row read by mistake shows

struct Case {
  int64_t rate;
  bool overlap;
  int64_t dim;
  int64_t rope_dim;
};

// A compressor with random parameters and the products of one sequence's tokens from position 0.
struct Instance {
  Compressor compressor;
  std::vector<float> bias, norm;
  std::vector<double> frequencies;
  std::vector<float> kv, score;
  int64_t tokens;

  Instance(const Case& c, int64_t token_count, uint32_t seed)
      : frequencies(RopeFrequencies(160000, c.rope_dim, Yarn{})), tokens(token_count) {
    compressor = {.rate = c.rate, .overlap = c.overlap, .dim = c.dim};
    const int64_t channels = compressor.channels();
    bias = RandomNormal(c.rate * channels, seed, 2);
    norm = RandomNormal(c.dim, seed + 1);
    kv = RandomNormal(tokens * channels, seed + 2);
    score = RandomNormal(tokens * channels, seed + 3, 2);
    compressor.position_bias = bias.data();
    compressor.norm = norm.data();
    compressor.rope_frequencies = frequencies;
  }
  Instance(const Instance&) = delete;

  int64_t entries() const { return tokens / compressor.rate; }
};

// Where one sequence's state and entries live during a test.
struct Store {
  std::vector<float> ring;
  ShuffledPages pages;
  CompressorSequence sequence;

  Store(const Instance& instance, int64_t ring_rows, int64_t row_bytes)
      : ring(static_cast<size_t>(ring_rows * 2 * instance.compressor.channels()), kStale),
        pages(instance.entries() + 2, 3, row_bytes, 99) {
    sequence.ring = {ring.data(), ring_rows};
    sequence.entries = pages.view;
  }
};

// Feeds the tokens in chunks and returns the stored bytes of all entries, and the ring if wanted.
template <class Row>
std::vector<std::byte> Feed(const Instance& instance, const Row& row,
                            const std::vector<int64_t>& chunks, int64_t extra_ring_rows = 0,
                            Rounding rounding = Rounding::kNone,
                            std::vector<float>* ring = nullptr) {
  static ThreadPool pool(3);
  Store store(instance, instance.compressor.group_rows() + extra_ring_rows, row.bytes());
  const int64_t channels = instance.compressor.channels();
  int64_t position = 0;
  for (const int64_t count : chunks) {
    static_cast<TokenSpan&>(store.sequence) = {.first = 0, .count = count, .position = position};
    Compress(Context(pool), instance.compressor, {&store.sequence, 1},
             {instance.kv.data() + position * channels, count, channels},
             {instance.score.data() + position * channels, count, channels}, rounding, row);
    position += count;
  }
  EXPECT_EQ(position, instance.tokens);
  std::vector<std::byte> stored;
  for (int64_t e = 0; e < instance.entries(); ++e) {
    stored.insert(stored.end(), store.pages.view.row(e), store.pages.view.row(e) + row.bytes());
  }
  // The entry after the last complete group has not been touched.
  EXPECT_EQ(*store.pages.view.row(instance.entries()), std::byte{0xff});
  if (ring != nullptr) *ring = store.ring;
  return stored;
}

std::vector<float> AsFloats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// §2.5 in double, up to pooling.
std::vector<double> ReferencePool(const Instance& instance, int64_t entry) {
  const Compressor& c = instance.compressor;
  const int64_t channels = c.channels();
  std::vector<double> pooled(static_cast<size_t>(c.dim));
  for (int64_t d = 0; d < c.dim; ++d) {
    double sum = 0, weighted = 0;
    const auto take = [&](int64_t token, int64_t channel) {
      const auto at = static_cast<size_t>(token * channels + channel);
      const double bias = instance.bias[static_cast<size_t>(token % c.rate * channels + channel)];
      const double weight = std::exp(double{instance.score[at]} + bias);
      sum += weight;
      weighted += weight * double{instance.kv[at]};
    };
    for (int64_t i = 0; i < c.rate; ++i) {
      if (c.overlap && entry > 0) take((entry - 1) * c.rate + i, d);
      take(entry * c.rate + i, c.overlap ? c.dim + d : d);
    }
    pooled[static_cast<size_t>(d)] = weighted / sum;
  }
  return pooled;
}

// Norm and rotation at the group's first position.
std::vector<double> ReferenceFinish(const Instance& instance, int64_t entry,
                                    std::vector<double> x) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= factor * double{instance.norm[i]};
  const size_t pairs = instance.frequencies.size(), first = x.size() - 2 * pairs;
  for (size_t i = 0; i < pairs; ++i) {
    const double angle =
        static_cast<double>(entry * instance.compressor.rate) * instance.frequencies[i];
    const double a = x[first + 2 * i], b = x[first + 2 * i + 1];
    x[first + 2 * i] = a * std::cos(angle) - b * std::sin(angle);
    x[first + 2 * i + 1] = a * std::sin(angle) + b * std::cos(angle);
  }
  return x;
}

constexpr Case kCases[] = {{4, true, 24, 8}, {128, false, 20, 4}, {4, true, 6, 6},
                           {3, true, 17, 4}, {8, false, 33, 2},   {1, false, 4, 2}};

TEST(Compressor, EntriesEqualTheDefinition) {  // R118
  for (const Case& c : kCases) {
    const Instance instance(c, 3 * c.rate + 1, 1);
    const KvRow row{KvFormat::kF32, c.dim, c.rope_dim};
    const std::vector<float> entries = AsFloats(Feed(instance, row, {instance.tokens}));
    for (int64_t e = 0; e < instance.entries(); ++e) {
      const std::vector<double> expected = ReferenceFinish(instance, e, ReferencePool(instance, e));
      // Weights of exp(scores up to about 16) and sums of `group_rows`, against kv of up to five;
      // norm and rotation keep the error of a row relative to the row.
      double largest = 0, norm = 0;
      for (const double v : expected) largest = std::max(largest, std::abs(v));
      for (const float v : instance.norm) norm = std::max(norm, std::abs(double{v}));
      double smallest = 0;
      for (const double v : ReferencePool(instance, e)) smallest += v * v;
      smallest = std::sqrt(smallest / static_cast<double>(c.dim));  // what the norm divides by
      const double units = static_cast<double>(instance.compressor.group_rows()) + 60;
      const double bound =
          kF32Unit * (units * 5 * norm / smallest + (static_cast<double>(c.dim) + 12) * largest);
      EXPECT_TRUE(Near(
          std::span(entries).subspan(static_cast<size_t>(e * c.dim), static_cast<size_t>(c.dim)),
          expected, [&](size_t) { return bound; }))
          << "entry " << e << " at rate " << c.rate << ", bound " << bound;
    }
  }
}

TEST(Compressor, HasTheNumbersOfTheFaultCaseForEveryChunking) {  // MDL-03
  const std::vector<float> zeros(8 * 2);
  std::vector<float> kv;
  for (int t = 0; t < 8; ++t) {
    kv.push_back(static_cast<float>(t + 1));
    kv.push_back(static_cast<float>(10 * (t + 1)));
  }
  const float norm = 1;
  const Compressor compressor{
      .rate = 4, .overlap = true, .dim = 1, .position_bias = zeros.data(), .norm = &norm};
  const KvRow row{KvFormat::kF32, 1, 0};
  ThreadPool pool(1);
  for (const std::vector<int64_t>& chunks : std::vector<std::vector<int64_t>>{
           {8}, {4, 1, 1, 1, 1}, {5, 1, 1, 1}, {3, 3, 2}, {1, 1, 1, 1, 1, 1, 1, 1}}) {
    std::vector<float> ring(8 * 4, kStale);
    ShuffledPages pages(2, 1, row.bytes(), 1);
    CompressorSequence sequence;
    sequence.ring = {ring.data(), 8};
    sequence.entries = pages.view;
    int64_t position = 0;
    for (const int64_t count : chunks) {
      static_cast<TokenSpan&>(sequence) = {.first = 0, .count = count, .position = position};
      Compress(Context(pool), compressor, {&sequence, 1}, {kv.data() + 2 * position, count, 2},
               {zeros.data(), count, 2}, Rounding::kNone, row);
      position += count;
    }
    float first = 0, second = 0;  // the rings still hold both groups
    PoolEntryReference(compressor, sequence.ring, 0, &first);
    PoolEntryReference(compressor, sequence.ring, 1, &second);
    EXPECT_NEAR(first, 25, 25e-6);
    EXPECT_NEAR(second, 33.75, 33.75e-6);
  }
}

TEST(Compressor, EveryChunkingGivesTheSameBits) {
  std::mt19937 random(5);
  for (const Case& c : {Case{4, true, 24, 8}, Case{128, false, 20, 4}}) {
    for (int round = 0; round < 60; ++round) {
      const int64_t tokens = round == 0 ? 300 : 1 + static_cast<int64_t>(random() % 300);
      const Instance instance(c, tokens, static_cast<uint32_t>(100 + round));
      std::vector<int64_t> cuts;
      const uint32_t largest = 1 + static_cast<uint32_t>(random() % 150);
      for (int64_t left = tokens; left > 0; left -= cuts.back()) {
        cuts.push_back(std::min<int64_t>(left, 1 + random() % largest));
      }
      const KvRow kv{KvFormat::kF32, c.dim, c.rope_dim};
      const std::vector<int64_t> ones(static_cast<size_t>(tokens), 1);
      std::vector<float> ring, other_ring;
      const std::vector<std::byte> whole =
          Feed(instance, kv, {tokens}, round % 5, Rounding::kNone, &ring);
      for (const std::vector<int64_t>& chunks : {cuts, ones}) {
        EXPECT_EQ(Feed(instance, kv, chunks, round % 5, Rounding::kNone, &other_ring), whole)
            << tokens << " tokens at rate " << c.rate;
        EXPECT_TRUE(SameBits(other_ring, ring)) << tokens << " tokens at rate " << c.rate;
      }
    }
  }
}

TEST(Compressor, ALargerRingChangesNothing) {  // rows for rejected drafts
  for (const Case& c : {Case{4, true, 12, 4}, Case{128, false, 12, 4}}) {
    const Instance instance(c, 300, 7);
    const KvRow row{KvFormat::kF32, c.dim, c.rope_dim};
    const std::vector<std::byte> exact = Feed(instance, row, {300});
    for (const int64_t extra : {1, 3, 8, 200}) {
      EXPECT_EQ(Feed(instance, row, {100, 1, 1, 198}, extra), exact) << extra;
    }
  }
}

TEST(Compressor, StoredEntriesStayAsTheyAre) {  // server.md §1.5: a replay
  for (const Case& c : {Case{4, true, 12, 4}, Case{128, false, 12, 4}}) {
    const Instance instance(c, 520, 7);
    const KvRow row{KvFormat::kF32, c.dim, c.rope_dim};
    const int64_t channels = instance.compressor.channels();
    const std::vector<std::byte> exact = Feed(instance, row, {520});
    // From 201 on over the entries of 256 tokens: the rings before them are stale.
    ThreadPool pool(1);
    Store store(instance, instance.compressor.group_rows(), row.bytes());
    store.sequence.first_entry = 256 / c.rate;
    static_cast<TokenSpan&>(store.sequence) = {.first = 0, .count = 319, .position = 201};
    Compress(Context(pool), instance.compressor, {&store.sequence, 1},
             {instance.kv.data() + 201 * channels, 319, channels},
             {instance.score.data() + 201 * channels, 319, channels}, Rounding::kNone, row);
    for (int64_t e = 0; e < instance.entries(); ++e) {
      const auto stored = std::span(store.pages.view.row(e), static_cast<size_t>(row.bytes()));
      if (e < store.sequence.first_entry) {
        EXPECT_TRUE(std::ranges::all_of(stored, [](std::byte b) { return b == std::byte{0xff}; }));
      } else {
        EXPECT_TRUE(std::ranges::equal(
            stored, std::span(exact).subspan(static_cast<size_t>(e * row.bytes()), stored.size())));
      }
    }
  }
}

TEST(Compressor, CompletesAsManyEntriesAsTheCasesSay) {  // MDL-05; Feed checks that no more appear
  const std::pair<int64_t, int64_t> rate4[] = {{1, 0},    {2, 0},    {3, 0},   {4, 1},
                                               {5, 1},    {7, 1},    {8, 2},   {127, 31},
                                               {128, 32}, {129, 32}, {257, 64}};
  for (const auto& [tokens, count] : rate4) {
    const Instance instance({4, true, 8, 4}, tokens, 3);
    EXPECT_EQ(instance.entries(), count);
    for (const float value : AsFloats(Feed(instance, KvRow{KvFormat::kF32, 8, 4}, {tokens}))) {
      EXPECT_TRUE(std::isfinite(value) && std::abs(value) < 100) << tokens;
    }
  }
  for (const auto& [tokens, count] :
       {std::pair<int64_t, int64_t>{127, 0}, {128, 1}, {129, 1}, {255, 1}, {256, 2}}) {
    const Instance instance({128, false, 8, 4}, tokens, 3);
    EXPECT_EQ(instance.entries(), count);
    for (const float value : AsFloats(Feed(instance, KvRow{KvFormat::kF32, 8, 4}, {tokens}))) {
      EXPECT_TRUE(std::isfinite(value) && std::abs(value) < 100) << tokens;
    }
  }
}

TEST(Compressor, TheFirstEntryIgnoresTheMissingGroup) {  // R118
  // Stale rows of a former sequence in the ring must have weight 0, not a small one.
  const Instance instance({4, true, 8, 4}, 4, 9);
  const KvRow row{KvFormat::kF32, 8, 4};
  const std::vector<float> entry = AsFloats(Feed(instance, row, {4}));
  ThreadPool pool(1);
  Store store(instance, 8, row.bytes());
  std::fill(store.ring.begin(), store.ring.end(), NAN);
  static_cast<TokenSpan&>(store.sequence) = {.first = 0, .count = 4, .position = 0};
  Compress(Context(pool), instance.compressor, {&store.sequence, 1}, {instance.kv.data(), 4, 16},
           {instance.score.data(), 4, 16}, Rounding::kNone, row);
  EXPECT_EQ(std::memcmp(store.pages.view.row(0), entry.data(), 32), 0);
}

TEST(Compressor, BiasBelongsToThePositionInTheGroupAndToScoresOnly) {  // R118
  // One bias row is huge: its token alone makes the entry, wherever chunks begin.
  const int64_t dim = 4;
  Instance instance({4, false, dim, 2}, 12, 13);
  std::fill(instance.bias.begin(), instance.bias.end(), 0.0f);
  std::fill_n(instance.bias.begin() + 2 * dim, dim, 1000.0f);  // third token of each group
  ThreadPool pool(1);
  Store store(instance, 4, dim * 4);
  const KvRow row{KvFormat::kF32, dim, 2};
  int64_t position = 0;
  for (const int64_t count : {3, 2, 5, 2}) {
    static_cast<TokenSpan&>(store.sequence) = {.first = 0, .count = count, .position = position};
    Compress(Context(pool), instance.compressor, {&store.sequence, 1},
             {instance.kv.data() + position * dim, count, dim},
             {instance.score.data() + position * dim, count, dim}, Rounding::kNone, row);
    position += count;
    if (position % 4 != 0) continue;
    std::vector<float> pooled(static_cast<size_t>(dim));
    PoolEntryReference(instance.compressor, store.sequence.ring, position / 4 - 1, pooled.data());
    EXPECT_TRUE(SameBits(
        pooled, std::span(instance.kv).subspan(static_cast<size_t>((position - 2) * dim), dim)));
  }
  EXPECT_EQ(position, 12);
}

TEST(Compressor, EntriesAreRotatedAtTheFirstPositionOfTheirGroup) {  // MDL-02 entry-positions
  for (const auto& [entry, rate, position] :
       {std::tuple<int64_t, int64_t, int64_t>{3, 4, 12}, {2, 128, 256}, {0, 4, 0}}) {
    Instance instance({rate, false, 4, 4}, (entry + 1) * rate, 17);
    for (size_t i = 0; i < instance.kv.size(); ++i) instance.kv[i] = i % 2 == 0 ? 1.0f : 0.0f;
    instance.norm.assign(4, 1.0f);
    const std::vector<float> entries =
        AsFloats(Feed(instance, KvRow{KvFormat::kF32, 4, 4}, {instance.tokens}));
    // Pooled (1, 0, 1, 0), norm sqrt(2): pair i becomes sqrt(2) times its angle's cosine and sine.
    for (size_t i = 0; i < 2; ++i) {
      const double angle = static_cast<double>(position) * instance.frequencies[i];
      const size_t at = static_cast<size_t>(entry * 4) + 2 * i;
      EXPECT_NEAR(entries[at], std::sqrt(2.0) * std::cos(angle), 2e-6);
      EXPECT_NEAR(entries[at + 1], std::sqrt(2.0) * std::sin(angle), 2e-6);
    }
  }
}

// The same steps by the plain loops and the kernels that have their own tests, bit for bit.
void ExpectSteps(const Case& c, const KvRow& row, Rounding rounding) {
  const Instance instance(c, 2 * c.rate, 19);
  const std::vector<std::byte> stored = Feed(instance, row, {instance.tokens}, 0, rounding);
  ThreadPool pool(1);
  Store store(instance, 2 * c.rate, row.bytes());
  static_cast<TokenSpan&>(store.sequence) = {.first = 0, .count = instance.tokens, .position = 0};
  const int64_t channels = instance.compressor.channels();
  Compress(Context(pool), instance.compressor, {&store.sequence, 1},
           {instance.kv.data(), instance.tokens, channels},
           {instance.score.data(), instance.tokens, channels}, Rounding::kNone, row);
  for (int64_t e = 0; e < 2; ++e) {
    std::vector<float> x(static_cast<size_t>(c.dim));
    PoolEntryReference(instance.compressor, store.sequence.ring, e, x.data());
    for (float& value : x) value = Round(rounding, value);
    const MatrixView<float> view{x.data(), 1, c.dim};
    RmsNorm(Context(pool), view, instance.norm.data(), 1e-6f, rounding, view);
    RopeAngles angles;
    const int64_t first = e * c.rate;
    angles.Set(instance.frequencies, {&first, 1});
    ApplyRope(Context(pool), angles, 1, false, rounding, view);
    std::vector<std::byte> expected(static_cast<size_t>(row.bytes()));
    EncodeKvRow(row, x.data(), expected.data());
    // Up to the padding of a row, which nobody writes.
    const bool fp8 = row.format == KvFormat::kFp8;
    const int64_t bytes = fp8 ? row.fp8_dim() + 2 * row.rope_dim + row.scale_count() : row.bytes();
    EXPECT_EQ(
        std::memcmp(stored.data() + e * row.bytes(), expected.data(), static_cast<size_t>(bytes)),
        0)
        << e;
  }
}

TEST(Compressor, RoundsAfterPoolingAfterTheNormAndAfterTheRotation) {
  for (const Case& c : {Case{4, true, 128, 32}, Case{128, false, 128, 32}}) {
    ExpectSteps(c, KvRow{KvFormat::kFp8, c.dim, c.rope_dim}, Rounding::kBf16);
  }
}

TEST(Compressor, EqualsThePlainLoopsBitForBit) {
  for (const Case& c : kCases) {
    ExpectSteps(c, KvRow{KvFormat::kF32, c.dim, c.rope_dim}, Rounding::kNone);
  }
}

TEST(Compressor, StoresIndexerKeysInTheirFormat) {
  const Instance instance({4, true, 32, 8}, 20, 23);
  const std::vector<std::byte> exact =
      Feed(instance, IndexRow{IndexFormat::kF32, 32}, {20}, 0, Rounding::kBf16);
  const IndexRow packed{IndexFormat::kMxfp4, 32};
  const std::vector<std::byte> stored = Feed(instance, packed, {3, 17}, 0, Rounding::kBf16);
  const std::vector<float> keys = AsFloats(exact);
  for (int64_t e = 0; e < 5; ++e) {
    std::vector<std::byte> expected(static_cast<size_t>(packed.bytes()));
    EncodeIndexRow(packed, keys.data() + e * 32, expected.data());
    EXPECT_EQ(std::memcmp(stored.data() + e * packed.bytes(), expected.data(), 17), 0) << e;
  }
}

TEST(Compressor, SequencesOfARaggedBatchDoNotTouchEachOther) {
  const Case c{4, true, 16, 4};
  const KvRow row{KvFormat::kF32, 16, 4};
  const Instance a(c, 13, 31), b(c, 4, 32), d(c, 30, 33);
  std::vector<float> kv, score;
  std::vector<std::unique_ptr<Store>> stores;
  std::vector<CompressorSequence> sequences;
  for (const Instance* instance : {&a, &b, &d}) {
    stores.push_back(std::make_unique<Store>(*instance, 8, row.bytes()));
    static_cast<TokenSpan&>(stores.back()->sequence) = {
        .first = static_cast<int64_t>(kv.size()) / 32, .count = instance->tokens, .position = 0};
    sequences.push_back(stores.back()->sequence);
    kv.insert(kv.end(), instance->kv.begin(), instance->kv.end());
    score.insert(score.end(), instance->score.begin(), instance->score.end());
  }
  // One set of parameters for the batch: those of `a`.
  const auto alone = [&](const Instance& instance) {
    Instance own(c, instance.tokens, 31);
    own.kv = instance.kv;
    own.score = instance.score;
    return Feed(own, row, {own.tokens});
  };
  ThreadPool pool(3);
  Compress(Context(pool), a.compressor, sequences, {kv.data(), 47, 32}, {score.data(), 47, 32},
           Rounding::kNone, row);
  const Instance* instances[] = {&a, &b, &d};
  for (size_t s = 0; s < 3; ++s) {
    const std::vector<std::byte> expected = alone(*instances[s]);
    for (int64_t e = 0; e < instances[s]->entries(); ++e) {
      EXPECT_EQ(std::memcmp(stores[s]->pages.view.row(e), expected.data() + e * 64, 64), 0)
          << "sequence " << s << ", entry " << e;
    }
  }
}

}  // namespace
}  // namespace halfbyte
