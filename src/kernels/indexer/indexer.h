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
};

struct IndexerSequence : TokenSpan {
  PagedRows keys;
};

// q: [tokens, heads * dim]; weights: [tokens, heads], factors included.
// Score of entry t: sum_h weights_h * ReLU(q_h . k_t). Each token gets its min(top_k, visible) best
// entries, ties to the lower entry: indices [tokens, top_k] ascending, then -1; counts [tokens].
void SelectEntries(const Context& context, const Indexer& indexer,
                   std::span<const IndexerSequence> sequences, MatrixView<const float> q,
                   MatrixView<const float> weights, MatrixView<int32_t> indices, int32_t* counts);

}  // namespace halfbyte
