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
// Score of entry t: sum_h weights_h * ReLU(q_h . k_t). Each token gets its min(top_k, visible) best
// entries, ties to the lower entry, NaN scores last: indices [tokens, top_k] ascending, then -1;
// counts [tokens].
void SelectEntries(const Context& context, const Indexer& indexer,
                   std::span<const IndexerSequence> sequences, MatrixView<const float> q,
                   MatrixView<const float> weights, MatrixView<int32_t> indices, int32_t* counts);

}  // namespace halfbyte
