// DecodeKvRowPairs of kv_row.h.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/kv_row/kv_row.h"

namespace halfbyte::simd_avx512 {
namespace {

constexpr int64_t kAhead = 8;  // rows

void Prefetch(const std::byte* row, int64_t bytes) {
  for (int64_t i = 0; i <= bytes; i += 64) __builtin_prefetch(row + i);
}

// 32 numbers of one block. E4M3 bits taken as fp16 are the number's 2^-8th part.
__m512i DecodeE4m3(const std::byte* stored, int exponent) {
  const __m512i wide =
      _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(stored)));
  const __m512i magnitude = _mm512_set1_epi16(0x7f);
  const __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(wide, magnitude), magnitude);
  const __m512i bits = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(-0x4080));
  const __m512i half = _mm512_mask_mov_epi16(bits, nan, _mm512_set1_epi16(0x7fff));
  __m512 first = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
  __m512 second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
  int lifted = exponent + 8;
  if (lifted > 254) {  // no fp32 number: in two steps
    first = _mm512_mul_ps(first, _mm512_set1_ps(256.0f));
    second = _mm512_mul_ps(second, _mm512_set1_ps(256.0f));
    lifted = exponent;
  }
  const __m512 scale = _mm512_castsi512_ps(_mm512_set1_epi32(lifted << 23));
  const __m512i upper = _mm512_castps_si512(_mm512_mul_ps(first, scale));
  const __m512i lower = _mm512_castps_si512(_mm512_mul_ps(second, scale));
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(lower, 16), upper);
}

// 32 numbers.
__m512i DecodeBf16(const std::byte* stored) {
  const auto* halves = reinterpret_cast<const __m256i*>(stored);
  const __m512i first = _mm512_cvtepu16_epi32(_mm256_loadu_si256(halves));
  const __m512i second = _mm512_cvtepu16_epi32(_mm256_loadu_si256(halves + 1));
  return _mm512_or_si512(_mm512_slli_epi32(first, 16), second);
}

}  // namespace

void DecodeKvRowPairs(const KvRow& layout, const std::byte* const* stored, int64_t count,
                      uint32_t* rows) {
  const int64_t fp8_dim = layout.head_dim - layout.rope_dim;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) Prefetch(stored[i + kAhead], fp8_dim + layout.rope_dim * 2);
    const std::byte* rotary = stored[i] + fp8_dim;
    const std::byte* scales = rotary + layout.rope_dim * 2;
    for (int64_t k = 0; k < fp8_dim; k += 32, rows += 16) {
      const int exponent = static_cast<int>(scales[k / KvRow::kBlock]);
      _mm512_storeu_si512(rows, DecodeE4m3(stored[i] + k, exponent));
    }
    for (int64_t k = 0; k < layout.rope_dim; k += 32, rows += 16) {
      _mm512_storeu_si512(rows, DecodeBf16(rotary + k * 2));
    }
  }
}

}  // namespace halfbyte::simd_avx512
