#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <memory>

#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

// Sequences with stored rows, and queries for some tokens of each.
struct Batch {
  AttentionShape shape;
  std::vector<float> sinks;
  std::vector<std::unique_ptr<ShuffledPages>> windows, entries;
  std::vector<AttentionSequence> sequences;
  std::vector<float> q;
  std::vector<int32_t> indices, counts;
  EntrySelection selection;
  int64_t tokens = 0;

  Batch(int64_t heads, int64_t window, int64_t rate, KvRow row, double sink_size = 1)
      : sinks(RandomNormal(heads, 77, sink_size)) {
    shape = {.heads = heads, .window = window, .rate = rate, .row = row, .sinks = sinks.data()};
  }
  Batch(const Batch&) = delete;

  // `count` queries from `position` on, with every row that the last of them may see.
  void AddSequence(int64_t position, int64_t count, uint32_t seed, double key_size = 1) {
    const int64_t dim = shape.row.head_dim;
    const auto store = [&](int64_t rows, uint32_t row_seed) {
      auto pages = std::make_unique<ShuffledPages>(rows + 3, 5, shape.row.bytes(), row_seed);
      const std::vector<float> values = RandomNormal(rows * dim, row_seed, key_size);
      for (int64_t r = 0; r < rows; ++r) {
        EncodeKvRow(shape.row, values.data() + r * dim, pages->view.row(r));
      }
      return pages;
    };
    windows.push_back(store(position + count, seed));
    entries.push_back(store(VisibleEntries(position + count - 1, shape.rate), seed + 1));
    AttentionSequence sequence;
    static_cast<TokenSpan&>(sequence) = {.first = tokens, .count = count, .position = position};
    sequence.window = windows.back()->view;
    sequence.compressed = entries.back()->view;
    sequences.push_back(sequence);
    tokens += count;
    const std::vector<float> more = RandomNormal(count * shape.heads * dim, seed + 2);
    q.insert(q.end(), more.begin(), more.end());
  }

  // Each token attends to up to `most` of its visible entries.
  void SelectSome(int64_t most, uint32_t seed) {
    std::mt19937 random(seed);
    indices.assign(static_cast<size_t>(tokens * most), -1);
    counts.assign(static_cast<size_t>(tokens), 0);
    for (const AttentionSequence& s : sequences) {
      for (int64_t i = 0; i < s.count; ++i) {
        std::vector<int32_t> all(static_cast<size_t>(VisibleEntries(s.position + i, shape.rate)));
        std::iota(all.begin(), all.end(), 0);
        const int64_t keep = std::min(most, static_cast<int64_t>(all.size()));
        counts[static_cast<size_t>(s.first + i)] = static_cast<int32_t>(keep);
        std::sample(all.begin(), all.end(), indices.begin() + (s.first + i) * most, keep, random);
      }
    }
    selection = {indices.data(), counts.data(), most};
  }

  std::vector<float> Compute(Rounding rounding = Rounding::kNone, int threads = 1,
                             CpuIsa isa = BestCpuIsa()) const {
    ThreadPool pool(threads);
    std::vector<float> out(q.size(), NAN);
    const int64_t columns = shape.heads * shape.row.head_dim;
    Attention(Context(pool, isa), shape, sequences, selection, {q.data(), tokens, columns},
              rounding, {out.data(), tokens, columns});
    return out;
  }

  // §2.4 in double; `bounds` is how far fp32 may be from it.
  std::vector<double> Reference(std::vector<double>* bounds) const {
    const auto dim = static_cast<size_t>(shape.row.head_dim);
    std::vector<double> out(q.size());
    bounds->assign(q.size(), 0);
    for (const AttentionSequence& s : sequences) {
      for (int64_t i = 0; i < s.count; ++i) {
        const std::vector<std::vector<float>> keys = KeysOf(s, i);
        for (int64_t h = 0; h < shape.heads; ++h) {
          const size_t at = static_cast<size_t>((s.first + i) * shape.heads + h) * dim;
          ReferenceHead(keys, h, q.data() + at, out.data() + at, bounds->data() + at);
        }
      }
    }
    return out;
  }

 private:
  std::vector<std::vector<float>> KeysOf(const AttentionSequence& s, int64_t i) const {
    std::vector<std::vector<float>> keys;
    const auto load = [&](const PagedRows& rows, int64_t r) {
      keys.emplace_back(static_cast<size_t>(shape.row.head_dim));
      DecodeKvRow(shape.row, rows.row(r), keys.back().data());
    };
    const int64_t position = s.position + i;
    for (int64_t p = position; p >= s.window_start && p > position - shape.window; --p) {
      load(s.window, p);
    }
    if (selection.indices == nullptr) {
      for (int64_t e = 0; shape.rate > 0 && (e + 1) * shape.rate <= position + 1; ++e) {
        load(s.compressed, e);
      }
    } else {
      for (int64_t j = 0; j < selection.counts[s.first + i]; ++j) {
        load(s.compressed, selection.indices[(s.first + i) * selection.stride + j]);
      }
    }
    return keys;
  }

  void ReferenceHead(const std::vector<std::vector<float>>& keys, int64_t head, const float* query,
                     double* out, double* bounds) const {
    const size_t dim = keys[0].size();
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    const double sink = sinks[static_cast<size_t>(head)];
    std::vector<double> scores;
    double max = sink, score_error = 0, largest = 0;
    for (const std::vector<float>& key : keys) {
      double dot = 0, magnitude = 0;
      for (size_t c = 0; c < dim; ++c) {
        dot += double{query[c]} * double{key[c]};
        magnitude += std::abs(double{query[c]} * double{key[c]});
        largest = std::max(largest, std::abs(double{key[c]}));
      }
      scores.push_back(dot * scale);
      max = std::max(max, dot * scale);
      score_error = std::max(score_error, (static_cast<double>(dim) / 16 + 8) * magnitude * scale);
    }
    double sum = std::exp(sink - max);
    for (size_t j = 0; j < keys.size(); ++j) {
      const double weight = std::exp(scores[j] - max);
      sum += weight;
      for (size_t c = 0; c < dim; ++c) out[c] += weight * double{keys[j][c]};
    }
    // A weight is off by the error of its score and of the largest; the sums round once per key.
    const double units = 4 * score_error + static_cast<double>(keys.size()) + 16;
    for (size_t c = 0; c < dim; ++c) {
      out[c] /= sum;
      bounds[c] = units * kF32Unit * largest;
    }
  }
};

void ExpectDefinition(const Batch& setup, const char* what) {
  std::vector<double> bounds;
  const std::vector<double> expected = setup.Reference(&bounds);
  EXPECT_TRUE(Near(setup.Compute(), expected, [&](size_t i) { return bounds[i]; })) << what;
}

KvRow F32Row(int64_t dim) { return {KvFormat::kF32, dim, 0}; }

TEST(Attention, EqualsTheDefinitionAtEveryBoundary) {  // R123
  for (const int64_t rate : {0, 4, 128}) {
    Batch setup(3, 128, rate, F32Row(40));
    uint32_t seed = 1;
    for (const int64_t position : {0, 1, 2, 3, 4, 7, 126, 127, 128, 129, 255, 256, 400}) {
      setup.AddSequence(position, 1, seed += 10);
    }
    setup.AddSequence(120, 17, seed += 10);
    setup.AddSequence(0, 9, seed += 10);
    ExpectDefinition(setup, "all entries");
  }
}

TEST(Attention, EqualsTheDefinitionOverOddShapes) {
  for (const int64_t dim : {1, 8, 15, 16, 33, 512}) {
    for (const int64_t heads : {1, 2, 5}) {
      for (const int64_t window : {1, 7, 8}) {
        Batch setup(heads, window, 3, F32Row(dim), 3);
        setup.AddSequence(0, 4, 100);
        setup.AddSequence(19, 3, 200);
        ExpectDefinition(setup, "odd shape");
      }
    }
  }
}

TEST(Attention, EachTokenUsesItsOwnSelection) {
  Batch setup(4, 8, 4, F32Row(24));
  setup.AddSequence(50, 30, 1);
  setup.AddSequence(0, 13, 2);
  setup.SelectSome(5, 3);
  ExpectDefinition(setup, "selected entries");
}

TEST(Attention, Fp8RowsAreTheirDecodedValues) {  // R122
  Batch setup(2, 16, 4, {KvFormat::kFp8, 128, 32});
  setup.AddSequence(40, 5, 1);
  ExpectDefinition(setup, "FP8 rows");
  Batch decoded(2, 16, 4, F32Row(128));
  decoded.AddSequence(40, 5, 1);
  for (size_t i = 0; i < 45; ++i) {
    DecodeKvRow(setup.shape.row, setup.windows[0]->view.row(static_cast<int64_t>(i)),
                reinterpret_cast<float*>(decoded.windows[0]->view.row(static_cast<int64_t>(i))));
  }
  for (int64_t e = 0; e < 11; ++e) {
    DecodeKvRow(setup.shape.row, setup.entries[0]->view.row(e),
                reinterpret_cast<float*>(decoded.entries[0]->view.row(e)));
  }
  EXPECT_TRUE(SameBits(setup.Compute(), decoded.Compute()));
}

TEST(Attention, TheSinkIsOneMoreSoftmaxColumnWithoutAValue) {  // R120
  // One key, which is the value: the output is the key's share of the softmax times the key.
  for (const float sink : {-3.0f, 0.0f, 2.5f}) {
    Batch setup(1, 4, 0, F32Row(4));
    setup.AddSequence(0, 1, 1);
    setup.sinks[0] = sink;
    const std::vector<float> key{1, 2, 3, 4};
    EncodeKvRow(setup.shape.row, key.data(), setup.windows[0]->view.row(0));
    setup.q = {0.5f, 0, 0, 0.25f};  // score (0.5 + 1) / sqrt(4), the sink is not scaled
    const double share = 1 / (1 + std::exp(double{sink} - 0.75));
    const std::vector<float> out = setup.Compute();
    for (size_t c = 0; c < 4; ++c) EXPECT_NEAR(out[c], share * double{key[c]}, 1e-6);
  }
}

TEST(Attention, ASinkOfMinusInfinityLeavesThePlainSoftmax) {
  Batch setup(2, 8, 0, F32Row(8));
  setup.AddSequence(5, 1, 1);
  setup.sinks.assign(2, -INFINITY);
  ExpectDefinition(setup, "no sink");
}

TEST(Attention, ExtremeScoresNeitherOverflowNorVanish) {
  for (const double size : {1e4, 1e9, 1e15}) {  // scores up to 1e15 of both signs
    Batch setup(2, 16, 4, F32Row(32));
    setup.AddSequence(20, 3, 1, size);
    for (const float value : setup.Compute()) EXPECT_TRUE(std::isfinite(value)) << size;
  }
  // All real scores far below the sink: the output is 0, not 0/0.
  Batch low(1, 8, 0, F32Row(4));
  low.AddSequence(3, 1, 1);
  low.sinks[0] = 3e4f;
  for (const float value : low.Compute()) EXPECT_EQ(value, 0);
  // All real scores far below 0 with a sink that is lower still: a plain softmax.
  Batch both(1, 8, 0, F32Row(4));
  both.AddSequence(3, 1, 1);
  both.sinks[0] = -1e30f;
  const std::vector<float> key{-1e4f, -1e4f, -1e4f, -1e4f};
  for (int64_t p = 0; p < 4; ++p) {
    EncodeKvRow(both.shape.row, key.data(), both.windows[0]->view.row(p));
  }
  both.q.assign(4, 1e4f);
  for (const float value : both.Compute()) EXPECT_NEAR(value, -1e4f, 1e-2);
}

TEST(Attention, RowsThatAQueryMustNotSeeDoNotTouchIt) {  // MDL-04
  for (const int64_t rate : {4, 128}) {
    for (const int64_t p : {0, 1, 2, 3, 6, 7, 126, 127, 128, 129, 255, 256}) {
      Batch setup(2, 128, rate, F32Row(16));
      // Rows of two more groups exist already, as in a prefill; the query at p comes alone.
      setup.AddSequence(0, p + 2 * rate, 5);
      setup.tokens = setup.sequences[0].count = 1;
      setup.sequences[0].position = p;
      setup.q.resize(2 * 16);
      const std::vector<float> clean = setup.Compute();
      for (int64_t row = 0; row < p + 2 * rate; ++row) {
        if (row > p || row < p - 127) setup.windows[0]->Poison(row);
      }
      const int64_t visible = (p + 1) / rate;
      for (int64_t e = visible; e < VisibleEntries(p + 2 * rate - 1, rate); ++e) {
        setup.entries[0]->Poison(e);
      }
      EXPECT_TRUE(SameBits(setup.Compute(), clean)) << "position " << p << " at rate " << rate;
      for (const float value : clean) EXPECT_TRUE(std::isfinite(value));
      // What it does see matters: the ends of the window, the last visible entry.
      for (const int64_t row : {p, std::max<int64_t>(0, p - 127)}) {
        Batch seen(2, 128, rate, F32Row(16));
        seen.AddSequence(p, 1, 5);
        seen.windows[0]->Poison(row);
        EXPECT_TRUE(std::isnan(seen.Compute()[0])) << "row " << row << " for " << p;
      }
      if (visible > 0) {
        Batch seen(2, 128, rate, F32Row(16));
        seen.AddSequence(p, 1, 5);
        seen.entries[0]->Poison(visible - 1);
        EXPECT_TRUE(std::isnan(seen.Compute()[0])) << "last entry for " << p;
      }
    }
  }
}

TEST(Attention, NobodySeesRowsBeforeTheWindowsStart) {  // server.md §1.5: a replay
  for (const int64_t rate : {0, 4, 128}) {
    Batch setup(2, 128, rate, F32Row(16));
    setup.AddSequence(300, 200, 5);
    setup.sequences[0].window_start = 300;
    for (int64_t row = 0; row < 300; ++row) setup.windows[0]->Poison(row);
    ExpectDefinition(setup, "from 300 on");
    // Whoever does not reach back to it sees what it would see anyway.
    const std::vector<float> late = setup.Compute();
    setup.sequences[0].window_start = 0;
    const std::vector<float> all = setup.Compute();
    const size_t reaching = 127 * 2 * 16;
    EXPECT_TRUE(std::isnan(all[reaching - 1]));
    EXPECT_TRUE(SameBits(std::span(late).subspan(reaching), std::span(all).subspan(reaching)));
  }
}

TEST(Attention, CountsVisibleEntriesAsTheCasesDo) {  // visible-entries
  const int64_t positions[] = {0, 1, 2, 3, 4, 6, 7, 126, 127, 128, 255};
  const int64_t rate4[] = {0, 0, 0, 1, 1, 1, 2, 31, 32, 32, 64};
  const int64_t rate128[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2};
  for (size_t i = 0; i < std::size(positions); ++i) {
    EXPECT_EQ(VisibleEntries(positions[i], 4), rate4[i]);
    EXPECT_EQ(VisibleEntries(positions[i], 128), rate128[i]);
    EXPECT_EQ(VisibleEntries(positions[i], 0), 0);
  }
}

TEST(Attention, ATokenAloneEqualsTheTokenInItsBatch) {  // R49, R76, MDL-07
  Batch batch(8, 16, 4, {KvFormat::kFp8, 96, 32});
  batch.AddSequence(30, 40, 1);
  batch.AddSequence(0, 3, 2);
  batch.AddSequence(201, 1, 3);
  batch.SelectSome(6, 4);
  for (float& x : batch.q) x = RoundToBf16(x);
  const size_t columns = 8 * 96;
  for (const Rounding rounding : {Rounding::kNone, Rounding::kBf16}) {
    const std::vector<float> all = batch.Compute(rounding);
    for (const AttentionSequence& s : batch.sequences) {
      for (int64_t i = 0; i < s.count; ++i) {
        const auto token = static_cast<size_t>(s.first + i);
        ThreadPool pool(3);  // more threads than tokens: heads are split among them
        AttentionSequence alone = s;
        static_cast<TokenSpan&>(alone) = {.first = 0, .count = 1, .position = s.position + i};
        std::vector<float> out(columns, NAN);
        Attention(Context(pool), batch.shape, {&alone, 1},
                  {batch.indices.data() + token * 6, batch.counts.data() + token, 6},
                  {batch.q.data() + token * columns, 1, static_cast<int64_t>(columns)}, rounding,
                  {out.data(), 1, static_cast<int64_t>(columns)});
        ASSERT_TRUE(SameBits(out, std::span(all).subspan(token * columns, columns))) << token;
      }
    }
  }
}

TEST(Attention, OneTwoAndThreeThreadsGiveTheSameBits) {
  for (const int64_t heads : {1, 3, 7}) {
    for (const int64_t count : {1, 2, 23}) {
      Batch setup(heads, 128, 4, F32Row(40));
      setup.AddSequence(150, count, 1);
      const std::vector<float> one = setup.Compute();
      EXPECT_TRUE(SameBits(setup.Compute(Rounding::kNone, 2), one));
      EXPECT_TRUE(SameBits(setup.Compute(Rounding::kNone, 3), one));
    }
  }
}

TEST(Attention, RoundsItsOutputOnce) {
  Batch setup(3, 16, 4, F32Row(20));
  setup.AddSequence(33, 6, 1);
  // Queries of zero and no sink: all weights are 1 with either rounding.
  setup.q.assign(setup.q.size(), 0);
  setup.sinks.assign(3, -INFINITY);
  std::vector<float> exact = setup.Compute();
  for (float& value : exact) value = RoundToBf16(value);
  EXPECT_TRUE(SameBits(setup.Compute(Rounding::kBf16), exact));
}

void ExpectReferenceBits(const Batch& setup, Rounding rounding) {
  std::vector<float> expected(setup.q.size());
  const int64_t columns = setup.shape.heads * setup.shape.row.head_dim;
  AttentionReference(setup.shape, setup.sequences, setup.selection,
                     {setup.q.data(), setup.tokens, columns}, rounding,
                     {expected.data(), setup.tokens, columns});
  for (const CpuIsa isa : SupportedCpuIsas()) {
    EXPECT_TRUE(SameBits(setup.Compute(rounding, 1, isa), expected))
        << CpuIsaName(isa) << ", " << setup.shape.heads << " heads of " << setup.shape.row.head_dim;
  }
}

TEST(Attention, LongListsGiveTheBitsOfThePlainLoops) {  // several blocks of keys, odd ends
  for (const KvRow& layout : {F32Row(40), KvRow{KvFormat::kFp8, 96, 32}}) {
    Batch setup(5, 33, 4, layout);
    setup.AddSequence(801, 3, 1);
    setup.AddSequence(383, 1, 2);  // 33 + 96 keys
    for (float& x : setup.q) x = RoundToBf16(x);
    ExpectReferenceBits(setup, Rounding::kNone);
    ExpectReferenceBits(setup, Rounding::kBf16);
  }
}

TEST(Attention, EveryInstructionSetGivesTheBitsOfThePlainLoops) {
  const KvRow layouts[] = {F32Row(40),
                           {KvFormat::kFp8, 40, 8},
                           {KvFormat::kFp8, 96, 32},
                           {KvFormat::kFp8, 128, 32},
                           {KvFormat::kFp8, 512, 64}};
  for (const KvRow& layout : layouts) {
    for (const int64_t heads : {1, 6, 8}) {
      Batch setup(heads, 17, 4, layout, 3);
      setup.AddSequence(0, 5, 1);
      setup.AddSequence(61, 11, 2);
      setup.AddSequence(30, 4, 3, 1e-15);  // rotary numbers on both sides of 2^-52
      setup.AddSequence(30, 4, 4, 1e3);    // nearly all weights count as 0
      for (const bool some : {false, true}) {
        if (some) setup.SelectSome(6, 5);
        for (float& x : setup.q) x = RoundToBf16(x);
        setup.q[3] = 0x1p-60f;
        setup.q[4] = -0x1.fep-61f;
        for (const Rounding rounding : {Rounding::kNone, Rounding::kBf16}) {
          ExpectReferenceBits(setup, rounding);
        }
      }
    }
  }
}

TEST(Attention, WeightsOfBf16AreNearTheDefinition) {
  Batch setup(8, 128, 4, {KvFormat::kFp8, 128, 32});
  setup.AddSequence(0, 5, 1);
  setup.AddSequence(190, 9, 2);
  for (float& x : setup.q) x = RoundToBf16(x);
  std::vector<double> bounds;
  const std::vector<double> expected = setup.Reference(&bounds);
  // Each weight and the result are rounded; values are below 5.
  EXPECT_TRUE(Near(setup.Compute(Rounding::kBf16), expected,
                   [&](size_t i) { return bounds[i] + 5 * 3 * kBf16Unit; }));
}

TEST(Attention, ANumberThatIsNoneReachesOnlyTheQueriesThatSeeIt) {
  for (const CpuIsa isa : SupportedCpuIsas()) {
    Batch setup(8, 16, 4, {KvFormat::kFp8, 128, 32});
    setup.AddSequence(40, 4, 1);
    setup.windows[0]->Poison(42);
    const std::vector<float> out = setup.Compute(Rounding::kBf16, 1, isa);
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::isnan(out[i]), i / (8 * 128) >= 2) << CpuIsaName(isa) << " " << i;
    }
  }
}

TEST(Attention, EveryTokenReadsItsOwnRows) {  // R121: distinct values per row
  // Queries of zero weigh all rows alike; with window 1, no entries and a sink of -inf the output
  // is the token's own row, which names sequence and position.
  Batch setup(1, 1, 0, F32Row(2));
  for (uint32_t s = 0; s < 4; ++s) setup.AddSequence(int64_t{10} * s, 5, 1 + s);
  setup.sinks[0] = -INFINITY;
  for (size_t s = 0; s < 4; ++s) {
    for (int64_t p = 0; p < static_cast<int64_t>(10 * s + 5); ++p) {
      const float row[2] = {static_cast<float>(s), static_cast<float>(p)};
      EncodeKvRow(setup.shape.row, row, setup.windows[s]->view.row(p));
    }
  }
  const std::vector<float> out = setup.Compute(Rounding::kNone, 2);
  for (size_t token = 0; token < 20; ++token) {
    EXPECT_EQ(out[2 * token], static_cast<float>(token / 5));
    EXPECT_EQ(out[2 * token + 1], static_cast<float>(token / 5 * 10 + token % 5));
  }
}

TEST(Attention, ManyNarrowKeysBeforeFewWideOnesInOneThread) {  // scratch kept between calls
  Batch narrow(1, 128, 4, F32Row(4));
  narrow.AddSequence(300, 1, 1);
  ExpectDefinition(narrow, "narrow");
  Batch wide(1, 128, 0, F32Row(512));
  wide.AddSequence(40, 1, 2);
  ExpectDefinition(wide, "wide");
}

}  // namespace
}  // namespace halfbyte
