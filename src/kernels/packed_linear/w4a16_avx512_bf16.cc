// W4a16 of packed_linear.h with AVX-512 BF16. A block's sum does not round, so the order of its
// terms, and how `vdpbf16ps` treats subnormal numbers, does not show.
#include <immintrin.h>

#include "kernels/packed_linear/bf16_tile.h"
#include "kernels/packed_linear/panel_driver.h"

namespace halfbyte::packed_kernels {
namespace {

struct Bf16Dot : Bf16Tile {
  static constexpr int64_t kPrefetchBytes = 2 * kTileBytes;
  static constexpr int kGemvTokens = 4;
  static constexpr int64_t kStripTiles = 4;
  static constexpr int64_t kChunkTokens = 128;
  static constexpr int kGroup = 8;

  template <int tokens, class Tile>
  [[gnu::always_inline]] static inline void Add(const Tile& tile, int /*part*/, const std::byte* x,
                                                int64_t x_row_bytes, Sums* sums) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      __m512 dot[tokens];
      for (int t = 0; t < tokens; ++t) dot[t] = _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const auto w = reinterpret_cast<__m512bh>(tile.Pair(b, j));
#pragma GCC unroll 8
        for (int t = 0; t < tokens; ++t) {
          const int32_t pair = LoadInt32(x + t * x_row_bytes + 32 * b + 4 * j);
          dot[t] = _mm512_dpbf16_ps(dot[t], w, reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)));
        }
      }
      const __m512 scales = tile.Scales(b);
      for (int t = 0; t < tokens; ++t) {
        __m512& sum = sums[t].parity[b % 2];
        sum = _mm512_fmadd_ps(dot[t], scales, sum);
      }
    }
  }
};

}  // namespace

void W4a16Avx512Bf16(const PackedArguments& a) { RunPanels<Bf16Dot>(a); }

}  // namespace halfbyte::packed_kernels
