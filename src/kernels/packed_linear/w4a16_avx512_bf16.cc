// W4a16 of packed_linear.h with AVX-512 BF16. A 32-bit lane of the codes holds eight columns of one
// row; shifted by 4j, its two 16-bit halves choose two bf16 numbers from a table of sixteen, which
// is why the columns are added in that order. `vdpbf16ps` adds the product of the upper halves
// first, then that of the lower ones, each rounded like a fused multiply-add.
#include <immintrin.h>

#include "kernels/packed_linear/packed_kernels.h"

namespace halfbyte::packed_kernels {
namespace {

constexpr int64_t kTileBytes = 576;
constexpr int64_t kCodeBytes = 512;
constexpr int64_t kXBytes = 128;  // a tile of bf16
// As in w4a4_avx512_vnni.cc.
constexpr int64_t kPrefetchBytes = 2 * kTileBytes;
constexpr int64_t kGemvTokens = 4;
constexpr int64_t kStripTiles = 4;
constexpr int64_t kChunkTokens = 128;
constexpr int64_t kGroup = 8;

// The permutation looks at the low five bits of a half: the table stands there twice.
inline __m512i CodeTable() {
  return _mm512_broadcast_i64x4(_mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080,
                                                  0x40c0, -0x8000, -0x4100, -0x4080, -0x4040,
                                                  -0x4000, -0x3fc0, -0x3f80, -0x3f40));
}
inline __m512bh BroadcastPair(const std::byte* p) {
  int32_t value;
  __builtin_memcpy(&value, p, sizeof(value));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(value));
}
inline __m512 Scales(const uint8_t* p) {
  const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
  const __m512i raw = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 20);
  return _mm512_mul_ps(_mm512_castsi512_ps(raw), _mm512_set1_ps(0x1p117f));
}
inline void StoreSum(const PackedArguments& a, int64_t panel, int64_t token, __m512 even,
                     __m512 odd) {
  const int64_t rows = a.rows - panel * 16;
  const auto mask = static_cast<__mmask16>(rows >= 16 ? 0xffff : (1 << rows) - 1);
  _mm512_mask_storeu_ps(a.y + token * a.rows + panel * 16, mask, _mm512_add_ps(even, odd));
}

// Pair j (0..7) of block b of a tile: columns 8 (j / 4) + ...
inline __m512bh Decode(const uint8_t* tile, int b, int j, __m512i table) {
  const __m512i codes = _mm512_load_si512(tile + b * 128 + j / 4 * 64);
  const __m512i shifted = j % 4 == 0 ? codes : _mm512_srli_epi16(codes, 4 * (j % 4));
  return reinterpret_cast<__m512bh>(_mm512_permutexvar_epi16(shifted, table));
}

template <int tokens>
void GemvPanel(const PackedArguments& a, int64_t panel) {
  const __m512i table = CodeTable();
  const uint8_t* tile = a.w + panel * a.tiles * kTileBytes;
  const std::byte* x = a.x;
  __m512 sums[tokens][2];
  for (int t = 0; t < tokens; ++t) sums[t][0] = sums[t][1] = _mm512_setzero_ps();
  for (int64_t i = 0; i < a.tiles; ++i, tile += kTileBytes, x += kXBytes) {
    for (int line = 0; line < 9; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(tile + kPrefetchBytes + line * 64), _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      __m512 sum[tokens];
      for (int t = 0; t < tokens; ++t) sum[t] = _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const __m512bh w = Decode(tile, b, j, table);
#pragma GCC unroll 4
        for (int t = 0; t < tokens; ++t) {
          sum[t] =
              _mm512_dpbf16_ps(sum[t], w, BroadcastPair(x + t * a.x_row_bytes + 32 * b + 4 * j));
        }
      }
      const __m512 scales = Scales(tile + kCodeBytes + b * 16);
      for (int t = 0; t < tokens; ++t) {
        sums[t][b % 2] = _mm512_fmadd_ps(sum[t], scales, sums[t][b % 2]);
      }
    }
  }
  for (int t = 0; t < tokens; ++t) StoreSum(a, panel, t, sums[t][0], sums[t][1]);
}

// A strip of one panel taken apart once, and the sums of a chunk of tokens over the strips.
struct Strip {
  alignas(64) uint8_t values[kStripTiles * 4 * 512];
  alignas(64) float scales[kStripTiles * 4 * 16];
  alignas(64) float sums[kChunkTokens][2][16];
};

void Unpack(const uint8_t* tile, int64_t tiles, Strip& strip) {
  const __m512i table = CodeTable();
  uint8_t* values = strip.values;
  float* scales = strip.scales;
  for (int64_t i = 0; i < tiles; ++i, tile += kTileBytes) {
    // The next strip travels while this one is multiplied.
    for (int line = 0; line < 9; ++line) {
      const uint8_t* next = tile + kStripTiles * kTileBytes + line * 64;
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
    }
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b, values += 512, scales += 16) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const __m512bh w = Decode(tile, b, j, table);
        _mm512_store_si512(values + j * 64, reinterpret_cast<__m512i>(w));
      }
      _mm512_store_ps(scales, Scales(tile + kCodeBytes + b * 16));
    }
  }
}

template <int tokens>
void StripTimesGroup(Strip& strip, int64_t tiles, const std::byte* x, int64_t x_row_bytes,
                     int64_t first_token) {
  __m512 sums[tokens][2];
  for (int t = 0; t < tokens; ++t) {
    for (int p = 0; p < 2; ++p) sums[t][p] = _mm512_load_ps(strip.sums[first_token + t][p]);
  }
  const uint8_t* values = strip.values;
  const float* scales = strip.scales;
  for (int64_t i = 0; i < tiles; ++i, x += kXBytes, values += 4 * 512, scales += 4 * 16) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      __m512 sum[tokens];
      for (int t = 0; t < tokens; ++t) sum[t] = _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const auto w = reinterpret_cast<__m512bh>(_mm512_load_si512(values + b * 512 + j * 64));
#pragma GCC unroll 8
        for (int t = 0; t < tokens; ++t) {
          sum[t] = _mm512_dpbf16_ps(sum[t], w, BroadcastPair(x + t * x_row_bytes + 32 * b + 4 * j));
        }
      }
      const __m512 scale = _mm512_load_ps(scales + b * 16);
      for (int t = 0; t < tokens; ++t) {
        sums[t][b % 2] = _mm512_fmadd_ps(sum[t], scale, sums[t][b % 2]);
      }
    }
  }
  for (int t = 0; t < tokens; ++t) {
    for (int p = 0; p < 2; ++p) _mm512_store_ps(strip.sums[first_token + t][p], sums[t][p]);
  }
}

void StripTimesTokens(Strip& strip, int64_t tiles, const std::byte* x, int64_t x_row_bytes,
                      int64_t tokens) {
  int64_t t = 0;
  for (; t + kGroup <= tokens; t += kGroup) {
    StripTimesGroup<kGroup>(strip, tiles, x + t * x_row_bytes, x_row_bytes, t);
  }
  if (t + 4 <= tokens) {
    StripTimesGroup<4>(strip, tiles, x + t * x_row_bytes, x_row_bytes, t);
    t += 4;
  }
  if (t + 2 <= tokens) {
    StripTimesGroup<2>(strip, tiles, x + t * x_row_bytes, x_row_bytes, t);
    t += 2;
  }
  if (t < tokens) StripTimesGroup<1>(strip, tiles, x + t * x_row_bytes, x_row_bytes, t);
}

void GemmPanel(const PackedArguments& a, int64_t panel, int64_t first, int64_t tokens,
               Strip& strip) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int p = 0; p < 2; ++p) _mm512_store_ps(strip.sums[t][p], _mm512_setzero_ps());
  }
  for (int64_t i = 0; i < a.tiles; i += kStripTiles) {
    const int64_t tiles = a.tiles - i < kStripTiles ? a.tiles - i : kStripTiles;
    Unpack(a.w + (panel * a.tiles + i) * kTileBytes, tiles, strip);
    StripTimesTokens(strip, tiles, a.x + first * a.x_row_bytes + i * kXBytes, a.x_row_bytes,
                     tokens);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    StoreSum(a, panel, first + t, _mm512_load_ps(strip.sums[t][0]),
             _mm512_load_ps(strip.sums[t][1]));
  }
}

}  // namespace

void W4a16Avx512Bf16(const PackedArguments& a) {
  if (a.tokens <= kGemvTokens) {
    constexpr void (*kGemv[])(const PackedArguments&, int64_t) = {GemvPanel<1>, GemvPanel<2>,
                                                                  GemvPanel<3>, GemvPanel<4>};
    if (a.tokens == 0) return;
    for (int64_t p = a.panel_begin; p < a.panel_end; ++p) kGemv[a.tokens - 1](a, p);
    return;
  }
  Strip strip;
  for (int64_t first = 0; first < a.tokens; first += kChunkTokens) {
    const int64_t tokens = a.tokens - first < kChunkTokens ? a.tokens - first : kChunkTokens;
    for (int64_t p = a.panel_begin; p < a.panel_end; ++p) GemmPanel(a, p, first, tokens, strip);
  }
}

}  // namespace halfbyte::packed_kernels
