// Pools groups of tokens into compressed entries: softmax over the group's rows per channel
// (deepseek-v4.md §2.5). With overlap (rate 4) an entry pools its own group and the previous one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/context.h"
#include "kernels/kv_row/kv_row.h"
#include "kernels/token_span.h"
#include "numerics/rounding.h"
#include "tensor/tensor_view.h"

namespace halfbyte {

// Channels per token row: dim, or 2*dim with overlap, where [0, dim) serves the next group's entry
// and [dim, 2*dim) the own group's.
struct Compressor {
  int64_t rate = 4;
  bool overlap = false;
  int64_t dim = 0;
  const float* position_bias = nullptr;  // "ape" [rate, channels], added to the gate scores
  const float* norm = nullptr;           // [dim]
  float norm_eps = 1e-6f;
  std::span<const double> rope_frequencies;  // of the last 2 * size() dimensions

  int64_t channels() const { return overlap ? 2 * dim : dim; }
  int64_t group_rows() const { return overlap ? 2 * rate : rate; }  // rows that an entry pools
};

// What one sequence keeps between calls: the last ring_rows token rows, position p in slot
// p % ring_rows, each as kv [channels] then score [channels] (bias included), fp32.
struct CompressorRing {
  float* data = nullptr;
  int64_t rows = 0;  // >= group_rows()
  float* slot(int64_t position, int64_t channels) const {
    return data + position % rows * 2 * channels;
  }
};

struct CompressorSequence : TokenSpan {
  CompressorRing ring;
  PagedRows entries;
  int64_t first_entry = 0;  // those before it are stored already and stay as they are
};

// kv, score: [tokens, channels], the products of this batch. For each token that completes a group
// the entry is pooled, rounded, normed (kernels/rms_norm), rotated at the group's first position
// and stored; the second form stores indexer keys. Then the rings get the batch's last rows.
// Entries are shared out, whoever they belong to, and chunks of any size give the same bits.
//
// Pooling, for each channel with the group's rows in ascending order: weight = exp(score - largest
// score) (kernels/simd16_exp.h), the sum of the weights, the sum of weight * kv in fused
// multiply-adds, and their quotient.
void Compress(const Context& context, const Compressor& compressor,
              std::span<const CompressorSequence> sequences, MatrixView<const float> kv,
              MatrixView<const float> score, Rounding rounding, const KvRow& row);
void Compress(const Context& context, const Compressor& compressor,
              std::span<const CompressorSequence> sequences, MatrixView<const float> kv,
              MatrixView<const float> score, Rounding rounding, const IndexRow& row);

// Pooling as plain loops, bit for bit, from a ring that holds the entry's rows: out [dim].
void PoolEntryReference(const Compressor& compressor, const CompressorRing& ring, int64_t entry,
                        float* out);

}  // namespace halfbyte
