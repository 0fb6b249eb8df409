// W4a16 of packed_linear.h with AMX: a block of 16 columns is one TDPBF16PS, 16 rows of weights
// times up to 16 tokens. It adds even columns, odd columns, then both, which does not show as a
// block's sum does not round. (The instruction could take 32 columns, but two blocks have two
// scales.) The sums pass through memory to meet their scales.
#include <immintrin.h>

#include "kernels/packed_linear/bf16_tile.h"
#include "kernels/packed_linear/panel_driver.h"

namespace halfbyte::packed_kernels {
namespace {

// From so many tokens on; fewer go to W4a16Avx512Vnni.
constexpr int64_t kMinTokens = 5;

// As LDTILECFG takes it: the sums of two pairs of blocks in registers 0 to 3; activations in 4 and
// 6, weights in 5 and 7.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 32, 64, 32, 64};
  uint8_t rows[16] = {};

  explicit TileConfig(int64_t tokens) {
    const auto t = static_cast<uint8_t>(tokens);
    const uint8_t of_each[8] = {t, t, t, t, t, 8, t, 8};
    for (int i = 0; i < 8; ++i) rows[i] = of_each[i];
  }
};
static_assert(sizeof(TileConfig) == 64);

struct AmxDot : Bf16Tile {
  static constexpr int kParts = 1;
  static constexpr int64_t kStripTiles = 4;
  static constexpr int64_t kChunkTokens = 128;
  static constexpr int kGroup = 16;

  // Sums of two blocks of a tile, of one parity.
  struct TwoSums {
    alignas(64) float sums[2][kGroup][16];
  };

  // The intrinsics of g++ 12 do not say that they read memory, hence the barrier.
  template <int half>
  static void Dots(const Unpacked& unpacked, const std::byte* x, int64_t x_row_bytes, int parity,
                   TwoSums& out) {
    const uint8_t* w = unpacked.pairs + parity * 512;
    x += parity * 32;
    asm volatile("" ::: "memory");
    _tile_loadd(4, x, x_row_bytes);
    _tile_loadd(5, w, 64);
    _tile_loadd(6, x + 64, x_row_bytes);
    _tile_loadd(7, w + 1024, 64);
    if constexpr (half == 0) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_dpbf16ps(0, 4, 5);
      _tile_dpbf16ps(1, 6, 7);
      _tile_stored(0, out.sums[0], 64);
      _tile_stored(1, out.sums[1], 64);
    } else {
      _tile_zero(2);
      _tile_zero(3);
      _tile_dpbf16ps(2, 4, 5);
      _tile_dpbf16ps(3, 6, 7);
      _tile_stored(2, out.sums[0], 64);
      _tile_stored(3, out.sums[1], 64);
    }
    asm volatile("" ::: "memory");
  }

  // The blocks of one parity of a strip.
  template <int tokens>
  static void MultiplyParity(const Unpacked* unpacked, int64_t tiles, const std::byte* x,
                             int64_t x_row_bytes, int parity, TokenSums<AmxDot>* token_sums) {
    TwoSums two[2];
    const auto dots = [&](int64_t i) {
      const std::byte* at = x + i * kXTileBytes;
      if (i % 2 == 0) {
        Dots<0>(unpacked[i], at, x_row_bytes, parity, two[0]);
      } else {
        Dots<1>(unpacked[i], at, x_row_bytes, parity, two[1]);
      }
    };
    __m512 sums[tokens];
    for (int t = 0; t < tokens; ++t) sums[t] = token_sums[t].parts[0].parity[parity];
    dots(0);
    for (int64_t i = 0; i < tiles; ++i) {
      if (i + 1 < tiles) dots(i + 1);
      for (int b = 0; b < 2; ++b) {
        const __m512 scales = unpacked[i].Scales(2 * b + parity);
#pragma GCC unroll 16
        for (int t = 0; t < tokens; ++t) {
          sums[t] = _mm512_fmadd_ps(_mm512_load_ps(two[i % 2].sums[b][t]), scales, sums[t]);
        }
      }
    }
    for (int t = 0; t < tokens; ++t) token_sums[t].parts[0].parity[parity] = sums[t];
  }

  // The instruction works on as many rows as the largest group has, and reads so many.
  template <int tokens>
  static void MultiplyStrip(const Unpacked* unpacked, int64_t tiles, const std::byte* x,
                            int64_t x_row_bytes, TokenSums<AmxDot>* sums) {
    for (int parity = 0; parity < 2; ++parity) {
      MultiplyParity<tokens>(unpacked, tiles, x, x_row_bytes, parity, sums);
    }
  }
};

}  // namespace

void W4a16Amx(const PackedArguments& a) {
  PackedArguments part = a;
  for (int64_t first = 0; first < a.tokens; first += part.tokens) {
    part.tokens = a.tokens - first < AmxDot::kChunkTokens ? a.tokens - first : AmxDot::kChunkTokens;
    part.x = a.x + first * a.x_row_bytes;
    part.y = a.y + first * a.rows;
    if (part.tokens < kMinTokens) {
      W4a16Avx512Vnni(Int16Part(part));
      continue;
    }
    const int64_t groups = (part.tokens + AmxDot::kGroup - 1) / AmxDot::kGroup;
    const TileConfig config((part.tokens + groups - 1) / groups);
    _tile_loadconfig(&config);
    RunGemm<AmxDot>(part);
  }
  _tile_release();
}

}  // namespace halfbyte::packed_kernels
