// Sixteen fp32 lanes with the same results on every instruction set: one AVX-512 register, two AVX2
// registers, or an array. A kernel body written on F32x16 is compiled once per instruction set, in
// a file with its own -m flags that includes the body; the bits of its results do not depend on
// which. Every operation is one IEEE operation per lane; Sum adds in a fixed tree.
// Such a body calls only what this header and its own namespace define (and compile-time
// constants): an inline function of another header, compiled here with -mavx512f and not inlined,
// could become the copy that the linker keeps for the whole program.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// Files without such a macro get the baseline, AVX2.
#if !defined(HALFBYTE_SIMD_SCALAR) && !defined(HALFBYTE_SIMD_AVX512) && !defined(HALFBYTE_SIMD_AVX2)
#define HALFBYTE_SIMD_AVX2
#endif

#if defined(HALFBYTE_SIMD_AVX512) || defined(HALFBYTE_SIMD_AVX2)
#include <immintrin.h>
#else
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/fp16.h"
#endif

// The macro HALFBYTE_SIMD_{AVX512,AVX2,SCALAR} is set for one source file by its CMakeLists.txt.
#if defined(HALFBYTE_SIMD_AVX512)
#define HB_SIMD_NAMESPACE simd_avx512
#elif defined(HALFBYTE_SIMD_AVX2)
#define HB_SIMD_NAMESPACE simd_avx2
#else
#define HB_SIMD_NAMESPACE simd_scalar
#endif

namespace halfbyte::HB_SIMD_NAMESPACE {

#if defined(HALFBYTE_SIMD_AVX512)

struct F32x16 {
  __m512 v;
};
inline F32x16 Zero16() { return {_mm512_setzero_ps()}; }
inline F32x16 Set16(float x) { return {_mm512_set1_ps(x)}; }
inline F32x16 Load16(const void* p) { return {_mm512_loadu_ps(p)}; }
inline void Store16(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
inline F32x16 Add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 Mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

inline F32x16 Sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 Div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a < b ? a : b, so a NaN in b stays; Max likewise.
inline F32x16 Min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32x16 Max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
// 2^n for integers n in [-126, 127]; zero for -127, infinity for 128; anything for NaN.
inline F32x16 PowerOfTwo(F32x16 n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
// To the nearest bf16, ties to even; NaN becomes quiet.
inline F32x16 RoundBf16(F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return {_mm512_castsi512_ps(
      _mm512_and_si512(_mm512_mask_mov_epi32(rounded, nan, quiet), _mm512_set1_epi32(-0x10000)))};
}

// Lanes whose magnitude is below `least` become 0; NaN stays.
inline F32x16 ZeroBelow(F32x16 a, float least) {
  const __mmask16 keep = _mm512_cmp_ps_mask(_mm512_abs_ps(a.v), _mm512_set1_ps(least), _CMP_NLT_UQ);
  return {_mm512_maskz_mov_ps(keep, a.v)};
}

inline F32x16 LoadBf16(const void* p) {
  const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline F32x16 LoadF16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
// As fp16 the bits of an E4M3 number mean its 2^-8th part, subnormals included; 0x7f is NaN.
inline F32x16 LoadE4m3(const void* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
  const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(-0x4080));
  return {_mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, nan)), _mm512_set1_ps(256.0f))};
}
// Sixteen codes of two a byte, low nibble first.
inline F32x16 LoadE2m1(const void* p) {
  const __m512i both = _mm512_castsi128_si512(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  const __m512i spread = _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), both);
  const __m512i code = _mm512_srlv_epi32(
      spread, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
  // The permutation looks at the low four bits only.
  return {_mm512_permutexvar_ps(
      code, _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6))};
}

inline float LargestLane(F32x16 a) { return _mm512_reduce_max_ps(a.v); }  // without NaN
// Lane i + lane i+8, then +4, +2, +1.
inline float Sum(F32x16 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// factor * Sum of four vectors, the steps of the tree side by side.
inline void SumFour(const F32x16* a, float factor, float* out) {
  const auto halves = [](__m512 x, __m512 y) {  // [x's 8 sums, y's 8 sums]
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  };
  const __m512 ab = halves(a[0].v, a[1].v);
  const __m512 cd = halves(a[2].v, a[3].v);
  const __m512 four =
      _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
  const __m512i heads = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  const __m128 sums = _mm512_castps512_ps128(_mm512_permutexvar_ps(heads, one));
  _mm_storeu_ps(out, _mm_mul_ps(sums, _mm_set1_ps(factor)));
}

#elif defined(HALFBYTE_SIMD_AVX2)

struct F32x16 {
  __m256 lo, hi;
};
inline F32x16 Zero16() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32x16 Set16(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32x16 Load16(const void* p) {
  const auto* floats = static_cast<const float*>(p);
  return {_mm256_loadu_ps(floats), _mm256_loadu_ps(floats + 8)};
}
inline void Store16(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline F32x16 Add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F32x16 Mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

inline F32x16 Sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F32x16 Div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
// a < b ? a : b, so a NaN in b stays; Max likewise.
inline F32x16 Min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
inline F32x16 Max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline __m256 PowerOfTwo(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
// 2^n for integers n in [-126, 127]; zero for -127, infinity for 128; anything for NaN.
inline F32x16 PowerOfTwo(F32x16 n) { return {PowerOfTwo(n.lo), PowerOfTwo(n.hi)}; }
inline __m256 RoundBf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
  const __m256i chosen = _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan));
  return _mm256_castsi256_ps(_mm256_and_si256(chosen, _mm256_set1_epi32(-0x10000)));
}
// To the nearest bf16, ties to even; NaN becomes quiet.
inline F32x16 RoundBf16(F32x16 a) { return {RoundBf16(a.lo), RoundBf16(a.hi)}; }

inline __m256 ZeroBelow(__m256 a, float least) {
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
  return _mm256_and_ps(a, _mm256_cmp_ps(magnitude, _mm256_set1_ps(least), _CMP_NLT_UQ));
}
// Lanes whose magnitude is below `least` become 0; NaN stays.
inline F32x16 ZeroBelow(F32x16 a, float least) {
  return {ZeroBelow(a.lo, least), ZeroBelow(a.hi, least)};
}

inline F32x16 LoadBf16(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves));
  const __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
inline F32x16 LoadF16(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
// As fp16 the bits of an E4M3 number mean its 2^-8th part, subnormals included; 0x7f is NaN.
inline F32x16 LoadE4m3(const void* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
  const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
  const __m256i half = _mm256_or_si256(
      nan, _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(-0x4080)));
  const __m256 factor = _mm256_set1_ps(256.0f);
  return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), factor),
          _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), factor)};
}
inline __m256 DecodeE2m1(uint32_t codes) {
  const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(codes)),
                                         _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  // The permutation looks at the low three bits only.
  const __m256 magnitude =
      _mm256_permutevar8x32_ps(_mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6), code);
  const __m256 sign =
      _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(code, 28)), _mm256_set1_ps(-0.0f));
  return _mm256_xor_ps(magnitude, sign);
}
// Sixteen codes of two a byte, low nibble first.
inline F32x16 LoadE2m1(const void* p) {
  uint32_t codes[2];
  std::memcpy(codes, p, sizeof(codes));
  return {DecodeE2m1(codes[0]), DecodeE2m1(codes[1])};
}

inline float LargestLane(F32x16 a) {  // without NaN
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
// Lane i + lane i+8, then +4, +2, +1.
inline float Sum(F32x16 a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// factor * Sum of four vectors, the steps of the tree side by side.
inline void SumFour(const F32x16* a, float factor, float* out) {
  const auto quarters = [](F32x16 x, F32x16 y) {  // [x's 4 sums, y's 4 sums]
    const __m256 x8 = _mm256_add_ps(x.lo, x.hi);
    const __m256 y8 = _mm256_add_ps(y.lo, y.hi);
    return _mm256_add_ps(_mm256_permute2f128_ps(x8, y8, 0x20),
                         _mm256_permute2f128_ps(x8, y8, 0x31));
  };
  const __m256 ac = quarters(a[0], a[2]);
  const __m256 bd = quarters(a[1], a[3]);
  // In each half: two sums of one vector, then two of the next.
  const __m256 two =
      _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xee));
  const __m256 one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
  const __m128 sums = _mm_shuffle_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1),
                                     _MM_SHUFFLE(2, 0, 2, 0));
  _mm_storeu_ps(out, _mm_mul_ps(sums, _mm_set1_ps(factor)));
}

#else

struct F32x16 {
  float v[16];
};
inline F32x16 Set16(float x) {
  F32x16 r;
  for (float& lane : r.v) lane = x;
  return r;
}
inline F32x16 Zero16() { return Set16(0.0f); }
inline F32x16 Load16(const void* p) {
  F32x16 r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
inline void Store16(float* p, F32x16 a) { std::memcpy(p, a.v, sizeof(a.v)); }
inline F32x16 Add(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
  return a;
}
inline F32x16 Mul(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.v[i] *= b.v[i];
  return a;
}
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  for (int i = 0; i < 16; ++i) c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  return c;
}

inline F32x16 Sub(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.v[i] -= b.v[i];
  return a;
}
inline F32x16 Div(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.v[i] /= b.v[i];
  return a;
}
// a < b ? a : b, so a NaN in b stays; Max likewise.
inline F32x16 Min(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
inline F32x16 Max(F32x16 a, F32x16 b) {
  for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
// 2^n for integers n in [-126, 127]; zero for -127, infinity for 128; anything for NaN.
inline F32x16 PowerOfTwo(F32x16 n) {
  for (float& lane : n.v) {
    if (lane == lane) lane = lane <= -127 ? 0.0f : std::ldexp(1.0f, static_cast<int>(lane));
  }
  return n;
}
// To the nearest bf16, ties to even; NaN becomes quiet.
inline F32x16 RoundBf16(F32x16 a) {
  for (float& lane : a.v) lane = RoundToBf16(lane);
  return a;
}

// Lanes whose magnitude is below `least` become 0; NaN stays.
inline F32x16 ZeroBelow(F32x16 a, float least) {
  for (float& lane : a.v) lane = std::fabs(lane) < least ? 0.0f : lane;
  return a;
}

inline float LargestLane(F32x16 a) {  // without NaN
  float largest = a.v[0];
  for (const float lane : a.v) largest = lane > largest ? lane : largest;
  return largest;
}
// Lane i + lane i+8, then +4, +2, +1.
inline float Sum(F32x16 a) {
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
  }
  return a.v[0];
}
inline void SumFour(const F32x16* a, float factor, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = Sum(a[i]) * factor;
}

inline F32x16 LoadBf16(const void* p) {
  Bf16 bits[16];
  std::memcpy(bits, p, sizeof(bits));
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = ToFloat(bits[i]);
  return r;
}
inline F32x16 LoadF16(const void* p) {
  Fp16 bits[16];
  std::memcpy(bits, p, sizeof(bits));
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = ToFloat(bits[i]);
  return r;
}
inline F32x16 LoadE4m3(const void* p) {
  const auto* bits = static_cast<const uint8_t*>(p);
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = E4m3ToFloat(bits[i]);
  return r;
}
// Sixteen codes of two a byte, low nibble first.
inline F32x16 LoadE2m1(const void* p) {
  const auto* packed = static_cast<const uint8_t*>(p);
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = E2m1ToFloat(UnpackE2m1(packed, i));
  return r;
}

#endif

}  // namespace halfbyte::HB_SIMD_NAMESPACE
