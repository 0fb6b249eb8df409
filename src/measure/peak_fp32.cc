#include <immintrin.h>

#include "measure/peak_loop_body.h"

namespace halfbyte {
namespace {

struct Fp32 {
  using Register = __m256;
  using Lane = float;
  static Register Start(int64_t x) { return _mm256_set1_ps(static_cast<float>(x)); }
  static Register AddProducts(Register sum) {
    const Register ones = _mm256_set1_ps(1);
    return _mm256_fmadd_ps(ones, ones, sum);
  }
};

}  // namespace

const PeakLoop kFp32PeakLoop = {"vfmadd231ps", 2.0 * 8 * kPeakSums, RunPeakLoop<Fp32>};

}  // namespace halfbyte
