#include <immintrin.h>

#include "measure/peak_loops.h"

namespace halfbyte {
namespace {

void Run(int64_t rounds) {
  const __m512i a = _mm512_set1_epi8(7);
  const __m512i b = _mm512_set1_epi8(-3);
  __m512i sums[kPeakSums] = {};
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
  }
  for (const __m512i& sum : sums) asm volatile("" ::"v"(sum));  // or the loop is dropped
}

}  // namespace

const PeakLoop kInt8Avx512PeakLoop = {"vpdpbusd", 2.0 * 64 * kPeakSums, Run};

}  // namespace halfbyte
