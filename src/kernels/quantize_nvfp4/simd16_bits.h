// Integer and comparison operations on the sixteen lanes of kernels/simd16.h, for AVX2 and AVX-512.
// A lane of F32x16 is taken as fp32 or as 32 bits, as the operation says.
#pragma once

#include "kernels/simd16.h"

namespace halfbyte::HB_SIMD_NAMESPACE {

#if defined(HALFBYTE_SIMD_AVX512)

inline F32x16 FromBits(__m512i bits) { return {_mm512_castsi512_ps(bits)}; }
inline __m512i Bits(F32x16 a) { return _mm512_castps_si512(a.v); }

inline F32x16 SetBits(uint32_t x) { return FromBits(_mm512_set1_epi32(static_cast<int>(x))); }
inline F32x16 MinInt(F32x16 a, F32x16 b) { return FromBits(_mm512_min_epi32(Bits(a), Bits(b))); }
inline F32x16 MaxInt(F32x16 a, F32x16 b) { return FromBits(_mm512_max_epi32(Bits(a), Bits(b))); }
inline F32x16 And(F32x16 a, F32x16 b) { return FromBits(_mm512_and_si512(Bits(a), Bits(b))); }
inline F32x16 Or(F32x16 a, F32x16 b) { return FromBits(_mm512_or_si512(Bits(a), Bits(b))); }
inline F32x16 AddInt(F32x16 a, F32x16 b) { return FromBits(_mm512_add_epi32(Bits(a), Bits(b))); }
inline F32x16 SubInt(F32x16 a, F32x16 b) { return FromBits(_mm512_sub_epi32(Bits(a), Bits(b))); }
template <int kShift>
F32x16 ShiftRight(F32x16 a) {
  return FromBits(_mm512_srli_epi32(Bits(a), kShift));
}
template <int kShift>
F32x16 ShiftLeft(F32x16 a) {
  return FromBits(_mm512_slli_epi32(Bits(a), kShift));
}
inline F32x16 IntToFloat(F32x16 a) { return {_mm512_cvtepi32_ps(Bits(a))}; }
// `a` in lanes 0..7, `b` in lanes 8..15.
inline F32x16 SetHalves(float a, float b) {
  return {_mm512_mask_broadcastss_ps(_mm512_set1_ps(a), 0xff00, _mm_set_ss(b))};
}
// table[the low three bits] of each lane.
inline F32x16 LookUp8(const float* table, F32x16 index) {
  return {_mm512_permutexvar_ps(Bits(index), _mm512_broadcast_f32x8(_mm256_load_ps(table)))};
}
// Bits of `a` where `mask` has ones, of `b` elsewhere.
inline F32x16 SelectBits(F32x16 mask, F32x16 a, F32x16 b) {
  return FromBits(_mm512_ternarylogic_epi32(Bits(mask), Bits(a), Bits(b), 0xca));
}
// One bit for each lane.
inline uint32_t EqualInt(F32x16 a, F32x16 b) { return _mm512_cmpeq_epi32_mask(Bits(a), Bits(b)); }
inline uint32_t Greater(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
// All ones in the lanes where a > b as integers.
inline F32x16 GreaterIntMask(F32x16 a, F32x16 b) {
  return FromBits(_mm512_movm_epi32(_mm512_cmpgt_epi32_mask(Bits(a), Bits(b))));
}
// Lanes 0..255 as bytes.
inline void StoreBytes(uint8_t* out, F32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(Bits(a)));
}
// The low bytes of the lanes, whatever is above them.
inline void StoreLowBytes(uint8_t* out, F32x16 a) { StoreBytes(out, a); }
// The upper halves of the lanes.
inline void StoreUpperHalves(void* out, F32x16 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(out),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(Bits(a), 16)));
}
// Lanes 0..15 as eight bytes, even lanes in the low nibbles.
inline void StoreNibbles(uint8_t* out, F32x16 a) {
  const __m512i pairs = _mm512_or_si512(Bits(a), _mm512_srli_epi64(Bits(a), 28));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm512_cvtepi64_epi8(pairs));
}
inline __m256i MaxOfHalves(F32x16 a) {
  return _mm256_max_epi32(_mm512_castsi512_si256(Bits(a)), _mm512_extracti64x4_epi64(Bits(a), 1));
}

#else

inline F32x16 FromBits(__m256i lo, __m256i hi) {
  return {_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
}
inline __m256i LoBits(F32x16 a) { return _mm256_castps_si256(a.lo); }
inline __m256i HiBits(F32x16 a) { return _mm256_castps_si256(a.hi); }

inline F32x16 SetBits(uint32_t x) {
  const __m256i bits = _mm256_set1_epi32(static_cast<int>(x));
  return FromBits(bits, bits);
}
inline F32x16 MinInt(F32x16 a, F32x16 b) {
  return FromBits(_mm256_min_epi32(LoBits(a), LoBits(b)), _mm256_min_epi32(HiBits(a), HiBits(b)));
}
inline F32x16 MaxInt(F32x16 a, F32x16 b) {
  return FromBits(_mm256_max_epi32(LoBits(a), LoBits(b)), _mm256_max_epi32(HiBits(a), HiBits(b)));
}
inline F32x16 And(F32x16 a, F32x16 b) {
  return {_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)};
}
inline F32x16 Or(F32x16 a, F32x16 b) {
  return {_mm256_or_ps(a.lo, b.lo), _mm256_or_ps(a.hi, b.hi)};
}
inline F32x16 AddInt(F32x16 a, F32x16 b) {
  return FromBits(_mm256_add_epi32(LoBits(a), LoBits(b)), _mm256_add_epi32(HiBits(a), HiBits(b)));
}
inline F32x16 SubInt(F32x16 a, F32x16 b) {
  return FromBits(_mm256_sub_epi32(LoBits(a), LoBits(b)), _mm256_sub_epi32(HiBits(a), HiBits(b)));
}
template <int kShift>
F32x16 ShiftRight(F32x16 a) {
  return FromBits(_mm256_srli_epi32(LoBits(a), kShift), _mm256_srli_epi32(HiBits(a), kShift));
}
template <int kShift>
F32x16 ShiftLeft(F32x16 a) {
  return FromBits(_mm256_slli_epi32(LoBits(a), kShift), _mm256_slli_epi32(HiBits(a), kShift));
}
inline F32x16 IntToFloat(F32x16 a) {
  return {_mm256_cvtepi32_ps(LoBits(a)), _mm256_cvtepi32_ps(HiBits(a))};
}
// `a` in lanes 0..7, `b` in lanes 8..15.
inline F32x16 SetHalves(float a, float b) { return {_mm256_set1_ps(a), _mm256_set1_ps(b)}; }
// table[the low three bits] of each lane.
inline F32x16 LookUp8(const float* table, F32x16 index) {
  const __m256 eight = _mm256_load_ps(table);
  return {_mm256_permutevar8x32_ps(eight, LoBits(index)),
          _mm256_permutevar8x32_ps(eight, HiBits(index))};
}
// Bits of `a` where `mask` has ones, of `b` elsewhere.
inline F32x16 SelectBits(F32x16 mask, F32x16 a, F32x16 b) {
  return {_mm256_or_ps(_mm256_and_ps(mask.lo, a.lo), _mm256_andnot_ps(mask.lo, b.lo)),
          _mm256_or_ps(_mm256_and_ps(mask.hi, a.hi), _mm256_andnot_ps(mask.hi, b.hi))};
}
// One bit for each lane.
inline uint32_t MaskOf(__m256 lo, __m256 hi) {
  return static_cast<uint32_t>(_mm256_movemask_ps(lo) | _mm256_movemask_ps(hi) << 8);
}
inline uint32_t EqualInt(F32x16 a, F32x16 b) {
  return MaskOf(_mm256_castsi256_ps(_mm256_cmpeq_epi32(LoBits(a), LoBits(b))),
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(HiBits(a), HiBits(b))));
}
inline uint32_t Greater(F32x16 a, F32x16 b) {
  return MaskOf(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
}
// All ones in the lanes where a > b as integers.
inline F32x16 GreaterIntMask(F32x16 a, F32x16 b) {
  return FromBits(_mm256_cmpgt_epi32(LoBits(a), LoBits(b)),
                  _mm256_cmpgt_epi32(HiBits(a), HiBits(b)));
}
// Lanes 0..255 as bytes.
inline void StoreBytes(uint8_t* out, F32x16 a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(LoBits(a), HiBits(a)), 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(out),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
// The low bytes of the lanes, whatever is above them.
inline void StoreLowBytes(uint8_t* out, F32x16 a) { StoreBytes(out, And(a, SetBits(0xff))); }
// The upper halves of the lanes.
inline void StoreUpperHalves(void* out, F32x16 a) {
  const __m256i halves =
      _mm256_packus_epi32(_mm256_srli_epi32(LoBits(a), 16), _mm256_srli_epi32(HiBits(a), 16));
  _mm256_storeu_si256(static_cast<__m256i*>(out), _mm256_permute4x64_epi64(halves, 0xd8));
}
// Lanes 0..15 as eight bytes, even lanes in the low nibbles.
inline void StoreNibbles(uint8_t* out, F32x16 a) {
  const __m256i lo = _mm256_or_si256(LoBits(a), _mm256_srli_epi64(LoBits(a), 28));
  const __m256i hi = _mm256_or_si256(HiBits(a), _mm256_srli_epi64(HiBits(a), 28));
  // Bytes 0, 8 of each half of the register come from lo, 4, 12 from hi.
  const __m256i both = _mm256_blend_epi32(lo, _mm256_slli_epi64(hi, 32), 0xaa);
  const __m256i order =
      _mm256_setr_epi8(0, 8, -1, -1, 4, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                       -1, -1, 0, 8, -1, -1, 4, 12, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i bytes = _mm256_shuffle_epi8(both, order);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out),
                   _mm_or_si128(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
}
inline __m256i MaxOfHalves(F32x16 a) { return _mm256_max_epi32(LoBits(a), HiBits(a)); }

#endif

// min(|a|, b) for b > 0.
inline F32x16 MinMagnitude(F32x16 a, F32x16 b) {
#if defined(HALFBYTE_SIMD_AVX512)
  return {_mm512_range_ps(a.v, b.v, 0x0a)};  // the smaller magnitude, without sign
#else
  return Min(And(a, SetBits(0x7fffffff)), b);
#endif
}

// The largest lane, as integers.
inline uint32_t LargestInt(F32x16 a) {
  const __m256i eight = MaxOfHalves(a);
  __m128i max = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0x4e));
  max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(max));
}

}  // namespace halfbyte::HB_SIMD_NAMESPACE
