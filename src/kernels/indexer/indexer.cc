#include "kernels/indexer/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/row_math.h"

namespace halfbyte {
namespace {

float EntryScore(const Indexer& indexer, const float* q, const float* weights, const float* key) {
  const int64_t dim = indexer.row.dim;
  float score = 0;
  for (int64_t h = 0; h < indexer.heads; ++h) {
    score += weights[h] * std::max(0.0f, Dot(q + h * dim, key, dim));
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

}  // namespace

void SelectEntries(const Context& context, const Indexer& indexer,
                   std::span<const IndexerSequence> sequences, MatrixView<const float> q,
                   MatrixView<const float> weights, MatrixView<int32_t> indices, int32_t* counts) {
  for (const IndexerSequence& sequence : sequences) {
    context.pool().ParallelFor(sequence.count, 1, [&](int64_t begin, int64_t end) {
      static thread_local std::vector<float> key;
      static thread_local std::vector<float> scores;
      static thread_local std::vector<int32_t> order;
      key.resize(static_cast<size_t>(indexer.row.dim));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t token = sequence.first + i;
        const int64_t visible = (sequence.position + i + 1) / indexer.rate;
        const int64_t keep = std::min(indexer.top_k, visible);
        int32_t* out = indices.row(token);
        counts[token] = static_cast<int32_t>(keep);
        std::fill(out + keep, out + indices.columns, -1);
        if (keep == visible) {  // nothing to choose
          std::iota(out, out + keep, 0);
          continue;
        }
        scores.resize(static_cast<size_t>(visible));
        for (int64_t t = 0; t < visible; ++t) {
          DecodeIndexRow(indexer.row, sequence.keys.row(t), key.data());
          scores[static_cast<size_t>(t)] =
              EntryScore(indexer, q.row(token), weights.row(token), key.data());
        }
        KeepBest(scores, keep, order, out);
      }
    });
  }
}

}  // namespace halfbyte
