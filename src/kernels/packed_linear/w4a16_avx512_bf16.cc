// W4a16 of packed_linear.h with AVX-512 BF16, for more than a few tokens. A block's sum does not
// round, so the order of its terms, and how `vdpbf16ps` treats subnormal numbers, does not show.
// Two panels at once: a processor that starts one such instruction a cycle also loads only one
// vector a cycle, so every number of the activations that is loaded has to serve twice.
#include <immintrin.h>

#include "kernels/packed_linear/bf16_tile.h"
#include "kernels/packed_linear/panel_driver.h"

namespace halfbyte::packed_kernels {
namespace {

template <int panels>
struct Bf16Dot : Bf16Tile {
  using OnePanel = Bf16Dot<1>;
  static constexpr int kPanels = panels;
  static constexpr int kParts = panels;
  static constexpr int64_t kStripTiles = 4;
  static constexpr int64_t kChunkTokens = 128;
  static constexpr int kGroup = 12 / panels;

  // Adds block b of a tile of each panel.
  template <int tokens>
  [[gnu::always_inline]] static inline void AddBlock(const Unpacked* tile, int b,
                                                     const std::byte* x, int64_t x_row_bytes,
                                                     __m512 (&sums)[tokens][panels]) {
    __m512 dots[tokens][panels];
    for (auto& dot : dots) {
      for (__m512& d : dot) d = _mm512_setzero_ps();
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      __m512bh w[panels];
      for (int p = 0; p < panels; ++p) w[p] = reinterpret_cast<__m512bh>(tile[p].Pair(b, j));
#pragma GCC unroll 12
      for (int t = 0; t < tokens; ++t) {
        const __m512i pair = _mm512_set1_epi32(LoadInt32(x + t * x_row_bytes + 32 * b + 4 * j));
        for (int p = 0; p < panels; ++p) {
          dots[t][p] = _mm512_dpbf16_ps(dots[t][p], w[p], reinterpret_cast<__m512bh>(pair));
        }
      }
    }
    for (int p = 0; p < panels; ++p) {
      const __m512 scales = tile[p].Scales(b);
#pragma GCC unroll 12
      for (int t = 0; t < tokens; ++t) sums[t][p] = _mm512_fmadd_ps(dots[t][p], scales, sums[t][p]);
    }
  }

  // First the even, then the odd blocks of a strip.
  template <int tokens>
  static void MultiplyStrip(const Unpacked* unpacked, int64_t tiles, const std::byte* x,
                            int64_t x_row_bytes, TokenSums<Bf16Dot>* token_sums) {
    for (int parity = 0; parity < 2; ++parity) {
      __m512 sums[tokens][panels];
      for (int t = 0; t < tokens; ++t) {
        for (int p = 0; p < panels; ++p) sums[t][p] = token_sums[t].parts[p].parity[parity];
      }
      for (int64_t i = 0; i < tiles; ++i) {
        const std::byte* at = x + i * kXTileBytes;
        AddBlock(unpacked + i * panels, parity, at, x_row_bytes, sums);
        AddBlock(unpacked + i * panels, parity + 2, at, x_row_bytes, sums);
      }
      for (int t = 0; t < tokens; ++t) {
        for (int p = 0; p < panels; ++p) token_sums[t].parts[p].parity[parity] = sums[t][p];
      }
    }
  }
};

}  // namespace

void W4a16Avx512Bf16(const PackedArguments& a) {
  constexpr int64_t kMinTokens = 8;
  if (a.tokens < kMinTokens) {
    W4a16Avx512Vnni(Int16Part(a));
  } else {
    RunPanels<Bf16Dot<2>>(a);
  }
}

}  // namespace halfbyte::packed_kernels
