// A tile of 4-bit weights as bf16 numbers, for the variants with bf16 instructions. A 32-bit lane
// of the codes holds eight columns of one row; shifted by 4j, its two 16-bit halves choose two bf16
// numbers from a table of sixteen, which is why kBf16AndInt16 holds the activations in that order.
// In an unnamed namespace for the reason that panel_driver.h gives.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/packed_linear/packed_kernels.h"
#include "kernels/packed_linear/packed_tile.h"
#include "kernels/packed_linear/parity_sums.h"

namespace halfbyte::packed_kernels {
namespace {  // NOLINT(google-build-namespaces)

struct Bf16Tile : PackedTile, ParitySums {
  static constexpr int kBlocks = 4;
  static constexpr int64_t kXTileBytes = kBlocks * 32;

  struct Packed {
    const uint8_t* tile;

    explicit Packed(const uint8_t* tile_in) : tile(tile_in) {}
    // Pair j (0..7) of block b. The permutation looks at the low five bits of a half: the table
    // stands there twice.
    __m512i Pair(int b, int j) const {
      const __m512i table = _mm512_broadcast_i64x4(
          _mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, -0x8000,
                            -0x4100, -0x4080, -0x4040, -0x4000, -0x3fc0, -0x3f80, -0x3f40));
      const __m512i codes = _mm512_load_si512(tile + kCodes + b * 128 + j / 4 * 64);
      const __m512i shifted = j % 4 == 0 ? codes : _mm512_srli_epi16(codes, 4 * (j % 4));
      return _mm512_permutexvar_epi16(shifted, table);
    }
    __m512 Scales(int b) const {
      const auto* bytes = reinterpret_cast<const __m128i*>(tile + b * 16);
      const __m512i raw = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_load_si128(bytes)), 20);
      return _mm512_mul_ps(_mm512_castsi512_ps(raw), _mm512_set1_ps(0x1p117f));
    }
  };

  struct Unpacked {
    alignas(64) uint8_t pairs[4 * 512];
    alignas(64) float scales[4 * 16];

    __m512i Pair(int b, int j) const { return _mm512_load_si512(pairs + b * 512 + j * 64); }
    __m512 Scales(int b) const { return _mm512_load_ps(scales + b * 16); }
    __m512 Add(int b, __m512 dots, __m512 sum) const {
      return _mm512_fmadd_ps(dots, Scales(b), sum);
    }
  };

  static void Unpack(const uint8_t* tile, Unpacked& out) {
    const Packed packed(tile);
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        _mm512_store_si512(out.pairs + b * 512 + j * 64, packed.Pair(b, j));
      }
      _mm512_store_ps(out.scales + b * 16, packed.Scales(b));
    }
  }
};

// The same product for kInt16 from operands of kBf16AndInt16.
inline PackedArguments Int16Part(PackedArguments a) {
  a.x += a.tiles * Bf16Tile::kXTileBytes;
  return a;
}

}  // namespace
}  // namespace halfbyte::packed_kernels
