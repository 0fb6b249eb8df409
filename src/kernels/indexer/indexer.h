// Chooses the compressed entries that a query of a C4 layer attends to (deepseek-v4.md §2.6).
#pragma once

#include <cstdint>
#include <span>

#include "device/context.h"
#include "kernels/kv_row/kv_row.h"
#include "kernels/token_span.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

struct Indexer {
  int64_t heads = 0;
  int64_t rate = 4;
  int64_t top_k = 0;
  IndexRow row;  // of stored keys; queries must have gone through RoundIndexQuery

  // 0: equal scores go to the lower entry. Otherwise the number of entries of the whole prompt, and
  // equal scores are chosen as PyTorch's CPU top-k chooses them over that many (future ones at
  // -infinity): only for comparison with logits that PyTorch computed. Equal scores do occur: a sum
  // of ReLUs is exactly 0 for many entries of a small model.
  int64_t reference_entries = 0;
};

struct IndexerSequence : TokenSpan {
  PagedRows keys;
};

// q: [tokens, heads * dim]; weights: [tokens, heads], factors included.
// scores: [tokens, at least the most entries that one of them sees, rounded up to kScoreTile]; each
// row gets the scores of the entries that its token sees, which is all of it that has a meaning.
// Score of entry t: sum_h weights_h * ReLU(q_h . k_t), in this order:
//   1. q_h . k_t of kMxfp4: in a block of 32, query and key are integers (twice their codes'
//      values) times a power of two each. The sum of a block is the integer sum of the 32 products,
//      which is exact; it is multiplied by the product of the two powers and added to the blocks
//      before, which start at 0, in one fused multiply-add. (NaN or infinity in a query's block
//      makes NaN.) Of kF32: sixteen lanes (simd16.h).
//   2. ReLU makes 0 of what is below 0; NaN stays.
//   3. Four lanes start at 0; lane (h mod 8) / 2 takes its heads in ascending order, each by one
//      fused multiply-add of its weight. The score is (lane 0 + lane 2) + (lane 1 + lane 3).
void IndexScores(const Context& context, const Indexer& indexer,
                 std::span<const IndexerSequence> sequences, MatrixView<const float> q,
                 MatrixView<const float> weights, MatrixView<float> scores);

inline constexpr int64_t kScoreTile = 32;

// The rule as plain loops, bit for bit.
void IndexScoresReference(const Indexer& indexer, std::span<const IndexerSequence> sequences,
                          MatrixView<const float> q, MatrixView<const float> weights,
                          MatrixView<float> scores);

// Each token gets its min(top_k, visible) best entries, ties to the lower entry, NaN scores last:
// indices [tokens, top_k] ascending, then -1; counts [tokens].
void SelectEntries(const Context& context, const Indexer& indexer,
                   std::span<const IndexerSequence> sequences, MatrixView<const float> q,
                   MatrixView<const float> weights, MatrixView<int32_t> indices, int32_t* counts);

}  // namespace halfbyte
