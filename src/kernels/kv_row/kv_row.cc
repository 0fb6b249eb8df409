#include "kernels/kv_row/kv_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/row_math.h"
#include "kernels/simd16.h"
#include "numerics/bf16.h"
#include "numerics/fp8_block.h"
#include "numerics/mxfp4_block.h"
#include "tensor/scale_layout.h"

namespace halfbyte {
namespace {

using namespace HB_SIMD_NAMESPACE;  // NOLINT: the baseline variants of simd16.h

// A block of up to 32 values, the rest taken as zero.
Mxfp4Block QuantizePart(const float* x, int64_t count) {
  float padded[kMxfp4Block] = {};
  std::copy_n(x, count, padded);
  return QuantizeMxfp4Block(padded);
}

}  // namespace

int64_t KvRow::bytes() const {
  if (format == KvFormat::kF32) return head_dim * 4;
  return RoundUp(fp8_dim() + rope_dim * 2 + scale_count(), 8);
}

void EncodeKvRow(const KvRow& layout, const float* row, std::byte* stored) {
  if (layout.format == KvFormat::kF32) {
    std::memcpy(stored, row, static_cast<size_t>(layout.head_dim) * sizeof(float));
    return;
  }
  const int64_t fp8_dim = layout.fp8_dim();
  std::byte* rotary = stored + fp8_dim;
  std::byte* scales = rotary + layout.rope_dim * 2;
  for (int64_t b = 0; b < layout.scale_count(); ++b) {
    const int64_t begin = b * KvRow::kBlock;
    const int64_t count = std::min(KvRow::kBlock, fp8_dim - begin);
    const uint8_t scale = Fp8BlockScale(BlockAmax(row + begin, static_cast<int>(count)));
    for (int64_t i = begin; i < begin + count; ++i) stored[i] = std::byte{Fp8Encode(row[i], scale)};
    scales[b] = std::byte{scale};
  }
  for (int64_t i = 0; i < layout.rope_dim; ++i) {
    const float x = row[fp8_dim + i];
    const Bf16 value = ToBf16(std::abs(x) < 0x1p-52f ? 0.0f : x);
    std::memcpy(rotary + i * 2, &value, sizeof(value));
  }
}

void DecodeKvRow(const KvRow& layout, const std::byte* stored, float* row) {
  if (layout.format == KvFormat::kF32) {
    std::memcpy(row, stored, static_cast<size_t>(layout.head_dim) * sizeof(float));
    return;
  }
  const int64_t fp8_dim = layout.fp8_dim();
  const std::byte* rotary = stored + fp8_dim;
  const std::byte* scales = rotary + layout.rope_dim * 2;
  for (int64_t b = 0; b < layout.scale_count(); ++b) {
    const int64_t end = std::min((b + 1) * KvRow::kBlock, fp8_dim);
    const float scale = E8m0ToFloat(static_cast<uint8_t>(scales[b]));
    int64_t i = b * KvRow::kBlock;
    for (; i + 16 <= end; i += 16) Store16(row + i, Mul(LoadE4m3(stored + i), Set16(scale)));
    for (; i < end; ++i) row[i] = E4m3ToFloat(static_cast<uint8_t>(stored[i])) * scale;
  }
  int64_t i = 0;
  for (; i + 16 <= layout.rope_dim; i += 16) Store16(row + fp8_dim + i, LoadBf16(rotary + 2 * i));
  for (; i < layout.rope_dim; ++i) {
    Bf16 value;
    std::memcpy(&value, rotary + i * 2, sizeof(value));
    row[fp8_dim + i] = ToFloat(value);
  }
}

int64_t IndexRow::scale_count() const { return (dim + kMxfp4Block - 1) / kMxfp4Block; }

int64_t IndexRow::bytes() const {
  if (format == IndexFormat::kF32) return dim * 4;
  return RoundUp(dim / 2 + scale_count(), 4);
}

void Hadamard(float* x, int64_t dim) {
  for (int64_t half = 1; half < dim; half *= 2) {
    for (int64_t base = 0; base < dim; base += 2 * half) {
      for (int64_t i = base; i < base + half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float factor = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int64_t i = 0; i < dim; ++i) x[i] *= factor;
}

void EncodeIndexRow(const IndexRow& layout, const float* row, std::byte* stored) {
  if (layout.format == IndexFormat::kF32) {
    std::memcpy(stored, row, static_cast<size_t>(layout.dim) * sizeof(float));
    return;
  }
  float x[IndexRow::kMaxMxfp4Dim];
  std::copy_n(row, layout.dim, x);
  Hadamard(x, layout.dim);
  for (int64_t b = 0; b < layout.scale_count(); ++b) {
    const int64_t begin = b * kMxfp4Block;
    const int64_t count = std::min<int64_t>(kMxfp4Block, layout.dim - begin);
    for (int64_t i = begin; i < begin + count; ++i) x[i] = RoundToBf16(x[i]);
    const Mxfp4Block block = QuantizePart(x + begin, count);
    std::memcpy(stored + begin / 2, block.codes, static_cast<size_t>(count) / 2);
    stored[layout.dim / 2 + b] = std::byte{block.scale};
  }
}

void DecodeIndexRow(const IndexRow& layout, const std::byte* stored, float* row) {
  if (layout.format == IndexFormat::kF32) {
    std::memcpy(row, stored, static_cast<size_t>(layout.dim) * sizeof(float));
    return;
  }
  const auto* codes = reinterpret_cast<const uint8_t*>(stored);
  const uint8_t* scales = codes + layout.dim / 2;
  for (int64_t i = 0; i < layout.dim; ++i) {
    row[i] = DequantizeMxfp4(UnpackE2m1(codes, i), scales[i / kMxfp4Block]);
  }
}

void RoundIndexQuery(const IndexRow& layout, float* query) {
  if (layout.format == IndexFormat::kF32) return;
  std::byte stored[IndexRow::kMaxMxfp4Dim];
  EncodeIndexRow(layout, query, stored);
  DecodeIndexRow(layout, stored, query);
}

void StoreKvRows(const Context& context, const KvRow& layout,
                 std::span<const WindowSequence> sequences, MatrixView<const float> rows) {
  // Encoding takes about eight times as long as what RowsPerPiece has in mind.
  context.pool().ParallelFor(
      CountTokens(sequences), RowsPerPiece(8 * layout.head_dim), [&](int64_t begin, int64_t end) {
        ForTokens(sequences, begin, end, [&](const WindowSequence& sequence, int64_t i) {
          EncodeKvRow(layout, rows.row(sequence.first + i),
                      sequence.rows.row(sequence.position + i));
        });
      });
}

void RoundIndexQueries(const Context& context, const IndexRow& layout, MatrixView<float> queries) {
  if (layout.format == IndexFormat::kF32) return;
  context.pool().ParallelFor(queries.rows, RowsPerPiece(8 * queries.columns),
                             [&](int64_t begin, int64_t end) {
                               for (int64_t t = begin; t < end; ++t) {
                                 for (int64_t at = 0; at < queries.columns; at += layout.dim) {
                                   RoundIndexQuery(layout, queries.row(t) + at);
                                 }
                               }
                             });
}

}  // namespace halfbyte
