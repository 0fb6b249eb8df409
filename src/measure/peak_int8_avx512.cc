#include <immintrin.h>

#include "measure/peak_loop_body.h"

namespace halfbyte {
namespace {

struct Int8Avx512 {
  using Register = __m512i;
  using Lane = int32_t;
  static Register Start(int64_t x) { return _mm512_set1_epi32(static_cast<int32_t>(x)); }
  static Register AddProducts(Register sum) {
    const Register ones = _mm512_set1_epi8(1);
    return _mm512_dpbusd_epi32(sum, ones, ones);
  }
};

}  // namespace

const PeakLoop kInt8Avx512PeakLoop = {"vpdpbusd", 2.0 * 64 * kPeakSums, RunPeakLoop<Int8Avx512>};

}  // namespace halfbyte
