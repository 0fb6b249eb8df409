#include "kernels/compressor/compressor.h"

#include <algorithm>
#include <limits>

#include "kernels/elementwise/elementwise.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
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

void WriteRingRow(const Compressor& compressor, int64_t position, const float* kv,
                  const float* score, float* slot) {
  const int64_t channels = compressor.channels();
  const float* bias = compressor.position_bias + position % compressor.rate * channels;
  for (int64_t c = 0; c < channels; ++c) {
    slot[c] = kv[c];
    slot[channels + c] = score[c] + bias[c];
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

template <class Row>
void CompressInto(const Context& context, const Compressor& compressor,
                  std::span<const CompressorSequence> sequences, MatrixView<const float> kv,
                  MatrixView<const float> score, Rounding rounding, const Row& row) {
  context.pool().ParallelFor(
      static_cast<int64_t>(sequences.size()), 1, [&](int64_t begin, int64_t end) {
        std::vector<float> pooled(static_cast<size_t>(compressor.dim));
        for (int64_t s = begin; s < end; ++s) {
          const CompressorSequence& sequence = sequences[static_cast<size_t>(s)];
          for (int64_t i = 0; i < sequence.count; ++i) {
            const int64_t token = sequence.first + i;
            const int64_t position = sequence.position + i;
            WriteRingRow(compressor, position, kv.row(token), score.row(token),
                         sequence.ring.slot(position, compressor.channels()));
            if ((position + 1) % compressor.rate != 0) continue;
            const int64_t entry = position / compressor.rate;
            if (entry < sequence.first_entry) continue;
            PoolEntry(compressor, sequence.ring, entry, pooled.data());
            FinishEntry(context, compressor, entry, rounding, pooled.data());
            StoreRow(row, pooled.data(), sequence.entries.row(entry));
          }
        }
      });
}

}  // namespace

void PoolEntry(const Compressor& compressor, const CompressorRing& ring, int64_t entry,
               float* out) {
  const int64_t dim = compressor.dim;
  const int64_t channels = compressor.channels();
  const int64_t end = (entry + 1) * compressor.rate;
  const int64_t own = entry * compressor.rate;
  // Entry 0 has no previous group: those rows have weight 0.
  const int64_t begin = compressor.overlap ? std::max<int64_t>(0, own - compressor.rate) : own;
  const float* const ring_end = ring.data + ring.rows * 2 * channels;
  for (int64_t c = 0; c < dim; c += 16) {
    const int64_t count = std::min<int64_t>(16, dim - c);
    // Calls body(kv, score) with these channels of each row.
    const auto for_each_row = [&](const auto& body) {
      const float* slot = ring.slot(begin, channels);
      for (int64_t p = begin; p < end; ++p) {
        const float* kv = slot + (compressor.overlap && p >= own ? dim + c : c);
        __builtin_prefetch(kv + 32);  // rows lie apart: the hardware does not see it
        __builtin_prefetch(kv + channels + 32);
        body(LoadUpTo16(kv, count), LoadUpTo16(kv + channels, count));
        slot += 2 * channels;
        if (slot == ring_end) slot = ring.data;
      }
    };
    F32x16 max = Set16(-std::numeric_limits<float>::infinity());
    for_each_row([&](F32x16, F32x16 score) { max = Max(score, max); });
    F32x16 sum = Zero16();
    F32x16 weighted = Zero16();
    for_each_row([&](F32x16 kv, F32x16 score) {
      const F32x16 weight = Exp(Sub(score, max));
      sum = Add(sum, weight);
      weighted = Fma(weight, kv, weighted);
    });
    float pooled[16];
    Store16(pooled, Div(weighted, sum));
    std::copy_n(pooled, count, out + c);
  }
}

void Compress(const Context& context, const Compressor& compressor,
              std::span<const CompressorSequence> sequences, MatrixView<const float> kv,
              MatrixView<const float> score, Rounding rounding, const KvRow& row) {
  CompressInto(context, compressor, sequences, kv, score, rounding, row);
}

void Compress(const Context& context, const Compressor& compressor,
              std::span<const CompressorSequence> sequences, MatrixView<const float> kv,
              MatrixView<const float> score, Rounding rounding, const IndexRow& row) {
  CompressInto(context, compressor, sequences, kv, score, rounding, row);
}

}  // namespace halfbyte
