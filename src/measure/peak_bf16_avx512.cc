#include <immintrin.h>

#include "measure/peak_loop_body.h"

namespace halfbyte {
namespace {

struct Bf16Avx512 {
  using Register = __m512;
  using Lane = float;
  static Register Start(int64_t x) { return _mm512_set1_ps(static_cast<float>(x)); }
  static Register AddProducts(Register sum) {
    const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
    return _mm512_dpbf16_ps(sum, ones, ones);
  }
};

}  // namespace

const PeakLoop kBf16Avx512PeakLoop = {"vdpbf16ps", 2.0 * 32 * kPeakSums, RunPeakLoop<Bf16Avx512>};

}  // namespace halfbyte
