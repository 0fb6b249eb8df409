#include "kernels/compressor/compressor.h"

#include <cmath>
#include <limits>

#include "kernels/rope/rope.h"
#include "kernels/row_math.h"

namespace halfbyte {
namespace {

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
void FinishEntry(const Compressor& compressor, int64_t entry, Rounding rounding, float* x) {
  const int64_t dim = compressor.dim;
  for (int64_t i = 0; i < dim; ++i) x[i] = Round(rounding, x[i]);
  const float mean = SumOfSquares(x, dim) / static_cast<float>(dim);
  const float factor = 1.0f / std::sqrt(mean + compressor.norm_eps);
  for (int64_t i = 0; i < dim; ++i) {
    x[i] = Round(rounding, compressor.norm[i] * (x[i] * factor));
  }
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
            PoolEntry(compressor, sequence.ring, entry, pooled.data());
            FinishEntry(compressor, entry, rounding, pooled.data());
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
  for (int64_t c = 0; c < dim; ++c) {
    float max = -std::numeric_limits<float>::infinity();
    const auto channel = [&](int64_t p) { return compressor.overlap && p >= own ? dim + c : c; };
    for (int64_t p = begin; p < end; ++p) {
      max = std::max(max, ring.slot(p, channels)[channels + channel(p)]);
    }
    float sum = 0;
    float weighted = 0;
    for (int64_t p = begin; p < end; ++p) {
      const float* slot = ring.slot(p, channels);
      const float weight = std::exp(slot[channels + channel(p)] - max);
      sum += weight;
      weighted += weight * slot[channel(p)];
    }
    out[c] = weighted / sum;
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
