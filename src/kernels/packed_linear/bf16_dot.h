// Panels of unpacked tiles times bf16 activations by `vdpbf16ps`, for more than a few tokens. Two
// panels at once: a processor that starts one such instruction a cycle also loads only one vector a
// cycle, so every number of the activations that is loaded has to serve twice. A Tile, beside what
// panel_driver.h says, has
//
//   kBlocks                      of 16 columns
//   Unpacked::Pair(b, j)         pair j (0..7) of block b: 16 rows of two bf16 numbers
//   Unpacked::Add(b, dots, sum)  sum + the block's dot products times its scales
//
// Pairs are added in ascending order, from 0. In an unnamed namespace for the reason that
// panel_driver.h gives.
#pragma once

#include <immintrin.h>

#include "kernels/packed_linear/packed_tile.h"
#include "kernels/packed_linear/panel_driver.h"
#include "kernels/packed_linear/parity_sums.h"

namespace halfbyte::packed_kernels {
namespace {  // NOLINT(google-build-namespaces)

template <class Tile, int panels>
struct Bf16Dot : Tile {
  using OnePanel = Bf16Dot<Tile, 1>;
  using Tile::kBlocks, Tile::kXTileBytes;
  using typename Tile::Unpacked;
  static constexpr int kPanels = panels;
  static constexpr int kParts = panels;
  static constexpr int64_t kStripTiles = 16 / kBlocks;
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
#pragma GCC unroll 12
      for (int t = 0; t < tokens; ++t) sums[t][p] = tile[p].Add(b, dots[t][p], sums[t][p]);
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
        for (int b = parity; b < kBlocks; b += 2) {
          AddBlock(unpacked + i * panels, b, x + i * kXTileBytes, x_row_bytes, sums);
        }
      }
      for (int t = 0; t < tokens; ++t) {
        for (int p = 0; p < panels; ++p) token_sums[t].parts[p].parity[parity] = sums[t][p];
      }
    }
  }
};

}  // namespace
}  // namespace halfbyte::packed_kernels
