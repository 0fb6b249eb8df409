#include <immintrin.h>

#include "measure/peak_loops.h"

namespace halfbyte {
namespace {

void Run(int64_t rounds) {
  const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3fc0));  // 1.5
  const __m512bh b = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f40));  // 0.75
  __m512 sums[kPeakSums] = {};
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, a, b);
  }
  for (const __m512& sum : sums) asm volatile("" ::"v"(sum));  // or the loop is dropped
}

}  // namespace

const PeakLoop kBf16Avx512PeakLoop = {"vdpbf16ps", 2.0 * 32 * kPeakSums, Run};

}  // namespace halfbyte
