#include <immintrin.h>

#include "measure/peak_loops.h"

namespace halfbyte {
namespace {

void Run(int64_t rounds) {
  const __m256 a = _mm256_set1_ps(1.5f);
  const __m256 b = _mm256_set1_ps(0.75f);
  __m256 sums[kPeakSums] = {};
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(a, b, sum);
  }
  for (const __m256& sum : sums) asm volatile("" ::"x"(sum));  // or the loop is dropped
}

}  // namespace

const PeakLoop kFp32PeakLoop = {"vfmadd231ps", 2.0 * 8 * kPeakSums, Run};

}  // namespace halfbyte
