// Attention over a sliding window and compressed entries, one key-value head, per-head sinks
// (deepseek-v4.md §2.4). Keys are the values.
#pragma once

#include <cstdint>
#include <span>

#include "device/context.h"
#include "kernels/kv_row/kv_row.h"
#include "kernels/token_span.h"
#include "numerics/rounding.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

struct AttentionShape {
  int64_t heads = 0;
  int64_t window = 128;
  int64_t rate = 0;  // tokens per compressed entry; 0 = window only
  KvRow row;
  const float* sinks = nullptr;  // [heads], natural-log domain, not scaled
};

// One sequence's part of the batch; its window rows and completed entries are already written.
struct AttentionSequence : TokenSpan {
  PagedRows window;          // row p = position p
  int64_t window_start = 0;  // positions before it have no row: nobody sees them
  PagedRows compressed;      // row e = entry e; unused if rate == 0
};

// Compressed entries that the query at position p may see: groups that are complete at p.
constexpr int64_t VisibleEntries(int64_t position, int64_t rate) {
  return rate == 0 ? 0 : (position + 1) / rate;
}

// Which of its visible entries each token attends to. Null indices: all of them.
struct EntrySelection {
  const int32_t* indices = nullptr;  // [tokens, stride], ascending in each row
  const int32_t* counts = nullptr;   // [tokens]
  int64_t stride = 0;
};

// q, out: [tokens, heads * head_dim]. Score = q.k / sqrt(head_dim); one softmax over the window
// (positions max(window_start, p - window + 1) .. p, ascending), the selected entries (ascending)
// and the sink, which has no value. With kBf16 the queries are bf16 numbers and the weights
// exp(score - max) are rounded to bf16, as the model's are. A token's result depends on its own
// query and rows alone.
//
// Order of operations: keys are the window's, then the entries, then the sink. A score is the
// sixteen-lane dot product of simd16.h, times the scale. Weights are added in sixteen lanes by key
// number; each output channel adds weight * value key by key with fused multiply-adds, and is
// multiplied by 1 / the sum of the weights, then rounded. With kBf16 weights are rounded before any
// of this, and q's numbers and weights below 2^-60 count as 0, because `vdpbf16ps` knows no
// subnormal numbers.
void Attention(const Context& context, const AttentionShape& shape,
               std::span<const AttentionSequence> sequences, const EntrySelection& selection,
               MatrixView<const float> q, Rounding rounding, MatrixView<float> out);

// The rule as plain loops, bit for bit.
void AttentionReference(const AttentionShape& shape, std::span<const AttentionSequence> sequences,
                        const EntrySelection& selection, MatrixView<const float> q,
                        Rounding rounding, MatrixView<float> out);

}  // namespace halfbyte
