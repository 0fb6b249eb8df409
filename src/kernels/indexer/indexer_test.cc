#include "kernels/indexer/indexer.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <optional>

#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

constexpr int32_t kUnwritten = -77;

struct Selection {
  std::vector<int32_t> indices, counts;
  int64_t top_k = 0;

  std::vector<int32_t> Of(int64_t token) const {
    const auto begin = indices.begin() + token * top_k;
    return {begin, begin + counts[static_cast<size_t>(token)]};
  }
};

struct Batch {
  Indexer indexer;
  std::vector<std::unique_ptr<ShuffledPages>> pages;
  std::vector<IndexerSequence> sequences;
  std::vector<float> q, weights;
  int64_t tokens = 0;

  Batch(int64_t heads, int64_t rate, int64_t top_k, IndexRow row)
      : indexer{.heads = heads, .rate = rate, .top_k = top_k, .row = row} {}
  Batch(const Batch&) = delete;

  // Queries at `count` positions; keys of all entries that the last one sees and of two more.
  void AddSequence(int64_t position, int64_t count, uint32_t seed) {
    const int64_t entries = (position + count) / indexer.rate + 2, dim = indexer.row.dim;
    pages.push_back(std::make_unique<ShuffledPages>(entries, 7, indexer.row.bytes(), seed));
    const std::vector<float> keys = RandomNormal(entries * dim, seed, 1, Rounding::kBf16);
    for (int64_t e = 0; e < entries; ++e) SetKey(pages.size() - 1, e, keys.data() + e * dim);
    IndexerSequence sequence;
    static_cast<TokenSpan&>(sequence) = {.first = tokens, .count = count, .position = position};
    sequence.keys = pages.back()->view;
    sequences.push_back(sequence);
    tokens += count;
    std::vector<float> more = RandomNormal(count * indexer.heads * dim, seed + 1);
    for (int64_t at = 0; at < std::ssize(more); at += dim) {
      RoundIndexQuery(indexer.row, more.data() + at);
    }
    q.insert(q.end(), more.begin(), more.end());
    more = RandomNormal(count * indexer.heads, seed + 2);  // of both signs
    weights.insert(weights.end(), more.begin(), more.end());
  }
  void SetKey(size_t sequence, int64_t entry, const float* key) {
    EncodeIndexRow(indexer.row, key, pages[sequence]->view.row(entry));
  }

  Selection Select(int threads = 1) const {
    ThreadPool pool(threads);
    Selection s{std::vector<int32_t>(static_cast<size_t>(tokens * indexer.top_k), kUnwritten),
                std::vector<int32_t>(static_cast<size_t>(tokens), kUnwritten), indexer.top_k};
    SelectEntries(Context(pool), indexer, sequences,
                  {q.data(), tokens, indexer.heads * indexer.row.dim},
                  {weights.data(), tokens, indexer.heads},
                  {s.indices.data(), tokens, indexer.top_k}, s.counts.data());
    return s;
  }

  int64_t MostVisible() const {
    int64_t most = 0;
    for (const IndexerSequence& s : sequences) {
      most = std::max(most, (s.position + s.count) / indexer.rate);
    }
    return most;
  }
  // Scores of all tokens, NaN where none belongs. No instruction set: the plain loops.
  std::vector<std::vector<float>> Scores(std::optional<CpuIsa> isa, int threads = 1) const {
    const int64_t columns = (MostVisible() + kScoreTile - 1) / kScoreTile * kScoreTile;
    std::vector<float> all(static_cast<size_t>(tokens * columns), NAN);
    const MatrixView<float> scores{all.data(), tokens, columns};
    const MatrixView<const float> queries{q.data(), tokens, indexer.heads * indexer.row.dim};
    const MatrixView<const float> of_heads{weights.data(), tokens, indexer.heads};
    ThreadPool pool(threads);
    if (isa) {
      IndexScores(Context(pool, *isa), indexer, sequences, queries, of_heads, scores);
    } else {
      IndexScoresReference(indexer, sequences, queries, of_heads, scores);
    }
    std::vector<std::vector<float>> visible;
    for (const IndexerSequence& s : sequences) {
      for (int64_t i = 0; i < s.count; ++i) {
        const float* row = scores.row(s.first + i);
        visible.emplace_back(row, row + (s.position + i + 1) / indexer.rate);
      }
    }
    return visible;
  }

  // §2.6 in double: score of `entry` for `token`, and how far fp32 may be from it.
  double Score(const IndexerSequence& s, int64_t token, int64_t entry, double* tolerance) const {
    const int64_t dim = indexer.row.dim;
    std::vector<float> key(static_cast<size_t>(dim));
    DecodeIndexRow(indexer.row, s.keys.row(entry), key.data());
    double score = 0, magnitude = 0;
    for (int64_t h = 0; h < indexer.heads; ++h) {
      double dot = 0, products = 0;
      for (int64_t i = 0; i < dim; ++i) {
        const double product =
            double{q[static_cast<size_t>((token * indexer.heads + h) * dim + i)]} *
            double{key[static_cast<size_t>(i)]};
        dot += product;
        products += std::abs(product);
      }
      const double w = weights[static_cast<size_t>(token * indexer.heads + h)];
      score += w * std::max(0.0, dot);
      magnitude += std::abs(w) * products;
    }
    *tolerance = static_cast<double>(dim / 16 + indexer.heads + 8) * kF32Unit * magnitude;
    return score;
  }
};

// Brute force: everything clearly above the k-th score is chosen, nothing clearly below it.
void ExpectDefinition(const Batch& batch) {
  const Selection selection = batch.Select();
  for (const IndexerSequence& s : batch.sequences) {
    for (int64_t i = 0; i < s.count; ++i) {
      const int64_t token = s.first + i, visible = (s.position + i + 1) / batch.indexer.rate;
      const int64_t keep = std::min(batch.indexer.top_k, visible);
      const std::vector<int32_t> chosen = selection.Of(token);
      ASSERT_EQ(std::ssize(chosen), keep) << "token " << token;
      EXPECT_TRUE(std::ranges::is_sorted(chosen));
      EXPECT_EQ(std::ranges::adjacent_find(chosen), chosen.end());
      for (int64_t j = keep; j < batch.indexer.top_k; ++j) {
        EXPECT_EQ(selection.indices[static_cast<size_t>(token * batch.indexer.top_k + j)], -1);
      }
      if (keep == 0) continue;
      EXPECT_LT(chosen.back(), visible);
      std::vector<double> scores, sorted;
      double tolerance = 0;
      for (int64_t e = 0; e < visible; ++e) {
        double t = 0;
        scores.push_back(batch.Score(s, token, e, &t));
        tolerance = std::max(tolerance, t);
      }
      sorted = scores;
      std::ranges::sort(sorted, std::greater<>());
      const double limit = sorted[static_cast<size_t>(keep - 1)];
      for (int64_t e = 0; e < visible; ++e) {
        const bool in = std::ranges::binary_search(chosen, static_cast<int32_t>(e));
        const double score = scores[static_cast<size_t>(e)];
        if (score > limit + 2 * tolerance) {
          EXPECT_TRUE(in) << "token " << token << " misses entry " << e;
        }
        if (score < limit - 2 * tolerance) {
          EXPECT_FALSE(in) << "token " << token << " has entry " << e;
        }
      }
    }
  }
}

TEST(Indexer, ChoosesTheBestEntriesByBruteForce) {
  for (const IndexRow& row : {IndexRow{IndexFormat::kF32, 24}, IndexRow{IndexFormat::kMxfp4, 64}}) {
    for (const int64_t heads : {1, 3, 8}) {
      for (const int64_t top_k : {1, 5, 16}) {
        Batch batch(heads, 4, top_k, row);
        batch.AddSequence(200, 9, 1);
        batch.AddSequence(0, 90, 11);
        batch.AddSequence(63, 1, 21);
        ExpectDefinition(batch);
      }
    }
  }
}

TEST(IndexScores, AreAddedInFourLanesOfHeads) {
  // Ten heads whose shares are so different that every other order gives another sum.
  const std::vector<float> shares = {0x1p24f, 1, 1, 0x1p25f, 3, 1, 1, -0x1p24f, 5, 0x1p26f};
  Batch batch(10, 1, 1, {IndexFormat::kF32, 1});
  batch.AddSequence(0, 1, 1);
  const float one = 1;
  batch.SetKey(0, 0, &one);
  batch.q.assign(10, 1);
  batch.weights = shares;
  const float lanes[4] = {((0x1p24f + 1) + 5) + 0x1p26f, 1 + 0x1p25f, 3 + 1, 1 - 0x1p24f};
  EXPECT_EQ(batch.Scores({})[0][0], (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]));
}

void ExpectReferenceBits(const Batch& batch) {
  const auto expected = batch.Scores({});
  for (const CpuIsa isa : SupportedCpuIsas()) {
    const auto scores = batch.Scores(isa, isa == CpuIsa::kAvx2 ? 1 : 3);
    for (size_t t = 0; t < expected.size(); ++t) {
      EXPECT_TRUE(SameBits(scores[t], expected[t]))
          << CpuIsaName(isa) << ", " << batch.indexer.heads << " heads x " << batch.indexer.row.dim
          << ", token " << t;
    }
  }
}

TEST(IndexScores, EqualThePlainLoopsBitForBit) {
  for (const int64_t dim : {4, 32, 64, 128, 256}) {
    for (const int64_t heads : {1, 3, 10, 64}) {
      Batch batch(heads, 4, 5, {IndexFormat::kMxfp4, dim});
      batch.AddSequence(190, 1, 1);
      batch.AddSequence(2, 9, 11);
      batch.AddSequence(126, 3, 21);
      // Blocks of very different sizes within a query and within a key, and a query of zeros.
      for (size_t i = 0; i < batch.q.size(); ++i) {
        if (i / 32 % 5 == 3) batch.q[i] *= 0x1p14f;
        if (i / 32 % 7 == 2) batch.q[i] *= 0x1p-20f;
      }
      std::fill_n(batch.q.begin(), dim, 0.0f);
      for (int64_t e = 0; e < 30; ++e) {
        std::vector<float> key = RandomNormal(dim, static_cast<uint32_t>(e), 1, Rounding::kBf16);
        key[static_cast<size_t>(e % dim)] *= std::ldexp(1.0f, static_cast<int>(e % 24));
        batch.SetKey(0, e, key.data());
      }
      ExpectReferenceBits(batch);
    }
  }
}

TEST(IndexScores, EqualThePlainLoopsInFp32) {
  Batch batch(10, 4, 5, {IndexFormat::kF32, 24});
  batch.AddSequence(190, 3, 1);
  ExpectReferenceBits(batch);
}

TEST(IndexScores, EqualThePlainLoopsAcrossPiecesOfKeysAndQueries) {
  Batch batch(2, 1, 5, {IndexFormat::kMxfp4, 4});
  batch.AddSequence(510, 67, 1);
  batch.AddSequence(1030, 1, 2);
  ExpectReferenceBits(batch);
}

TEST(IndexScores, ExtremeScalesAndNanGiveTheBitsOfThePlainLoops) {
  Batch batch(4, 1, 5, {IndexFormat::kMxfp4, 64});
  batch.AddSequence(40, 2, 1);
  const auto scale = [&](size_t head, float factor) {
    for (size_t i = 0; i < 64; ++i) batch.q[head * 64 + i] *= factor;
  };
  scale(0, 0x1p-125f);  // partly below the normal numbers
  scale(1, 0x1p120f);
  scale(2, 0x1p60f);
  const std::vector<float> tiny(64, 0x1p-126f), huge(64, 0x1p118f);
  batch.SetKey(0, 3, tiny.data());
  batch.SetKey(0, 7, huge.data());
  ExpectReferenceBits(batch);
  batch.pages[0]->Poison(11);
  batch.q[4 * 64 + 70] = INFINITY;  // second token, second head
  for (const CpuIsa isa : SupportedCpuIsas()) {
    const auto scores = batch.Scores(isa);
    for (size_t e = 0; e < 41; ++e) EXPECT_EQ(std::isnan(scores[0][e]), e == 11) << e;
    for (size_t e = 0; e < 42; ++e) EXPECT_TRUE(std::isnan(scores[1][e])) << e;
  }
}

TEST(Indexer, SeesBelowAtAndAboveTopK) {
  // Position p sees (p+1)/4 entries; top_k 8 is reached at p = 31 and exceeded from p = 35.
  for (const int64_t position : {0, 2, 3, 30, 31, 34, 35, 36}) {
    Batch batch(2, 4, 8, {IndexFormat::kF32, 8});
    batch.AddSequence(position, 1, 3);
    const int64_t visible = (position + 1) / 4;
    const Selection selection = batch.Select();
    EXPECT_EQ(selection.counts[0], std::min<int64_t>(8, visible)) << position;
    if (visible <= 8) {
      std::vector<int32_t> all(static_cast<size_t>(visible));
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(selection.Of(0), all);
    }
    ExpectDefinition(batch);
  }
}

// One head, dimension 1 and exact integers: the key is the score.
Batch& SetScores(Batch& batch, const std::vector<float>& scores) {
  batch.AddSequence(std::ssize(scores) - 1, 1, 1);
  for (size_t e = 0; e < scores.size(); ++e) {
    batch.SetKey(batch.pages.size() - 1, static_cast<int64_t>(e), &scores[e]);
  }
  batch.q.back() = 1;
  batch.weights.back() = 1;
  return batch;
}

TEST(Indexer, TiesGoToTheLowerEntry) {
  Batch batch(1, 1, 3, {IndexFormat::kF32, 1});
  SetScores(batch, {1, 2, 2, 2, 2, 1});
  SetScores(batch, {5, 5, 5, 5, 5});
  SetScores(batch, {0, 1, 7, 1, 1, 9});
  SetScores(batch, {-3, -1, -2, -9, -3});  // ReLU: all zero
  const Selection selection = batch.Select();
  EXPECT_EQ(selection.Of(0), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(selection.Of(1), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(selection.Of(2), (std::vector<int32_t>{1, 2, 5}));
  EXPECT_EQ(selection.Of(3), (std::vector<int32_t>{0, 1, 2}));
}

TEST(Indexer, ReluComesBeforeTheHeadWeights) {
  // Two heads with weights 1 and -1: a key that only the second head likes scores below zero.
  Batch batch(2, 1, 1, {IndexFormat::kF32, 2});
  batch.AddSequence(2, 1, 1);
  const float keys[3][2] = {{0, 5}, {-5, -5}, {-1, 1}};
  for (int64_t e = 0; e < 3; ++e) batch.SetKey(0, e, keys[e]);
  batch.q = {1, 0, 0, 1};
  batch.weights = {1, -1};
  // Scores -5, 0, -1; without ReLU they would be -5, 0, -2; with ReLU of the sum 0, 0, 0.
  EXPECT_EQ(batch.Select().Of(0), (std::vector<int32_t>{1}));
}

TEST(Indexer, ANanScoreComesLast) {
  Batch batch(1, 1, 2, {IndexFormat::kF32, 1});
  SetScores(batch, {NAN, 1, NAN, 3, NAN});
  SetScores(batch, {NAN, NAN, NAN, NAN});
  SetScores(batch, {1, NAN, NAN});
  batch.weights[2] = -1e30f;  // even a very low score comes before
  const Selection selection = batch.Select();
  EXPECT_EQ(selection.Of(0), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(selection.Of(1), (std::vector<int32_t>{0, 1}));  // a valid choice nevertheless
  EXPECT_EQ(selection.Of(2), (std::vector<int32_t>{0, 1}));
}

TEST(Indexer, EntriesThatAreNotVisibleAreNotRead) {  // MDL-04
  Batch batch(2, 4, 3, {IndexFormat::kF32, 8});
  batch.AddSequence(41, 1, 5);  // sees 10 entries, 12 exist
  const Selection clean = batch.Select();
  const std::vector<float> huge(8, 1e6f);
  for (const int64_t entry : {10, 11}) batch.SetKey(0, entry, huge.data());
  EXPECT_EQ(batch.Select().indices, clean.indices);
}

TEST(Indexer, ATokenAloneEqualsTheTokenInItsBatchOnAnyThreads) {
  Batch batch(4, 4, 6, {IndexFormat::kMxfp4, 32});
  batch.AddSequence(100, 50, 1);
  batch.AddSequence(0, 20, 2);
  const Selection all = batch.Select();
  for (const int threads : {2, 3}) {
    const Selection other = batch.Select(threads);
    EXPECT_EQ(other.indices, all.indices);
    EXPECT_EQ(other.counts, all.counts);
  }
  for (const int64_t i : {0, 17, 49}) {
    Batch alone(4, 4, 6, batch.indexer.row);
    alone.AddSequence(100 + i, 1, 9);
    alone.sequences[0].keys = batch.pages[0]->view;
    std::copy_n(batch.q.begin() + i * 128, 128, alone.q.begin());
    std::copy_n(batch.weights.begin() + i * 4, 4, alone.weights.begin());
    EXPECT_EQ(alone.Select().Of(0), all.Of(i));
  }
}

TEST(Indexer, Fp4KeysKeepMostOfTheChoice) {  // §2.6: quantized selection against fp32
  // Not a promise of a number format but a sign that both sides went through the same transform.
  Batch packed(8, 4, 64, {IndexFormat::kMxfp4, 128}), exact(8, 4, 64, {IndexFormat::kF32, 128});
  packed.AddSequence(2047, 1, 7);
  exact.AddSequence(2047, 1, 7);
  exact.weights = packed.weights;
  const std::vector<int32_t> a = packed.Select().Of(0), b = exact.Select().Of(0);
  std::vector<int32_t> both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  EXPECT_GT(both.size(), 44u);  // random keys without structure: the hardest case
}

}  // namespace
}  // namespace halfbyte
