// Sixteen fp32 lanes with the same results on every instruction set: one AVX-512 register, two AVX2
// registers, or an array. A kernel body written on F32x16 is compiled once per instruction set, in
// a file with its own -m flags that includes the body; the bits of its results do not depend on
// which. Every operation is one IEEE operation per lane; Sum adds in a fixed tree.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(HALFBYTE_SIMD_AVX512) || defined(HALFBYTE_SIMD_AVX2)
#include <immintrin.h>
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
inline F32x16 Load16(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void Store16(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
inline F32x16 Add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 Mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

#elif defined(HALFBYTE_SIMD_AVX2)

struct F32x16 {
  __m256 lo, hi;
};
inline F32x16 Zero16() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32x16 Set16(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32x16 Load16(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
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
inline F32x16 Load16(const float* p) {
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

#endif

// Lane i + lane i+8, then +4, +2, +1.
inline float Sum(F32x16 a) {
  float lanes[16];
  Store16(lanes, a);
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

}  // namespace halfbyte::HB_SIMD_NAMESPACE
