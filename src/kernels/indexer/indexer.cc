#include "kernels/indexer/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/row_math.h"

namespace halfbyte {
namespace {

float EntryScore(const Indexer& indexer, const float* q, const float* weights, const float* key) {
  const int64_t dim = indexer.row.dim;
  float score = 0;
  for (int64_t h = 0; h < indexer.heads; ++h) {
    const float dot = Dot(q + h * dim, key, dim);
    score += weights[h] * (dot < 0 ? 0.0f : dot);  // NaN stays
  }
  // A NaN would break the order that selection sorts by; such an entry comes last.
  return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
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

// What the i-th token of a sequence attends to.
void SelectForToken(const Indexer& indexer, const IndexerSequence& sequence, int64_t i,
                    MatrixView<const float> q, MatrixView<const float> weights,
                    MatrixView<int32_t> indices, int32_t* counts) {
  static thread_local std::vector<float> key;
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
  key.resize(static_cast<size_t>(indexer.row.dim));
  scores.resize(static_cast<size_t>(visible));
  for (int64_t t = 0; t < visible; ++t) {
    DecodeIndexRow(indexer.row, sequence.keys.row(t), key.data());
    scores[static_cast<size_t>(t)] =
        EntryScore(indexer, q.row(token), weights.row(token), key.data());
  }
  if (indexer.reference_entries > 0) {
    KeepBestAsReference(scores, keep, indexer.reference_entries, out);
  } else {
    KeepBest(scores, keep, order, out);
  }
}

}  // namespace

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
