// W4a4 of packed_linear.h with AVX2, eight rows a register. Biased bytes as in w4a4_avx512_vnni.cc;
// four pair sums of at most 2 * 24 * 12 fit in 16 bits, so one widening addition a block is enough.
#include <immintrin.h>

#include "kernels/packed_linear/packed_kernels.h"

namespace halfbyte::packed_kernels {
namespace {

constexpr int64_t kTileBytes = 576;
constexpr int64_t kCodeBytes = 512;
constexpr int64_t kXBytes = 96;  // Int8Tile
constexpr int64_t kBias = 64;
constexpr int64_t kScale = 80;
constexpr int64_t kPrefetchBytes = 2 * kTileBytes;

inline __m256i Broadcast32(const std::byte* p) {
  int32_t value;
  __builtin_memcpy(&value, p, sizeof(value));
  return _mm256_set1_epi32(value);
}
inline __m256 BroadcastFloat(const std::byte* p) {
  float value;
  __builtin_memcpy(&value, p, sizeof(value));
  return _mm256_set1_ps(value);
}
inline __m256 RawScales(const uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 20));
}

// The four vectors of biased bytes of block b, rows 8 * half and on.
inline void Decode(const uint8_t* tile, int b, int half, __m256i* w) {
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m256i low = _mm256_set1_epi8(15);
  for (int v = 0; v < 2; ++v) {
    const __m256i codes =
        _mm256_load_si256(reinterpret_cast<const __m256i*>(tile + b * 128 + v * 64 + half * 32));
    w[2 * v] = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, low));
    w[2 * v + 1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), low));
  }
}

inline __m256 Step(const __m256i* w, __m256 scales, const std::byte* x, int b, __m256 sum) {
  const __m256i first = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], Broadcast32(x + 16 * b)),
                                         _mm256_maddubs_epi16(w[1], Broadcast32(x + 16 * b + 4)));
  const __m256i second = _mm256_add_epi16(_mm256_maddubs_epi16(w[2], Broadcast32(x + 16 * b + 8)),
                                          _mm256_maddubs_epi16(w[3], Broadcast32(x + 16 * b + 12)));
  const __m256i pairs = _mm256_add_epi16(first, second);
  const __m256i dot = _mm256_add_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)),
                                       Broadcast32(x + kBias + 4 * b));
  const __m256 factor = _mm256_mul_ps(scales, BroadcastFloat(x + kScale + 4 * b));
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), factor, sum);
}

// Tokens `first` and on. More than two would not fit into sixteen registers.
template <int tokens>
void Panel(const PackedArguments& a, int64_t panel, int64_t first) {
  const uint8_t* tile = a.w + panel * a.tiles * kTileBytes;
  const std::byte* x = a.x + first * a.x_row_bytes;
  __m256 sums[tokens][2][2];  // [token][half][parity]
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < 2; ++h) sums[t][h][0] = sums[t][h][1] = _mm256_setzero_ps();
  }
  for (int64_t i = 0; i < a.tiles; ++i, tile += kTileBytes, x += kXBytes) {
    for (int line = 0; line < 9; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(tile + kPrefetchBytes + line * 64), _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        __m256i w[4];
        Decode(tile, b, h, w);
        const __m256 scales = RawScales(tile + kCodeBytes + b * 16 + h * 8);
#pragma GCC unroll 2
        for (int t = 0; t < tokens; ++t) {
          sums[t][h][b % 2] = Step(w, scales, x + t * a.x_row_bytes, b, sums[t][h][b % 2]);
        }
      }
    }
  }
  for (int t = 0; t < tokens; ++t) {
    alignas(32) float out[16];
    for (int h = 0; h < 2; ++h) {
      const __m256 sum = _mm256_add_ps(sums[t][h][0], sums[t][h][1]);
      _mm256_store_ps(out + 8 * h, _mm256_mul_ps(sum, _mm256_set1_ps(0x1p57f)));
    }
    const int64_t rows = a.rows - panel * 16;
    __builtin_memcpy(a.y + (first + t) * a.rows + panel * 16, out,
                     static_cast<size_t>(rows < 16 ? rows : 16) * sizeof(float));
  }
}

}  // namespace

void W4a4Avx2(const PackedArguments& a) {
  for (int64_t p = a.panel_begin; p < a.panel_end; ++p) {
    int64_t t = 0;
    for (; t + 2 <= a.tokens; t += 2) Panel<2>(a, p, t);
    if (t < a.tokens) Panel<1>(a, p, t);
  }
}

}  // namespace halfbyte::packed_kernels
