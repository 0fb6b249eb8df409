#include "kernels/compressor/compressor.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/elementwise/elementwise.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/row_math.h"
#include "kernels/simd16_exp.h"

namespace halfbyte {
namespace {

using namespace HB_SIMD_NAMESPACE;  // NOLINT: the baseline variants of simd16.h

// The others are 0.
F32x16 LoadUpTo16(const float* p, int64_t count) {
  if (count == 16) return Load16(p);
  float some[16] = {};
  std::copy_n(p, count, some);
  return Load16(some);
}

void StoreRow(const KvRow& layout, const float* row, std::byte* out) {
  EncodeKvRow(layout, row, out);
}
void StoreRow(const IndexRow& layout, const float* row, std::byte* out) {
  EncodeIndexRow(layout, row, out);
}

// One step's products, and where their rows and those before lie.
struct Products {
  const Compressor& compressor;
  MatrixView<const float> kv;
  MatrixView<const float> score;

  const float* bias(int64_t position) const {
    return compressor.position_bias + position % compressor.rate * compressor.channels();
  }
};

// A row of a group, from the channels that the entry takes on. Rows of the ring have no bias: it is
// in their score.
struct GroupRow {
  const float* kv = nullptr;
  const float* score = nullptr;
  const float* bias = nullptr;

  F32x16 Score(int64_t c, int64_t count) const {
    const F32x16 raw = LoadUpTo16(score + c, count);
    return bias == nullptr ? raw : Add(raw, LoadUpTo16(bias + c, count));
  }
};

void FindRows(const Products& products, const CompressorSequence& sequence, int64_t entry,
              std::vector<GroupRow>& rows) {
  const Compressor& compressor = products.compressor;
  const int64_t own = entry * compressor.rate;
  // Entry 0 has no previous group: those rows have weight 0.
  const int64_t begin = compressor.overlap ? std::max<int64_t>(0, own - compressor.rate) : own;
  rows.clear();
  for (int64_t p = begin; p < own + compressor.rate; ++p) {
    const int64_t offset = compressor.overlap && p >= own ? compressor.dim : 0;
    if (p < sequence.position) {
      const float* slot = sequence.ring.slot(p, compressor.channels()) + offset;
      rows.push_back({slot, slot + compressor.channels(), nullptr});
    } else {
      const int64_t token = sequence.first + p - sequence.position;
      rows.push_back({products.kv.row(token) + offset, products.score.row(token) + offset,
                      products.bias(p) + offset});
    }
  }
}

void PoolRows(std::span<const GroupRow> rows, int64_t dim, float* out) {
  for (int64_t c = 0; c < dim; c += 16) {
    const int64_t count = std::min<int64_t>(16, dim - c);
    F32x16 max = Set16(-std::numeric_limits<float>::infinity());
    for (const GroupRow& row : rows) {
      __builtin_prefetch(row.kv + c + 32);  // rows lie apart: the hardware does not see it
      __builtin_prefetch(row.score + c + 32);
      max = Max(row.Score(c, count), max);
    }
    F32x16 sum = Zero16();
    F32x16 weighted = Zero16();
    for (const GroupRow& row : rows) {
      const F32x16 weight = Exp(Sub(row.Score(c, count), max));
      sum = Add(sum, weight);
      weighted = Fma(weight, LoadUpTo16(row.kv + c, count), weighted);
    }
    float pooled[16];
    Store16(pooled, Div(weighted, sum));
    std::copy_n(pooled, count, out + c);
  }
}

// Round, norm, rotate at the group's first position.
void FinishEntry(const Context& context, const Compressor& compressor, int64_t entry,
                 Rounding rounding, float* x) {
  const int64_t dim = compressor.dim;
  const MatrixView<float> row{x, 1, dim};
  RoundRows(context, rounding, row);
  RmsNorm(context, row, compressor.norm, compressor.norm_eps, rounding, row);
  static thread_local RopeAngles angles;
  const int64_t position = entry * compressor.rate;
  angles.Set(compressor.rope_frequencies, {&position, 1});
  RotatePairs(angles.cos.data(), angles.sin.data(), angles.pairs, /*inverse=*/false, rounding,
              x + dim - 2 * angles.pairs);
}

struct Entry {
  const CompressorSequence* sequence = nullptr;
  int64_t number = 0;
};

std::vector<Entry> CompletedEntries(const Compressor& compressor,
                                    std::span<const CompressorSequence> sequences) {
  std::vector<Entry> entries;
  for (const CompressorSequence& sequence : sequences) {
    const int64_t begin = std::max(sequence.first_entry, sequence.position / compressor.rate);
    const int64_t end = (sequence.position + sequence.count) / compressor.rate;
    for (int64_t entry = begin; entry < end; ++entry) entries.push_back({&sequence, entry});
  }
  return entries;
}

// The last rows of each sequence, as many as its ring has.
void WriteRings(const Context& context, const Products& products,
                std::span<const CompressorSequence> sequences) {
  const int64_t channels = products.compressor.channels();
  context.pool().ParallelFor(
      CountTokens(sequences), RowsPerPiece(2 * channels), [&](int64_t begin, int64_t end) {
        ForTokens(sequences, begin, end, [&](const CompressorSequence& sequence, int64_t i) {
          if (i < sequence.count - sequence.ring.rows) return;
          const int64_t position = sequence.position + i;
          const float* kv = products.kv.row(sequence.first + i);
          const float* score = products.score.row(sequence.first + i);
          const float* bias = products.bias(position);
          float* slot = sequence.ring.slot(position, channels);
          for (int64_t c = 0; c < channels; ++c) {
            slot[c] = kv[c];
            slot[channels + c] = score[c] + bias[c];
          }
        });
      });
}

template <class Row>
void CompressInto(const Context& context, const Products& products,
                  std::span<const CompressorSequence> sequences, Rounding rounding,
                  const Row& row) {
  const Compressor& compressor = products.compressor;
  const std::vector<Entry> entries = CompletedEntries(compressor, sequences);
  // An entry's group may begin in the ring, so the ring is written afterwards.
  context.pool().ParallelFor(std::ssize(entries),
                             RowsPerPiece(compressor.group_rows() * compressor.dim),
                             [&](int64_t begin, int64_t end) {
                               std::vector<GroupRow> rows;
                               std::vector<float> pooled(static_cast<size_t>(compressor.dim));
                               for (int64_t i = begin; i < end; ++i) {
                                 const auto& [sequence, entry] = entries[static_cast<size_t>(i)];
                                 FindRows(products, *sequence, entry, rows);
                                 PoolRows(rows, compressor.dim, pooled.data());
                                 FinishEntry(context, compressor, entry, rounding, pooled.data());
                                 StoreRow(row, pooled.data(), sequence->entries.row(entry));
                               }
                             });
  WriteRings(context, products, sequences);
}

}  // namespace

void Compress(const Context& context, const Compressor& compressor,
              std::span<const CompressorSequence> sequences, MatrixView<const float> kv,
              MatrixView<const float> score, Rounding rounding, const KvRow& row) {
  CompressInto(context, {compressor, kv, score}, sequences, rounding, row);
}

void Compress(const Context& context, const Compressor& compressor,
              std::span<const CompressorSequence> sequences, MatrixView<const float> kv,
              MatrixView<const float> score, Rounding rounding, const IndexRow& row) {
  CompressInto(context, {compressor, kv, score}, sequences, rounding, row);
}

}  // namespace halfbyte
