#include "kernels/indexer/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/row_math.h"
#include "numerics/mxfp4_block.h"

namespace halfbyte {
namespace {

// With keys that are decoded: a block's products and their sums do not round.
float QueryDot(const IndexRow& row, const float* q, const float* key) {
  if (row.format == IndexFormat::kF32) return Dot(q, key, row.dim);
  float dot = 0;
  for (int64_t begin = 0; begin < row.dim; begin += kMxfp4Block) {
    const int64_t count = std::min<int64_t>(kMxfp4Block, row.dim - begin);
    dot += Dot(q + begin, key + begin, count);
  }
  return dot;
}

float EntryScore(const Indexer& indexer, const float* q, const float* weights, const float* key) {
  const int64_t dim = indexer.row.dim;
  float lanes[4] = {};
  for (int64_t h = 0; h < indexer.heads; ++h) {
    const float dot = QueryDot(indexer.row, q + h * dim, key);
    float& lane = lanes[h % 8 / 2];
    lane = std::fma(weights[h], dot < 0 ? 0.0f : dot, lane);  // NaN stays
  }
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

// Writes the ids of the `keep` best scores, ascending.
void KeepBest(std::span<const float> scores, int64_t keep, std::vector<int32_t>& order,
              int32_t* indices) {
  order.resize(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float score_a = scores[static_cast<size_t>(a)];
    const float score_b = scores[static_cast<size_t>(b)];
    return score_a != score_b ? score_a > score_b : a < b;
  };
  std::nth_element(order.begin(), order.begin() + keep - 1, order.end(), better);
  std::sort(order.begin(), order.begin() + keep);
  std::copy_n(order.begin(), keep, indices);
}

// The same for scores without a rule for ties, in the steps of torch.topk: (score, id) pairs of all
// entries, compared by score alone, through std::partial_sort for few or std::nth_element for many.
void KeepBestAsReference(std::span<const float> scores, int64_t keep, int64_t entries,
                         int32_t* indices) {
  using Entry = std::pair<float, int32_t>;
  std::vector<Entry> all(static_cast<size_t>(entries));
  for (int64_t i = 0; i < entries; ++i) {
    all[static_cast<size_t>(i)] = {i < std::ssize(scores) ? scores[static_cast<size_t>(i)]
                                                          : -std::numeric_limits<float>::infinity(),
                                   static_cast<int32_t>(i)};
  }
  const auto better = [](const Entry& a, const Entry& b) { return a.first > b.first; };
  if (keep * 64 <= entries) {
    std::partial_sort(all.begin(), all.begin() + keep, all.end(), better);
  } else {
    std::nth_element(all.begin(), all.begin() + keep - 1, all.end(), better);
  }
  for (int64_t i = 0; i < keep; ++i) indices[i] = all[static_cast<size_t>(i)].second;
  std::sort(indices, indices + keep);
}

// Scores of the entries that the i-th token of a sequence sees.
void ScoreToken(const Indexer& indexer, const IndexerSequence& sequence, int64_t i,
                MatrixView<const float> q, MatrixView<const float> weights, float* scores) {
  static thread_local std::vector<float> key;
  key.resize(static_cast<size_t>(indexer.row.dim));
  const int64_t token = sequence.first + i;
  const int64_t visible = (sequence.position + i + 1) / indexer.rate;
  for (int64_t t = 0; t < visible; ++t) {
    DecodeIndexRow(indexer.row, sequence.keys.row(t), key.data());
    scores[t] = EntryScore(indexer, q.row(token), weights.row(token), key.data());
  }
}

// What the i-th token of a sequence attends to.
void SelectForToken(const Indexer& indexer, const IndexerSequence& sequence, int64_t i,
                    MatrixView<const float> q, MatrixView<const float> weights,
                    MatrixView<int32_t> indices, int32_t* counts) {
  static thread_local std::vector<float> scores;
  static thread_local std::vector<int32_t> order;
  const int64_t token = sequence.first + i;
  const int64_t visible = (sequence.position + i + 1) / indexer.rate;
  const int64_t keep = std::min(indexer.top_k, visible);
  int32_t* out = indices.row(token);
  counts[token] = static_cast<int32_t>(keep);
  std::fill(out + keep, out + indices.columns, -1);
  if (keep == visible) {  // nothing to choose
    std::iota(out, out + keep, 0);
    return;
  }
  scores.resize(static_cast<size_t>(visible));
  ScoreToken(indexer, sequence, i, q, weights, scores.data());
  // A NaN would break the order that selection sorts by; such an entry comes last.
  for (float& score : scores) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  }
  if (indexer.reference_entries > 0) {
    KeepBestAsReference(scores, keep, indexer.reference_entries, out);
  } else {
    KeepBest(scores, keep, order, out);
  }
}

}  // namespace

void IndexScores(const Context& context, const Indexer& indexer,
                 std::span<const IndexerSequence> sequences, MatrixView<const float> q,
                 MatrixView<const float> weights, MatrixView<float> scores) {
  context.pool().ParallelFor(CountTokens(sequences), 1, [&](int64_t begin, int64_t end) {
    ForTokens(sequences, begin, end, [&](const IndexerSequence& sequence, int64_t i) {
      ScoreToken(indexer, sequence, i, q, weights, scores.row(sequence.first + i));
    });
  });
}

void SelectEntries(const Context& context, const Indexer& indexer,
                   std::span<const IndexerSequence> sequences, MatrixView<const float> q,
                   MatrixView<const float> weights, MatrixView<int32_t> indices, int32_t* counts) {
  context.pool().ParallelFor(CountTokens(sequences), 1, [&](int64_t begin, int64_t end) {
    ForTokens(sequences, begin, end, [&](const IndexerSequence& sequence, int64_t i) {
      SelectForToken(indexer, sequence, i, q, weights, indices, counts);
    });
  });
}

}  // namespace halfbyte
