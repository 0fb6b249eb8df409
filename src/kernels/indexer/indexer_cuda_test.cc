#include "kernels/indexer/indexer_cuda.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "device/cuda/gpu_test.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/indexer/index_score_cuda.h"
#include "kernels/indexer/indexer.h"
#include "kernels/indexer/ordered_score.h"
#include "kernels/rope/rope.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

constexpr int32_t kNobody = 1 << 30;  // the sequence of padding: must not be looked up
constexpr uint32_t kUnwritten = 0xffffffffu;

struct Shape {
  int64_t heads, dim, pairs;
};
constexpr Shape kFlash{64, 128, 32}, kBundled{8, 64, 16};

struct Piece {
  int64_t position, count;
};

// A ragged batch on both devices: sequences one after the other, padding behind each of them.
struct Batch {
  Shape shape;
  int64_t top_k, rate = 4, rows_per_page = 16;
  std::vector<Piece> pieces;
  std::vector<float> queries, weights;       // of all rows, as projected (queries: bf16 numbers)
  std::vector<int32_t> positions, owners;    // of all rows
  std::vector<std::vector<std::byte>> keys;  // of sequences: rows of EncodeIndexRow
  std::vector<double> frequencies;
  int64_t most_entries = 0;

  Batch(const Shape& dimensions, int64_t keep, const std::vector<Piece>& sequences, int64_t padding,
        uint32_t seed)
      : shape(dimensions), top_k(keep), pieces(sequences) {
    frequencies = RopeFrequencies(160000, 2 * shape.pairs, std::nullopt);
    for (size_t s = 0; s < pieces.size(); ++s) {
      for (int64_t i = 0; i < pieces[s].count + padding; ++i) {
        const bool real = i < pieces[s].count;
        positions.push_back(real ? static_cast<int32_t>(pieces[s].position + i) : -1);
        owners.push_back(real ? static_cast<int32_t>(s) : kNobody);
      }
      const int64_t entries = (pieces[s].position + pieces[s].count) / rate;
      most_entries = std::max(most_entries, entries);
      keys.emplace_back(static_cast<size_t>(entries * row().bytes()));
      const std::vector<float> values =
          RandomNormal(std::min<int64_t>(entries, 4096) * shape.dim,
                       seed + 7 * static_cast<uint32_t>(s), 1, Rounding::kBf16);
      for (int64_t e = 0; e < entries; ++e) {
        SetKey(s, e, values.data() + e % 4096 * shape.dim);
      }
    }
    queries = RandomNormal(rows() * shape.heads * shape.dim, seed + 1, 1, Rounding::kBf16);
    weights = RandomNormal(rows() * shape.heads, seed + 2);  // of both signs
  }

  int64_t rows() const { return std::ssize(positions); }
  IndexRow row() const { return {IndexFormat::kMxfp4, shape.dim}; }
  float factor() const {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.dim * shape.heads)));
  }
  int64_t VisibleTo(int64_t r) const { return (positions[static_cast<size_t>(r)] + 1) / rate; }
  float* query(int64_t r) { return queries.data() + r * shape.heads * shape.dim; }
  void SetKey(size_t sequence, int64_t entry, const float* key) {
    EncodeIndexRow(row(), key, keys[sequence].data() + entry * row().bytes());
  }
  uint8_t& KeyByte(size_t sequence, int64_t entry, int64_t byte) {
    return reinterpret_cast<uint8_t&>(
        keys[sequence][static_cast<size_t>(entry * row().bytes() + byte)]);
  }
};

// What the CPU's kernels make of it.
struct Expected {
  std::vector<int32_t> selected, counts;
  std::vector<uint32_t> scores;  // [rows, most_entries] of visible entries

  explicit Expected(const Batch& b, bool with_scores = true) {
    const int64_t rows = b.rows(), width = b.shape.heads * b.shape.dim;
    ThreadPool pool(4);
    const Context context(pool);
    std::vector<float> q = b.queries, w = b.weights;
    std::vector<int64_t> positions(b.positions.begin(), b.positions.end());
    for (int64_t& position : positions) position = std::max<int64_t>(position, 0);
    RopeAngles angles;
    angles.Set(b.frequencies, positions);
    ApplyRope(context, angles, b.shape.heads, false, Rounding::kBf16, {q.data(), rows, width});
    RoundIndexQueries(context, b.row(), {q.data(), rows, width});
    ScaleRows(context, b.factor(), Rounding::kNone, {w.data(), rows, b.shape.heads});
    std::vector<int32_t> table(static_cast<size_t>(b.most_entries + 1));
    std::iota(table.begin(), table.end(), 0);
    std::vector<IndexerSequence> sequences;
    for (size_t s = 0, r = 0; s < b.pieces.size(); ++s) {
      while (b.owners[r] != static_cast<int32_t>(s)) ++r;
      IndexerSequence& sequence = sequences.emplace_back();
      static_cast<TokenSpan&>(sequence) = {.first = static_cast<int64_t>(r),
                                           .count = b.pieces[s].count,
                                           .position = b.pieces[s].position};
      sequence.keys = {const_cast<std::byte*>(b.keys[s].data()), table.data(), 1, b.row().bytes()};
    }
    const Indexer indexer{.heads = b.shape.heads, .rate = b.rate, .top_k = b.top_k, .row = b.row()};
    selected.assign(static_cast<size_t>(rows * b.top_k), -1);
    counts.assign(static_cast<size_t>(rows), 0);
    SelectEntries(context, indexer, sequences, {q.data(), rows, width},
                  {w.data(), rows, b.shape.heads}, {selected.data(), rows, b.top_k}, counts.data());
    if (!with_scores) return;
    const int64_t columns = (b.most_entries + kScoreTile - 1) / kScoreTile * kScoreTile;
    std::vector<float> all(static_cast<size_t>(rows * columns));
    IndexScores(context, indexer, sequences, {q.data(), rows, width},
                {w.data(), rows, b.shape.heads}, {all.data(), rows, columns});
    scores.assign(static_cast<size_t>(rows * b.most_entries), kUnwritten);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t e = 0; e < b.VisibleTo(r); ++e) {
        scores[static_cast<size_t>(r * b.most_entries + e)] =
            OrderedScore(all[static_cast<size_t>(r * columns + e)]);
      }
    }
  }
};

// The batch in device memory, its keys in pages at random places.
class OnDevice {
 public:
  explicit OnDevice(const Batch& b)
      : positions_(b.positions),
        owners_(b.owners),
        weights_(b.weights),
        queries_(Bf16Of(b.queries)),
        cos_(1),
        sin_(1),
        pool_(1),
        blocks_(1),
        first_positions_(b.pieces.size()) {
    RopeAngles angles;
    std::vector<int64_t> all(static_cast<size_t>(*std::ranges::max_element(b.positions) + 1));
    std::iota(all.begin(), all.end(), 0);
    angles.Set(b.frequencies, all);
    cos_ = DeviceArray<float>(angles.cos);
    sin_ = DeviceArray<float>(angles.sin);
    LayKeys(b);
    Fill(b);
  }

  SelectArguments arguments;

 private:
  static std::vector<Bf16> Bf16Of(const std::vector<float>& values) {
    std::vector<Bf16> bits;
    for (const float value : values) bits.push_back(ToBf16(value));
    return bits;
  }

  void LayKeys(const Batch& b) {
    const int64_t stride = b.most_entries / b.rows_per_page + 3;
    const auto sequences = std::ssize(b.pieces);
    std::vector<int32_t> ids(static_cast<size_t>(2 * sequences * stride));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(5));
    std::vector<int32_t> blocks(static_cast<size_t>(sequences * stride), kNobody);
    DeviceRows rows{
        .rows_per_page = b.rows_per_page, .main_bytes = b.shape.dim / 2, .scale_bytes = 4};
    std::vector<std::byte> pool(ids.size() * static_cast<size_t>(rows.page_bytes()),
                                std::byte{0xff});
    rows.pool = pool.data();
    size_t next = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      int32_t* table = blocks.data() + s * stride;
      const std::vector<std::byte>& keys = b.keys[static_cast<size_t>(s)];
      const int64_t entries = std::ssize(keys) / b.row().bytes();
      for (int64_t e = 0; e < entries; ++e) {
        if (e % b.rows_per_page == 0) table[e / b.rows_per_page] = ids[next++];
        const std::byte* key = keys.data() + e * b.row().bytes();
        std::memcpy(rows.main(table, e), key, static_cast<size_t>(rows.main_bytes));
        std::memcpy(rows.scales(table, e), key + rows.main_bytes,
                    static_cast<size_t>(b.row().scale_count()));
      }
    }
    pool_ = DeviceArray<std::byte>(pool);
    blocks_ = DeviceArray<int32_t>(blocks);
    rows.pool = pool_.data();
    arguments.keys = rows;
    std::vector<int32_t> first_positions;
    for (const Piece& piece : b.pieces) {
      first_positions.push_back(static_cast<int32_t>(piece.position));
    }
    first_positions_.Write(first_positions);
    arguments.sequences.count = sequences;
    arguments.sequences.first_positions = first_positions_.data();
    arguments.sequences.context_blocks = blocks_.data();
    arguments.sequences.context_stride = stride;
  }

  void Fill(const Batch& b) {
    arguments.tokens = {
        .count = b.rows(), .positions = positions_.data(), .sequences = owners_.data()};
    arguments.rope = {cos_.data(), sin_.data(), b.shape.pairs};
    arguments.queries = queries_.data();
    arguments.weights = weights_.data();
    arguments.weight_factor = b.factor();
    arguments.heads = b.shape.heads;
    arguments.dim = b.shape.dim;
    arguments.rate = b.rate;
    arguments.top_k = b.top_k;
    arguments.max_entries = b.most_entries;
  }

  DeviceArray<int32_t> positions_, owners_;
  DeviceArray<float> weights_;
  DeviceArray<Bf16> queries_;
  DeviceArray<float> cos_, sin_;
  DeviceArray<std::byte> pool_;
  DeviceArray<int32_t> blocks_, first_positions_;
};

template <class T>
void ExpectEqual(const std::vector<T>& got, const std::vector<T>& want, int64_t columns,
                 const char* what) {
  ASSERT_EQ(got.size(), want.size());
  size_t different = 0, first = 0;
  for (size_t i = got.size(); i-- > 0;) {
    if (got[i] == want[i]) continue;
    ++different;
    first = i;
  }
  EXPECT_EQ(different, 0u) << what << ": the first is row " << first / static_cast<size_t>(columns)
                           << ", column " << first % static_cast<size_t>(columns) << ": "
                           << got[first] << " for " << want[first];
}

class IndexerCuda : public GpuTest {
 protected:
  void CompareScores(const Batch& b) {
    const Expected expected(b);
    OnDevice places(b);
    const SelectArguments& a = places.arguments;
    const int64_t packed_bytes = PackedIndexQueryBytes(b.shape.heads);
    DeviceArray<std::byte> packed(static_cast<size_t>(b.rows() * packed_bytes));
    DeviceArray<uint32_t> scores(expected.scores.size());
    IndexScoreArguments scored{.tokens = a.tokens,
                               .first = 0,
                               .count = b.rows(),
                               .sequences = a.sequences,
                               .rope = a.rope,
                               .queries = a.queries,
                               .weights = a.weights,
                               .weight_factor = a.weight_factor,
                               .heads = a.heads,
                               .dim = a.dim,
                               .rate = a.rate,
                               .skip = 0,
                               .max_entries = b.most_entries,
                               .keys = a.keys,
                               .packed = packed.data(),
                               .scores = scores.data(),
                               .stride = b.most_entries};
    // As one part, and as parts of which each takes the way of few tokens.
    for (const int64_t part : {b.rows(), int64_t{50}}) {
      SCOPED_TRACE(testing::Message() << b.shape.heads << " heads x " << b.shape.dim << ", "
                                      << b.rows() << " rows, " << part << " at a time");
      packed.Poison();
      scores.Poison();
      cudaDeviceSynchronize();  // the stream does not wait for the default one
      for (int64_t first = 0; first < b.rows(); first += part) {
        scored.first = first;
        scored.count = std::min(part, b.rows() - first);
        scored.scores = scores.data() + first * scored.stride;
        ASSERT_EQ(LaunchPackIndexQueries(scored, stream.get()), cudaSuccess);
        ASSERT_EQ(LaunchIndexScores(scored, stream.get()), cudaSuccess);
      }
      ASSERT_TRUE(Finish(cudaSuccess));
      ExpectEqual(scores.Read(), expected.scores, b.most_entries, "scores");
      packed.Read();
    }
  }

  void CompareSelection(const Batch& b, int64_t max_entries = 0) {
    SCOPED_TRACE(testing::Message()
                 << b.shape.heads << " heads x " << b.shape.dim << ", top " << b.top_k << ", "
                 << b.rows() << " rows, up to " << b.most_entries << " entries");
    const Expected expected(b, false);
    OnDevice places(b);
    SelectArguments& a = places.arguments;
    if (max_entries > 0) a.max_entries = max_entries;
    DeviceArray<int32_t> selected(expected.selected.size()), counts(expected.counts.size());
    DeviceArray<std::byte> scratch(
        static_cast<size_t>(SelectScratchBytes(b.rows(), b.shape.heads, a.max_entries)));
    a.selected = selected.data();
    a.counts = counts.data();
    a.scratch = scratch.data();
    for (const bool again : {false, true}) {  // whatever the scratch holds
      if (again) cudaMemset(scratch.data(), 0, scratch.size());
      selected.Poison();
      counts.Poison();
      cudaDeviceSynchronize();  // the stream does not wait for the default one
      ASSERT_TRUE(Finish(LaunchSelect(a, stream.get())));
      ExpectEqual(counts.Read(), expected.counts, 1, "counts");
      ExpectEqual(selected.Read(), expected.selected, b.top_k, "selected");
    }
    scratch.Read();
  }
};

// Of 1, 8 and more tokens, up to and beyond the borders of tiles of 64 and 384 keys.
std::vector<Batch> Batches(const Shape& shape, int64_t top_k, uint32_t seed) {
  std::vector<Batch> batches;
  batches.emplace_back(shape, top_k, std::vector<Piece>{{1600, 1}}, 0, seed);
  batches.emplace_back(
      shape, top_k,
      std::vector<Piece>{
          {3, 1}, {254, 1}, {255, 1}, {256, 1}, {2, 1}, {1535, 1}, {1536, 1}, {1900, 1}},
      0, seed + 1);
  batches.emplace_back(shape, top_k, std::vector<Piece>{{1480, 129}}, 3, seed + 2);
  batches.emplace_back(shape, top_k,
                       std::vector<Piece>{{1000, 33}, {0, 70}, {3000, 1}, {3100, 2}, {500, 90}}, 1,
                       seed + 3);
  return batches;
}

TEST_F(IndexerCuda, ScoresAreTheCpusInEveryBit) {
  uint32_t seed = 0;
  for (const Shape& shape : {kFlash, kBundled, Shape{4, 128, 32}, Shape{3, 64, 32},
                             Shape{20, 64, 5}, Shape{33, 128, 0}}) {
    for (const Batch& batch : Batches(shape, 1, seed += 10)) CompareScores(batch);
  }
}

TEST_F(IndexerCuda, ScoresOfBlocksOfDifferentSizesAreTheCpusInEveryBit) {
  uint32_t seed = 1000;
  for (const Shape& shape : {kFlash, kBundled}) {
    for (Batch& batch : Batches(shape, 1, seed += 10)) {
      // A transformed row whose blocks differ: a sum of few of Sylvester's rows, and noise.
      const auto uneven = [&](float* x, int64_t kind) {
        std::vector<float> row(x, x + shape.dim);
        for (int64_t i = 32; i < shape.dim; ++i)
          row[static_cast<size_t>(i)] *= std::ldexp(1.0f, -static_cast<int>(kind % 6));
        Hadamard(row.data(), shape.dim);
        for (int64_t i = 0; i < shape.dim; ++i) x[i] = RoundToBf16(row[static_cast<size_t>(i)]);
      };
      for (int64_t r = 0; r < batch.rows(); ++r) {
        // Some queries with spread scales, some zero heads, some of tiny weights.
        for (int64_t h = 0; h < shape.heads; ++h) {
          float* q = batch.query(r) + h * shape.dim;
          if (r % 3 == 1 && h % 5 == 2) uneven(q, r + h);
          if (r % 4 == 2 && h % 7 == 3) std::fill_n(q, shape.dim, 0.0f);
          if (r % 11 == 5) q[h % shape.dim] *= 0x1p30f;
          float& w = batch.weights[static_cast<size_t>(r * shape.heads + h)];
          if (r % 7 == 4 && h % 3 == 0) w *= 0x1p-40f;
          if (r % 7 == 5 && h % 3 == 1) w = h % 2 == 0 ? 0.0f : -0.0f;
        }
      }
      for (size_t s = 0; s < batch.pieces.size(); ++s) {
        const int64_t entries = std::ssize(batch.keys[s]) / batch.row().bytes();
        for (int64_t e = 0; e < entries; ++e) {
          if (s % 2 == 0 && e / 64 % 3 != 0) continue;  // whole tiles of the other kind
          std::vector<float> key =
              RandomNormal(shape.dim, static_cast<uint32_t>(e), 1, Rounding::kBf16);
          if (e % 9 == 0) uneven(key.data(), e);
          if (e % 31 == 7) std::ranges::fill(key, 0.0f);
          if (e % 37 == 9) key[1] *= 0x1p20f;
          batch.SetKey(s, e, key.data());
        }
      }
      CompareScores(batch);
    }
  }
}

TEST_F(IndexerCuda, ExtremeScalesNanAndInfinityAreTheCpus) {
  for (const Shape& shape : {kFlash, kBundled}) {
    Batch batch(shape, 1, {{900, 20}, {800, 130}}, 2, 77);
    for (int64_t r = 0; r < batch.rows(); ++r) {
      const float scale[] = {1, 0x1p-120f, 0x1p118f, 0x1p60f, 0x1p-60f, 0x1p31f, 0x1p-31f, 0x1p29f};
      for (int64_t i = 0; i < shape.heads * shape.dim; ++i) {
        if (i / shape.dim % 2 == r % 2) batch.query(r)[i] *= scale[r % 8];
      }
      float* weights = batch.weights.data() + r * shape.heads;
      if (r % 13 == 3) weights[1] = NAN;
      if (r % 13 == 4) weights[2] = INFINITY;
      if (r % 13 == 5) weights[0] = 0x1p-140f;
      if (r % 13 == 6) weights[0] = -0x1p100f;
      if (r % 13 == 8) batch.query(r)[shape.dim + 3] = NAN;
      if (r % 13 == 9) batch.query(r)[5] = INFINITY;
      if (r % 13 == 10) batch.query(r)[5] = 3.3e38f;
    }
    for (int64_t e = 0; e < 220; ++e) {
      const int64_t scales = shape.dim / 2;
      const uint8_t bytes[] = {0, 1, 0xff, 0xfe, 200, 60, 96, 95, 159, 160, 127, 130};
      if (e < 100 || e >= 190) batch.KeyByte(1, e, scales + e % 2) = bytes[e % 12];
      batch.KeyByte(0, e, scales) = bytes[e % 12];
      // All codes, negative zero included.
      batch.KeyByte(0, e, e % scales) = static_cast<uint8_t>(17 * (e % 16));
      batch.KeyByte(1, e, e % scales) = static_cast<uint8_t>(e);
    }
    CompareScores(batch);
  }
}

TEST_F(IndexerCuda, SelectionsAroundTopKAreTheCpus) {
  uint32_t seed = 2000;
  for (const Shape& shape : {kFlash, kBundled}) {
    for (const int64_t top_k : {1, 64, 256, 512}) {
      const int64_t full = 4 * top_k - 1;  // sees top_k entries
      const int64_t before = std::max<int64_t>(full - 7, 0);
      CompareSelection(Batch(shape, top_k, {{full, 1}}, 0, ++seed));
      CompareSelection(Batch(shape, top_k, {{full + 4, 1}}, 1, ++seed));
      CompareSelection(Batch(shape, top_k,
                             {{before, 20}, {0, 5}, {full - 1, 1}, {full + 3, 1}, {full + 300, 2}},
                             2, ++seed));
      CompareSelection(
          Batch(shape, top_k, {{std::max<int64_t>(full - 60, 0), 129}, {2 * full, 9}}, 0, ++seed));
      // More columns than anybody sees, as in a captured graph.
      CompareSelection(Batch(shape, top_k, {{full + 90, 8}, {3, 1}}, 5, ++seed), 20000);
    }
  }
}

TEST_F(IndexerCuda, SelectionsOfLongContextsAreTheCpus) {
  CompareSelection(Batch(kFlash, 512, {{131071, 1}, {32767, 1}, {5000, 1}}, 1, 3001));
  CompareSelection(Batch(kFlash, 1024, {{16384, 140}}, 0, 3002));
  // A cluster of blocks chooses.
  CompareSelection(Batch(kBundled, 256, {{4 * 53247, 5}, {4 * 53248 + 3, 1}}, 0, 3003));
  CompareSelection(Batch(kBundled, 256, {{4 * 70001, 2}}, 0, 3004));
}

TEST_F(IndexerCuda, ManyTokensAreSelectedInTilesOfBoundedScratch) {
  const Batch batch(kBundled, 16, {{1000, 130}, {40, 60}}, 1, 3100);
  CompareSelection(batch, 262144);   // 64 tokens at a time
  CompareSelection(batch, 1 << 24);  // one
}

TEST(SelectScratch, IsBoundedAndEnoughForSmallerSizes) {
  EXPECT_LT(SelectScratchBytes(8192, 64, 262144), int64_t{100} << 20);
  for (int64_t tokens = 1; tokens <= 8192; tokens *= 2) {
    for (int64_t entries = 0; entries <= 262144; entries += 1000) {
      const int64_t bytes = SelectScratchBytes(tokens, 64, entries);
      EXPECT_GE(bytes, SelectScratchBytes(tokens, 64, entries / 2));
      EXPECT_GE(bytes, SelectScratchBytes(tokens, 64, entries / 32));
      EXPECT_GE(bytes, SelectScratchBytes(tokens / 3 + 1, 64, entries));
      EXPECT_GE(bytes, SelectScratchBytes(tokens, 8, entries));
    }
  }
}

TEST_F(IndexerCuda, TiesGoToTheLowerEntry) {
  for (const Shape& shape : {kFlash, kBundled}) {
    Batch batch(shape, 100, {{2500, 3}, {700, 150}, {3000, 1}}, 0, 4000);
    for (size_t s = 0; s < batch.pieces.size(); ++s) {
      const int64_t entries = std::ssize(batch.keys[s]) / batch.row().bytes();
      for (int64_t e = 0; e < entries; ++e) {  // of few kinds
        const std::vector<float> key =
            RandomNormal(shape.dim, static_cast<uint32_t>(e * e % 5), 1, Rounding::kBf16);
        batch.SetKey(s, e, key.data());
      }
    }
    for (int64_t r = 0; r < batch.rows(); r += 3) {  // all scores zero
      std::fill_n(batch.query(r), shape.heads * shape.dim, 0.0f);
    }
    for (int64_t r = 1; r < batch.rows(); r += 9) {  // all NaN
      batch.weights[static_cast<size_t>(r * shape.heads)] = NAN;
    }
    CompareSelection(batch);
  }
}

TEST_F(IndexerCuda, NanKeysComeLast) {
  Batch batch(kFlash, 200, {{1000, 2}, {990, 140}}, 0, 4100);
  for (size_t s = 0; s < 2; ++s) {
    for (int64_t e = 0; e < 240; ++e) {
      if (e % 3 == 1) batch.KeyByte(s, e, 64 + e % 4) = 0xff;
    }
  }
  CompareSelection(batch);
}

TEST_F(IndexerCuda, ACapturedGraphFindsOtherStepsInTheSamePlaces) {
  for (const int64_t count : {1, 70}) {
    const Batch first(kFlash, 64, {{900 - count, count}, {600, 1}}, 1, 5000);
    Batch second(kFlash, 64, {{1300 - count, count}, {40, 1}}, 1, 5001);
    second.frequencies = first.frequencies;
    const Expected wanted[] = {Expected(first, false), Expected(second, false)};
    OnDevice one(first), other(second);
    // One set of places, into which the steps are copied.
    SelectArguments a = one.arguments;
    a.max_entries = 4096;
    const auto rows = static_cast<size_t>(first.rows());
    DeviceArray<int32_t> positions(rows), owners(rows), selected(rows * 64), counts(rows);
    DeviceArray<int32_t> first_positions(2);
    DeviceArray<float> weights(first.weights);
    DeviceArray<Bf16> queries(first.queries.size());
    const auto stride = static_cast<size_t>(
        std::max(one.arguments.sequences.context_stride, other.arguments.sequences.context_stride));
    DeviceArray<int32_t> blocks(2 * stride);
    const size_t pool_bytes =
        static_cast<size_t>(4 * static_cast<int64_t>(stride) * a.keys.page_bytes());
    DeviceArray<std::byte> pool(pool_bytes);
    DeviceArray<std::byte> scratch(
        static_cast<size_t>(SelectScratchBytes(first.rows(), 64, a.max_entries)));
    a.tokens.positions = positions.data();
    a.tokens.sequences = owners.data();
    a.weights = weights.data();
    a.queries = queries.data();
    a.sequences.first_positions = first_positions.data();
    a.sequences.context_blocks = blocks.data();
    a.sequences.context_stride = static_cast<int64_t>(stride);
    a.keys.pool = pool.data();
    a.selected = selected.data();
    a.counts = counts.data();
    a.scratch = scratch.data();
    a.rope = other.arguments.rope;  // of more positions
    auto graph = CudaGraph::Capture(
        stream, [&]() -> Status { return CudaStatus(LaunchSelect(a, stream.get()), "select"); });
    ASSERT_TRUE(graph.has_value()) << graph.error().message;
    for (const int step : {0, 1, 0, 1, 1}) {
      const SelectArguments& from = step == 0 ? one.arguments : other.arguments;
      const auto copy = [&](void* to, const void* source, size_t bytes) {
        ASSERT_EQ(cudaMemcpyAsync(to, source, bytes, cudaMemcpyDeviceToDevice, stream.get()),
                  cudaSuccess);
      };
      copy(positions.data(), from.tokens.positions, rows * 4);
      copy(owners.data(), from.tokens.sequences, rows * 4);
      copy(first_positions.data(), from.sequences.first_positions, 2 * 4);
      copy(weights.data(), from.weights, rows * 64 * 4);
      copy(queries.data(), from.queries, rows * 64 * 128 * 2);
      const auto own = static_cast<size_t>(from.sequences.context_stride);
      for (size_t s = 0; s < 2; ++s) {
        copy(blocks.data() + s * stride, from.sequences.context_blocks + s * own, own * 4);
      }
      copy(pool.data(), from.keys.pool, 4 * own * static_cast<size_t>(a.keys.page_bytes()));
      ASSERT_TRUE(Finish(graph->Launch(stream)));
      SCOPED_TRACE(testing::Message() << count << " tokens, step " << step);
      ExpectEqual(counts.Read(), wanted[step].counts, 1, "counts");
      ExpectEqual(selected.Read(), wanted[step].selected, 64, "selected");
    }
  }
}

TEST_F(IndexerCuda, WhatItCannotDoIsRefused) {
  OnDevice places(Batch(kBundled, 8, {{100, 1}}, 0, 6000));
  const auto refuses = [&](const std::function<void(SelectArguments&)>& change) {
    SelectArguments a = places.arguments;
    change(a);
    return LaunchSelect(a, stream.get()) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](SelectArguments& a) { a.heads = 65; }));
  EXPECT_TRUE(refuses([](SelectArguments& a) { a.heads = 0; }));
  EXPECT_TRUE(refuses([](SelectArguments& a) { a.dim = 32; }));
  EXPECT_TRUE(refuses([](SelectArguments& a) { a.top_k = 0; }));
  EXPECT_TRUE(refuses([](SelectArguments& a) { a.rate = 0; }));
  EXPECT_TRUE(refuses([](SelectArguments& a) { a.rope.pairs = 33; }));
  SelectArguments nothing = places.arguments;
  nothing.tokens.count = 0;
  EXPECT_EQ(LaunchSelect(nothing, stream.get()), cudaSuccess);
}

}  // namespace
}  // namespace halfbyte
