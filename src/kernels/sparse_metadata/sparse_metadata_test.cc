#include "kernels/sparse_metadata/sparse_metadata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/indexer/indexer.h"
#include "kernels/test_rows.h"

namespace halfbyte {
namespace {

constexpr int32_t kUnwritten = -77;

struct Tables {
  std::vector<int32_t> blocks;
  BlockTables view;

  Tables(std::vector<std::vector<int32_t>> rows, int64_t rows_per_block) {
    for (const auto& row : rows) blocks.insert(blocks.end(), row.begin(), row.end());
    view = {{blocks.data(), std::ssize(rows), std::ssize(rows[0])}, rows_per_block};
  }
};

struct C128Result {
  std::vector<int32_t> decode, lengths, prefill;
  int64_t width;

  std::vector<int32_t> Decode(int64_t t) const {
    return {decode.begin() + t * width, decode.begin() + (t + 1) * width};
  }
  std::vector<int32_t> Prefill(int64_t t) const {
    return {prefill.begin() + t * width, prefill.begin() + (t + 1) * width};
  }
};

// Slot i % 1000 for each token; padding tokens are those in `padding`.
C128Result BuildC128(const std::vector<int64_t>& positions, int64_t decode_tokens,
                     const std::vector<int32_t>& request, const Tables& tables, int64_t width,
                     const std::vector<int64_t>& padding = {}, int threads = 1) {
  std::vector<int64_t> slots(positions.size(), 5);
  for (const int64_t t : padding) slots[static_cast<size_t>(t)] = -1;
  const int64_t prefill = std::ssize(positions) - decode_tokens;
  C128Result r{std::vector<int32_t>(static_cast<size_t>(decode_tokens * width) + 1, kUnwritten),
               std::vector<int32_t>(static_cast<size_t>(decode_tokens), kUnwritten),
               std::vector<int32_t>(static_cast<size_t>(prefill * width) + 1, kUnwritten), width};
  ThreadPool pool(threads);
  BuildC128aTopkMetadata(
      Context(pool), {positions, decode_tokens, request, slots, tables.view},
      {{r.decode.data(), decode_tokens, width}, r.lengths, {r.prefill.data(), prefill, width}});
  EXPECT_EQ(r.decode.back(), kUnwritten);
  EXPECT_EQ(r.prefill.back(), kUnwritten);
  r.decode.pop_back();
  r.prefill.pop_back();
  return r;
}

// A row of `width`: the values, then -1.
std::vector<int32_t> Row(std::vector<int32_t> values, int64_t width) {
  values.resize(static_cast<size_t>(width), -1);
  return values;
}

TEST(C128aTopkMetadata, CountsTheEntriesThatAreComplete) {  // R126
  const Tables tables({{7, 3, 11}}, 2);
  const C128Result r = BuildC128({0, 126, 127, 128, 254, 255}, 6, {0, 0, 0, 0, 0, 0}, tables, 6);
  EXPECT_EQ(r.lengths, (std::vector<int32_t>{0, 0, 1, 1, 1, 2}));
}

TEST(C128aTopkMetadata, DecodeRowsGoThroughTheBlockTable) {  // R126
  const Tables tables({{0, 0, 0}, {7, 3, 11}}, 2);
  const C128Result r = BuildC128({639}, 1, {1}, tables, 128);
  EXPECT_EQ(r.Decode(0), Row({14, 15, 6, 7, 22}, 128));
  EXPECT_EQ(r.lengths[0], 5);
}

TEST(C128aTopkMetadata, PrefillRowsAreLocalAndCountFromTheFirstPrefillToken) {  // R127
  const Tables tables({{7, 3, 11}}, 2);
  // The request of a prefill token is not looked at.
  const C128Result r = BuildC128({639, 383, 127, 0}, 1, {0, 99, 99, 99}, tables, 8);
  EXPECT_EQ(r.Decode(0), Row({14, 15, 6, 7, 22}, 8));
  EXPECT_EQ(r.Prefill(0), Row({0, 1, 2}, 8));
  EXPECT_EQ(r.Prefill(1), Row({0}, 8));
  EXPECT_EQ(r.Prefill(2), Row({}, 8));
}

TEST(C128aTopkMetadata, WidthsAreMultiplesOf128) {  // R127
  EXPECT_EQ(C128aRowWidth(5000), 128);
  EXPECT_EQ(C128aRowWidth(128 * 128), 128);
  EXPECT_EQ(C128aRowWidth(128 * 128 + 1), 256);
  EXPECT_EQ(C128aRowWidth(int64_t{1} << 20), 8192);
}

TEST(C128aTopkMetadata, ARowNeverWritesIntoTheNext) {  // R125
  // More entries than the row is wide: the row ends where the next begins.
  const Tables tables({{4, 9, 1, 6}}, 2);
  const C128Result r = BuildC128({1023, 127, 1023, 255}, 2, {0, 0, 0, 0}, tables, 3);
  EXPECT_EQ(r.Decode(0), (std::vector<int32_t>{8, 9, 18}));
  EXPECT_EQ(r.Decode(1), (std::vector<int32_t>{8, -1, -1}));
  EXPECT_EQ(r.lengths, (std::vector<int32_t>{3, 1}));
  EXPECT_EQ(r.Prefill(0), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(r.Prefill(1), (std::vector<int32_t>{0, 1, -1}));
}

TEST(C128aTopkMetadata, PaddingTokensHaveLengthZeroAndAreNotLookedAt) {  // R125
  const Tables tables({{7, 3, 11}}, 2);
  const C128Result r = BuildC128({639, -5, 639}, 3, {0, 1234, 0}, tables, 8, {1});
  EXPECT_EQ(r.lengths, (std::vector<int32_t>{5, 0, 5}));
  EXPECT_EQ(r.Decode(1), Row({}, 8));
}

TEST(C128aTopkMetadata, ThreadsChangeNothingAndEveryTokenMatchesTheDefinition) {
  std::mt19937 random(1);
  std::vector<std::vector<int32_t>> rows(5, std::vector<int32_t>(16));
  for (auto& row : rows) {
    for (int32_t& block : row) block = static_cast<int32_t>(random() % 1000);
  }
  const Tables tables(rows, 2);
  std::vector<int64_t> positions;
  std::vector<int32_t> request;
  for (int i = 0; i < 3000; ++i) {
    positions.push_back(static_cast<int64_t>(random() % 4096));
    request.push_back(static_cast<int32_t>(random() % 5));
  }
  const C128Result one = BuildC128(positions, 2500, request, tables, 32);
  const C128Result three = BuildC128(positions, 2500, request, tables, 32, {}, 3);
  EXPECT_EQ(one.decode, three.decode);
  EXPECT_EQ(one.prefill, three.prefill);
  EXPECT_EQ(one.lengths, three.lengths);
  for (size_t t = 0; t < 2500; ++t) {
    const int64_t n = (positions[t] + 1) / 128;
    std::vector<int32_t> expected;
    for (int64_t e = 0; e < n; ++e) {
      const auto& row = rows[static_cast<size_t>(request[t])];
      expected.push_back(row[static_cast<size_t>(e / 2)] * 2 + static_cast<int32_t>(e % 2));
    }
    ASSERT_EQ(one.Decode(static_cast<int64_t>(t)), Row(expected, 32)) << t;
    ASSERT_EQ(one.lengths[t], n);
  }
}

struct C4Result {
  std::vector<int32_t> slots, lengths;
};

C4Result ComputeC4(const std::vector<int32_t>& entries, int64_t top_k,
                   const std::vector<int32_t>& request, const Tables& tables,
                   std::vector<uint8_t> valid = {}, int threads = 1) {
  const int64_t tokens = std::ssize(entries) / top_k;
  valid.resize(static_cast<size_t>(tokens), 1);
  C4Result r{std::vector<int32_t>(entries.size() + 1, kUnwritten),
             std::vector<int32_t>(static_cast<size_t>(tokens), kUnwritten)};
  ThreadPool pool(threads);
  ComputeC4aGlobalTopk(Context(pool),
                       {{entries.data(), tokens, top_k}, request, valid, tables.view},
                       {r.slots.data(), tokens, top_k}, r.lengths);
  EXPECT_EQ(r.slots.back(), kUnwritten);
  r.slots.pop_back();
  return r;
}

TEST(C4aGlobalTopk, EntriesBecomeSlotsAndTheLengthCountsThem) {  // R128; 63: e mod 64 = 63 (R129)
  const Tables tables({{5, 9, 2}}, 64);
  const C4Result r = ComputeC4({0, 63, 64, 70, 130, -1}, 6, {0}, tables);
  EXPECT_EQ(r.slots, (std::vector<int32_t>{320, 383, 576, 582, 130, -1}));
  EXPECT_EQ(r.lengths, (std::vector<int32_t>{5}));
}

TEST(C4aGlobalTopk, TheBlockSizeIsInRows) {  // R129: 256 tokens a block are 64 rows, not 256
  EXPECT_EQ(ComputeC4({64}, 1, {0}, Tables({{5, 9, 2}}, 64)).slots[0], 9 * 64);
  EXPECT_EQ(ComputeC4({64}, 1, {0}, Tables({{5, 9, 2}}, 32)).slots[0], 2 * 32);
}

TEST(C4aGlobalTopk, PaddingTokensHaveLengthZeroAndAreNotLookedAt) {  // R129
  const Tables tables({{5, 9, 2}, {1, 0, 3}}, 64);
  const C4Result r = ComputeC4({0, 70, 0, 1 << 30, 1, -1}, 2, {0, 77, 1}, tables, {1, 0, 1});
  EXPECT_EQ(r.slots, (std::vector<int32_t>{320, 582, -1, -1, 65, -1}));
  EXPECT_EQ(r.lengths, (std::vector<int32_t>{2, 0, 1}));
}

// The indexer's choices of ragged requests, through the tables: p below 3, as many entries as the
// indexer may choose, one more, and tokens of a draft that cross a group boundary.
TEST(C4aGlobalTopk, WhatTheIndexerChoseIsPackedAtTheFront) {  // R129, R130
  constexpr int64_t kTopK = 5, kDim = 8, kPage = 7;
  const IndexRow row{.format = IndexFormat::kF32, .dim = kDim};
  struct Span {
    int64_t position, count;
  };
  // Entries seen, (p + 1) / 4: 0 0 0 1 | 4 5 5 5 5 6 | 2 3.
  const std::vector<Span> spans = {{0, 4}, {18, 6}, {10, 2}};
  const std::vector<int32_t> seen = {0, 0, 0, 1, 4, 5, 5, 5, 5, 6, 2, 3};
  std::vector<std::unique_ptr<ShuffledPages>> pages;
  std::vector<IndexerSequence> sequences;
  std::vector<int32_t> request;
  int64_t tokens = 0;
  for (const Span& span : spans) {
    pages.push_back(std::make_unique<ShuffledPages>(10, kPage, row.bytes(), 3));
    const std::vector<float> keys = RandomNormal(10 * kDim, 4);
    for (int64_t e = 0; e < 10; ++e) {
      EncodeIndexRow(row, keys.data() + e * kDim, pages.back()->view.row(e));
    }
    IndexerSequence sequence;
    static_cast<TokenSpan&>(sequence) = {tokens, span.count, span.position};
    sequence.keys = pages.back()->view;
    sequences.push_back(sequence);
    request.insert(request.end(), static_cast<size_t>(span.count),
                   static_cast<int32_t>(sequences.size() - 1));
    tokens += span.count;
  }
  const std::vector<float> q = RandomNormal(tokens * kDim, 5);
  const std::vector<float> weights(static_cast<size_t>(tokens), 1.0f);
  std::vector<int32_t> entries(static_cast<size_t>(tokens * kTopK), kUnwritten);
  std::vector<int32_t> counts(static_cast<size_t>(tokens), kUnwritten);
  ThreadPool pool(1);
  SelectEntries(Context(pool), {.heads = 1, .rate = 4, .top_k = kTopK, .row = row}, sequences,
                {q.data(), tokens, kDim}, {weights.data(), tokens, 1},
                {entries.data(), tokens, kTopK}, counts.data());

  const Tables tables({{5, 9}, {3, 0}, {8, 2}}, 4);
  const C4Result r = ComputeC4(entries, kTopK, request, tables);
  const C4Result threaded = ComputeC4(entries, kTopK, request, tables, {}, 3);
  EXPECT_EQ(r.slots, threaded.slots);
  EXPECT_EQ(r.lengths, threaded.lengths);
  for (int64_t t = 0; t < tokens; ++t) {
    const auto at = static_cast<size_t>(t);
    EXPECT_EQ(r.lengths[at], std::min<int32_t>(seen[at], kTopK)) << t;
    EXPECT_EQ(r.lengths[at], counts[at]) << t;
    for (int64_t j = 0; j < kTopK; ++j) {
      const int32_t slot = r.slots[static_cast<size_t>(t * kTopK + j)];
      if (j >= r.lengths[at]) {
        EXPECT_EQ(slot, -1) << t;
        continue;
      }
      const int32_t entry = entries[static_cast<size_t>(t * kTopK + j)];
      const int32_t block = tables.blocks[static_cast<size_t>(request[at] * 2 + entry / 4)];
      EXPECT_EQ(slot, block * 4 + entry % 4) << t << " " << j;
    }
  }
}

}  // namespace
}  // namespace halfbyte
