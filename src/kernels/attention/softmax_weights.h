// Scores to weights, for the variants of AttendHeads (attention.h has the order). In an
// unnamed namespace because two files with different flags share the namespace of AVX-512.
#pragma once

#include <limits>

#include "kernels/simd16_exp.h"

namespace halfbyte::HB_SIMD_NAMESPACE {
namespace {  // NOLINT(google-build-namespaces)

// Numbers below it may not meet `vdpbf16ps`: with keys of at least 2^-52 all sums are multiples of
// 2^-126.
constexpr float kLeastBf16 = 0x1p-60f;

// To bf16, small ones to 0.
inline F32x16 RoundWeight(F32x16 weight) {
#if defined(__AVX512BF16__)
  const __mmask16 keep = _mm512_cmp_ps_mask(weight.v, _mm512_set1_ps(kLeastBf16), _CMP_NLT_UQ);
  const auto bits = reinterpret_cast<__m256i>(_mm512_maskz_cvtneps_pbh(keep, weight.v));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
#else
  return ZeroBelow(RoundBf16(weight), kLeastBf16);
#endif
}

// Turns the scores of `count` keys for each of some heads into weights in place, zeros up to a
// multiple of 16, and returns in `shares` 1 / their sum with the sink's. Writes up to scores[h *
// stride + count + 15].
template <int Heads>
void WeighKeys(const float* sinks, bool round_to_bf16, int64_t count, int64_t stride, float* scores,
               float* shares) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (int h = 0; h < Heads; ++h) {
    Store16(scores + h * stride + count, Set16(kNothing));
    scores[h * stride + count] = sinks[h];  // one more key, so that the maximum is not below it
  }
  float largest[Heads];
  for (int h = 0; h < Heads; ++h) {
    F32x16 max = Set16(kNothing);
    for (int64_t j = 0; j <= count; j += 16) max = Max(Load16(scores + h * stride + j), max);
    largest[h] = LargestLane(max);  // NaN was not seen
  }
  F32x16 max[Heads];
  F32x16 sum[Heads];
  for (int h = 0; h < Heads; ++h) {
    max[h] = Set16(largest[h]);
    sum[h] = Zero16();
  }
  for (int64_t j = 0; j <= count; j += 16) {
    for (int h = 0; h < Heads; ++h) {
      F32x16 weight = Exp(Sub(Load16(scores + h * stride + j), max[h]));
      if (round_to_bf16) weight = RoundWeight(weight);
      sum[h] = Add(sum[h], weight);
      Store16(scores + h * stride + j, weight);
    }
  }
  for (int h = 0; h < Heads; ++h) {
    scores[h * stride + count] = 0;  // the sink has no value
    shares[h] = 1.0f / Sum(sum[h]);
  }
}

}  // namespace
}  // namespace halfbyte::HB_SIMD_NAMESPACE
