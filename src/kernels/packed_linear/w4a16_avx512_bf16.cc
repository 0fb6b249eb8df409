// W4a16 of packed_linear.h with AVX-512 BF16. A 32-bit lane of the codes holds eight columns of one
// row; shifted by 4j, its two 16-bit halves choose two bf16 numbers from a table of sixteen, which
// is why kBf16 holds the activations in that order. A block's sum does not round, so the order of
// its terms, and how `vdpbf16ps` treats subnormal numbers, does not show.
#include <immintrin.h>

#include "kernels/packed_linear/packed_tile.h"
#include "kernels/packed_linear/panel_driver.h"

namespace halfbyte::packed_kernels {
namespace {

struct Bf16Dot : PackedTile {
  static constexpr int64_t kXTileBytes = 128;
  static constexpr int64_t kPrefetchBytes = 2 * kTileBytes;
  static constexpr int kGemvTokens = 4;
  static constexpr int64_t kStripTiles = 4;
  static constexpr int64_t kChunkTokens = 128;
  static constexpr int kGroup = 8;
  static constexpr int kParts = 1;

  struct Sums {
    __m512 parity[2];
  };

  struct Packed {
    const uint8_t* tile;

    explicit Packed(const uint8_t* tile_in) : tile(tile_in) {}
    // Pair j (0..7) of block b. The permutation looks at the low five bits of a half: the table
    // stands there twice.
    __m512bh Pair(int b, int j) const {
      const __m512i table = _mm512_broadcast_i64x4(
          _mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, -0x8000,
                            -0x4100, -0x4080, -0x4040, -0x4000, -0x3fc0, -0x3f80, -0x3f40));
      const __m512i codes = _mm512_load_si512(tile + b * 128 + j / 4 * 64);
      const __m512i shifted = j % 4 == 0 ? codes : _mm512_srli_epi16(codes, 4 * (j % 4));
      return reinterpret_cast<__m512bh>(_mm512_permutexvar_epi16(shifted, table));
    }
    __m512 Scales(int b) const {
      const auto* bytes = reinterpret_cast<const __m128i*>(tile + kCodeBytes + b * 16);
      const __m512i raw = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_load_si128(bytes)), 20);
      return _mm512_mul_ps(_mm512_castsi512_ps(raw), _mm512_set1_ps(0x1p117f));
    }
  };

  struct Unpacked {
    alignas(64) uint8_t pairs[4 * 512];
    alignas(64) float scales[4 * 16];

    __m512bh Pair(int b, int j) const {
      return reinterpret_cast<__m512bh>(_mm512_load_si512(pairs + b * 512 + j * 64));
    }
    __m512 Scales(int b) const { return _mm512_load_ps(scales + b * 16); }
  };

  static void Unpack(const uint8_t* tile, Unpacked& out) {
    const Packed packed(tile);
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        _mm512_store_si512(out.pairs + b * 512 + j * 64,
                           reinterpret_cast<__m512i>(packed.Pair(b, j)));
      }
      _mm512_store_ps(out.scales + b * 16, packed.Scales(b));
    }
  }

  template <int tokens, class Tile>
  [[gnu::always_inline]] static inline void Add(const Tile& tile, int /*part*/, const std::byte* x,
                                                int64_t x_row_bytes, Sums* sums) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      __m512 dot[tokens];
      for (int t = 0; t < tokens; ++t) dot[t] = _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const __m512bh w = tile.Pair(b, j);
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

  static void Store(const Sums (&sums)[1], float* y, int64_t rows) {
    const auto mask = static_cast<__mmask16>((1 << rows) - 1);
    _mm512_mask_storeu_ps(y, mask, _mm512_add_ps(sums[0].parity[0], sums[0].parity[1]));
  }
};

}  // namespace

void W4a16Avx512Bf16(const PackedArguments& a) { RunPanels<Bf16Dot>(a); }

}  // namespace halfbyte::packed_kernels
