// The arithmetics of packed_linear.h in integers, with AVX2, eight rows a register. Biased bytes as
// in int_avx512_vnni.cc; eight products of at most 24 * 128 fit in 16 bits, so one widening
// addition a block and plane is enough.
#include <immintrin.h>

#include "kernels/packed_linear/packed_tile.h"
#include "kernels/packed_linear/panel_driver.h"

namespace halfbyte::packed_kernels {
namespace {

template <int planes>
struct IntAvx2 : IntPackedTile<planes> {
  using Tile = IntPackedTile<planes>;
  using Tile::kBias, Tile::kCodes, Tile::kScale, Tile::kTileBytes;
  static constexpr int64_t kPrefetchBytes = 12 * kTileBytes;
  static constexpr int kGemvTokens = 1;
  static constexpr int64_t kStripTiles = 8;
  static constexpr int64_t kChunkTokens = 128;
  static constexpr int kGroup = 4;
  static constexpr int kParts = 2;  // of eight rows

  struct Sums {
    __m256 parity[2];
  };

  struct Packed {
    const uint8_t* tile;

    explicit Packed(const uint8_t* tile_in) : tile(tile_in) {}
    // The biased bytes of columns 4v to 4v + 3 of block b.
    __m256i Bytes(int b, int v, int part) const {
      const __m256i table = _mm256_broadcastsi128_si256(BiasedCodes());
      const uint8_t* at = tile + kCodes + b * 128 + v / 2 * 64 + part * 32;
      const __m256i codes = _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
      const __m256i shifted = v % 2 == 0 ? codes : _mm256_srli_epi16(codes, 4);
      return _mm256_shuffle_epi8(table, _mm256_and_si256(shifted, _mm256_set1_epi8(15)));
    }
    // As fp32 numbers of 2^-117 their value.
    __m256 Scales(int b, int part) const {
      const auto* bytes = reinterpret_cast<const __m128i*>(tile + b * 16 + part * 8);
      const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes));
      return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 20));
    }
  };

  struct Unpacked {
    alignas(64) uint8_t bytes[2][4 * 128];
    alignas(64) float scales[2][4 * 8];

    __m256i Bytes(int b, int v, int part) const {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes[part] + b * 128 + v * 32));
    }
    __m256 Scales(int b, int part) const { return _mm256_load_ps(scales[part] + b * 8); }
  };

  static void Unpack(const uint8_t* tile, Unpacked& out) {
    const Packed packed(tile);
    for (int part = 0; part < 2; ++part) {
      for (int b = 0; b < 4; ++b) {
        auto* block = reinterpret_cast<__m256i*>(out.bytes[part] + b * 128);
        for (int v = 0; v < 4; ++v) _mm256_store_si256(block + v, packed.Bytes(b, v, part));
        _mm256_store_ps(out.scales[part] + b * 8, packed.Scales(b, part));
      }
    }
  }

  // What a block adds whose pairs of products, of each plane, are `pairs`.
  static __m256 Step(const __m256i* pairs, __m256 scales, const std::byte* x, int b, __m256 sum) {
    __m256i dot = _mm256_set1_epi32(LoadInt32(x + kBias + 4 * b));
    for (int p = 0; p < planes; ++p) {
      const __m256i weight = _mm256_set1_epi16(p == planes - 1 ? 1 : 256);
      dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs[p], weight));
    }
    const __m256i scale = _mm256_set1_epi32(LoadInt32(x + kScale + 4 * b));
    const __m256 factor = _mm256_mul_ps(scales, _mm256_castsi256_ps(scale));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), factor, sum);
  }

  // Adds the products with columns 4v to 4v + 3 of block b of every plane.
  static void AddProducts(__m256i w, const std::byte* x, int b, int v, __m256i* pairs) {
    for (int p = 0; p < planes; ++p) {
      const __m256i codes = _mm256_set1_epi32(LoadInt32(x + 64 * p + 16 * b + 4 * v));
      const __m256i product = _mm256_maddubs_epi16(w, codes);
      pairs[p] = v == 0 ? product : _mm256_add_epi16(pairs[p], product);
    }
  }

  template <int tokens>
  [[gnu::always_inline]] static inline void Add(const Unpacked& tile, int part, const std::byte* x,
                                                int64_t x_row_bytes, Sums* sums) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      __m256i w[4];
      for (int v = 0; v < 4; ++v) w[v] = tile.Bytes(b, v, part);
      const __m256 scales = tile.Scales(b, part);
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t) {
        const std::byte* row = x + t * x_row_bytes;
        __m256i pairs[planes];
        for (int v = 0; v < 4; ++v) AddProducts(w[v], row, b, v, pairs);
        __m256& sum = sums[t].parity[b % 2];
        sum = Step(pairs, scales, row, b, sum);
      }
    }
  }

  // One token; each of its codes goes to both parts while it is in a register.
  [[gnu::always_inline]] static inline void AddParts(const Packed& tile, const std::byte* x,
                                                     Sums (&sums)[2][1]) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      __m256i pairs[2][planes];
      for (int v = 0; v < 4; ++v) {
        for (int part = 0; part < 2; ++part) {
          AddProducts(tile.Bytes(b, v, part), x, b, v, pairs[part]);
        }
      }
      for (int part = 0; part < 2; ++part) {
        __m256& sum = sums[part][0].parity[b % 2];
        sum = Step(pairs[part], tile.Scales(b, part), x, b, sum);
      }
    }
  }

  static void Store(const Sums (&sums)[2], float* y, int64_t rows) {
    alignas(32) float out[16];
    for (int p = 0; p < 2; ++p) {
      const __m256 sum = _mm256_add_ps(sums[p].parity[0], sums[p].parity[1]);
      _mm256_store_ps(out + 8 * p, _mm256_mul_ps(sum, _mm256_set1_ps(Tile::kLastFactor)));
    }
    __builtin_memcpy(y, out, static_cast<size_t>(rows) * sizeof(float));
  }
};

}  // namespace

void W4a4Avx2(const PackedArguments& a) { RunPanels<IntAvx2<1>>(a); }
void W4a16Avx2(const PackedArguments& a) { RunPanels<IntAvx2<2>>(a); }

}  // namespace halfbyte::packed_kernels
