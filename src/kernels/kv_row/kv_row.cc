#include "kernels/kv_row/kv_row.h"

#include <algorithm>
#include <bit>
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

// E4m3FromFloat (numerics/e4m3.h) of eight numbers, without its branches.
__m256i E4m3FromFloats(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(magnitude, _mm256_set1_epi32(0x7ffff)), odd);
  __m256i code = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
  code = _mm256_min_epi32(code, _mm256_set1_epi32(0x7e));
  const __m256 shifted = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(0x1p14f));
  const __m256i subnormal = _mm256_and_si256(_mm256_castps_si256(shifted), _mm256_set1_epi32(0xf));
  const auto above = [&](int32_t bound) {
    return _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(bound));
  };
  code = _mm256_blendv_epi8(subnormal, code, above(std::bit_cast<int32_t>(0x1p-6f) - 1));
  code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), above(0x7f800000));
  return _mm256_or_si256(code, sign);
}

// Sixteen numbers below 2^16 as words.
__m256i Words(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

void EncodeE4m3(F32x16 x, std::byte* stored) {
  const __m256i words = Words(E4m3FromFloats(x.lo), E4m3FromFloats(x.hi));
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(stored), bytes);
}

void EncodeBf16(F32x16 x, std::byte* stored) {
  const F32x16 rounded = RoundBf16(x);
  const auto upper = [](__m256 v) { return _mm256_srli_epi32(_mm256_castps_si256(v), 16); };
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(stored),
                      Words(upper(rounded.lo), upper(rounded.hi)));
}

// BlockAmax of a block of any length.
float LargestMagnitude(const float* x, int64_t count) {
  const int64_t whole = count / 16 * 16;
  F32x16 largest = Zero16();
  for (int64_t i = 0; i < whole; i += 16) {
    const F32x16 values = Load16(x + i);
    largest = Max(values, Max(Mul(Set16(-1.0f), values), largest));
  }
  const float rest = BlockAmax(x + whole, static_cast<int>(count - whole));
  return std::max(LargestLane(largest), rest);
}

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
    const uint8_t scale = Fp8BlockScale(LargestMagnitude(row + begin, count));
    const F32x16 divisor = Set16(E8m0ToFloat(scale));
    int64_t i = begin;
    for (; i + 16 <= begin + count; i += 16) EncodeE4m3(Div(Load16(row + i), divisor), stored + i);
    for (; i < begin + count; ++i) stored[i] = std::byte{Fp8Encode(row[i], scale)};
    scales[b] = std::byte{scale};
  }
  int64_t i = 0;
  for (; i + 16 <= layout.rope_dim; i += 16) {
    EncodeBf16(ZeroBelow(Load16(row + fp8_dim + i), 0x1p-52f), rotary + i * 2);
  }
  for (; i < layout.rope_dim; ++i) {
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
  int64_t i = 0;
  for (; i + 16 <= layout.dim; i += 16) {
    const F32x16 scale = Set16(E8m0ToFloat(scales[i / kMxfp4Block]));
    Store16(row + i, Mul(LoadE2m1(codes + i / 2), scale));
  }
  for (; i < layout.dim; ++i) {
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
