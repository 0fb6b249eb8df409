// The two accumulators of packed_linear.h for 16 rows of one token, in AVX-512: what a variant of
// panel_driver.h says of its sums where a part is a panel. In an unnamed namespace for the reason
// that it gives.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace halfbyte::packed_kernels {
namespace {  // NOLINT(google-build-namespaces)

struct ParitySums {
  struct Sums {
    __m512 parity[2];
  };

  template <int panels>
  static void Store(const Sums (&sums)[panels], float* y, int64_t rows) {
    for (int p = 0; p < panels && rows > 0; ++p, y += 16, rows -= 16) {
      const auto mask = static_cast<__mmask16>(rows < 16 ? (1 << rows) - 1 : 0xffff);
      _mm512_mask_storeu_ps(y, mask, _mm512_add_ps(sums[p].parity[0], sums[p].parity[1]));
    }
  }
};

}  // namespace
}  // namespace halfbyte::packed_kernels
