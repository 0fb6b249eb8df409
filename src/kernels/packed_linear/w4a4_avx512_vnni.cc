// W4a4 of packed_linear.h with AVX-512 VNNI and VBMI. A code becomes the byte 2 * value + 12, from
// 0 to 24, so that unsigned times signed bytes serve; each dot product starts at -12 * the sum of
// the activations to take the 12 away again.
#include <immintrin.h>

#include "kernels/packed_linear/packed_kernels.h"

namespace halfbyte::packed_kernels {
namespace {

constexpr int64_t kTileBytes = 576;
constexpr int64_t kCodeBytes = 512;
constexpr int64_t kXBytes = 96;  // Int8Tile
constexpr int64_t kBias = 64;
constexpr int64_t kScale = 80;

// Two tiles ahead: the hardware's own prefetcher stops at every page.
constexpr int64_t kPrefetchBytes = 2 * kTileBytes;
// Up to this many tokens take the codes apart in registers; more share unpacked bytes.
constexpr int64_t kGemvTokens = 4;
// Of the many: a strip of K and a chunk of tokens whose data stay in the first-level cache.
constexpr int64_t kStripTiles = 8;
constexpr int64_t kChunkTokens = 128;
constexpr int64_t kGroup = 8;  // tokens whose sums live in registers

// The low four bits of every byte choose; the permutation looks at six.
inline __m512i CodeTable() {
  return _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}
inline __m512i Broadcast32(const std::byte* p) {
  int32_t value;
  __builtin_memcpy(&value, p, sizeof(value));
  return _mm512_set1_epi32(value);
}
inline __m512 BroadcastFloat(const std::byte* p) {
  float value;
  __builtin_memcpy(&value, p, sizeof(value));
  return _mm512_set1_ps(value);
}
// Scale bytes as fp32 numbers of 2^-117 their value.
inline __m512 RawScales(const uint8_t* p) {
  const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 20));
}
inline void StoreSum(const PackedArguments& a, int64_t panel, int64_t token, __m512 even,
                     __m512 odd) {
  const __m512 sum = _mm512_mul_ps(_mm512_add_ps(even, odd), _mm512_set1_ps(0x1p57f));
  const int64_t rows = a.rows - panel * 16;
  const auto mask = static_cast<__mmask16>(rows >= 16 ? 0xffff : (1 << rows) - 1);
  _mm512_mask_storeu_ps(a.y + token * a.rows + panel * 16, mask, sum);
}

// What the operand at x (block b of a tile) adds for 16 rows whose biased bytes are w.
inline __m512 Step(const __m512i* w, __m512 scales, const std::byte* x, int b, __m512 sum) {
  __m512i dot = Broadcast32(x + kBias + 4 * b);
  dot = _mm512_dpbusd_epi32(dot, w[0], Broadcast32(x + 16 * b));
  dot = _mm512_dpbusd_epi32(dot, w[1], Broadcast32(x + 16 * b + 4));
  dot = _mm512_dpbusd_epi32(dot, w[2], Broadcast32(x + 16 * b + 8));
  dot = _mm512_dpbusd_epi32(dot, w[3], Broadcast32(x + 16 * b + 12));
  const __m512 factor = _mm512_mul_ps(scales, BroadcastFloat(x + kScale + 4 * b));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, sum);
}

// The four vectors of biased bytes of block b.
inline void Decode(const uint8_t* tile, int b, __m512i table, __m512i* w) {
  for (int v = 0; v < 2; ++v) {
    const __m512i codes = _mm512_load_si512(tile + b * 128 + v * 64);
    w[2 * v] = _mm512_permutexvar_epi8(codes, table);
    w[2 * v + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table);
  }
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
      __m512i w[4];
      Decode(tile, b, table, w);
      const __m512 scales = RawScales(tile + kCodeBytes + b * 16);
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t) {
        sums[t][b % 2] = Step(w, scales, x + t * a.x_row_bytes, b, sums[t][b % 2]);
      }
    }
  }
  for (int t = 0; t < tokens; ++t) StoreSum(a, panel, t, sums[t][0], sums[t][1]);
}

// A strip of one panel taken apart once, and the sums of a chunk of tokens over the strips.
struct Strip {
  alignas(64) uint8_t bytes[kStripTiles * 4 * 256];
  alignas(64) float scales[kStripTiles * 4 * 16];
  alignas(64) float sums[kChunkTokens][2][16];
};

void Unpack(const uint8_t* tile, int64_t tiles, Strip& strip) {
  const __m512i table = CodeTable();
  uint8_t* bytes = strip.bytes;
  float* scales = strip.scales;
  for (int64_t i = 0; i < tiles; ++i, tile += kTileBytes) {
    // The next strip travels while this one is multiplied.
    for (int line = 0; line < 9; ++line) {
      const uint8_t* next = tile + kStripTiles * kTileBytes + line * 64;
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
    }
    for (int b = 0; b < 4; ++b, bytes += 256, scales += 16) {
      __m512i w[4];
      Decode(tile, b, table, w);
      for (int v = 0; v < 4; ++v) _mm512_store_si512(bytes + v * 64, w[v]);
      _mm512_store_ps(scales, RawScales(tile + kCodeBytes + b * 16));
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
  const uint8_t* bytes = strip.bytes;
  const float* scales = strip.scales;
  for (int64_t i = 0; i < tiles; ++i, x += kXBytes, bytes += 4 * 256, scales += 4 * 16) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      __m512i w[4];
      for (int v = 0; v < 4; ++v) w[v] = _mm512_load_si512(bytes + b * 256 + v * 64);
      const __m512 scale = _mm512_load_ps(scales + b * 16);
#pragma GCC unroll 8
      for (int t = 0; t < tokens; ++t) {
        sums[t][b % 2] = Step(w, scale, x + t * x_row_bytes, b, sums[t][b % 2]);
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

void W4a4Avx512Vnni(const PackedArguments& a) {
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
