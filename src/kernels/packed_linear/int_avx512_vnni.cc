// The arithmetics of packed_linear.h in integers, with AVX-512 VNNI and VBMI. A code becomes the
// byte 2 * value + 12, from 0 to 24, so that unsigned times signed bytes serve; each dot product
// starts at -12 * the sum of the activations to take the 12 away again.
#include <immintrin.h>

#include "kernels/packed_linear/packed_tile.h"
#include "kernels/packed_linear/panel_driver.h"

namespace halfbyte::packed_kernels {
namespace {

// Scale bytes as fp32 numbers of 2^-117 their value.
inline __m512 RawScales(const uint8_t* p) {
  const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 20));
}

// dot + the four products of each lane of w with the four bytes at x, spread by the instruction
// itself: g++ 12 would have another one do that.
inline __m512i AddProducts(__m512i dot, __m512i w, const std::byte* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(dot)
      : "v"(w), "m"(*reinterpret_cast<const std::byte(*)[4]>(x)));
  return dot;
}

template <int planes>
struct IntVnni : IntPackedTile<planes> {
  using Tile = IntPackedTile<planes>;
  using Tile::kBias, Tile::kCodes, Tile::kScale, Tile::kTileBytes;
  static constexpr int64_t kPrefetchBytes = (planes == 1 ? 94 : 108) * 64;
  static constexpr int kGemvTokens = 4;
  static constexpr int kGemvGroup = 4;
  static constexpr int64_t kStripTiles = 8;
  static constexpr int64_t kChunkTokens = 128;
  static constexpr int kGroup = 8;
  static constexpr int kParts = 1;

  struct Sums {
    __m512 parity[2];
  };

  struct Packed {
    const uint8_t* tile;

    explicit Packed(const uint8_t* tile_in) : tile(tile_in) {}
    // The four vectors of biased bytes of block b. The low four bits of every byte choose; the
    // permutation looks at six.
    void Bytes(int b, __m512i* w) const {
      const __m512i table = _mm512_broadcast_i32x4(BiasedCodes());
      for (int v = 0; v < 2; ++v) {
        __m512i codes = _mm512_load_si512(tile + kCodes + b * 128 + v * 64);
        asm("" : "+v"(codes));  // loads are scarce, and g++ would load twice
        w[2 * v] = _mm512_permutexvar_epi8(codes, table);
        w[2 * v + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table);
      }
    }
    __m512 Scales(int b) const { return RawScales(tile + b * 16); }
  };

  struct Unpacked {
    alignas(64) uint8_t bytes[4 * 256];
    alignas(64) float scales[4 * 16];

    void Bytes(int b, __m512i* w) const {
      for (int v = 0; v < 4; ++v) w[v] = _mm512_load_si512(bytes + b * 256 + v * 64);
    }
    __m512 Scales(int b) const { return _mm512_load_ps(scales + b * 16); }
  };

  static void Unpack(const uint8_t* tile, Unpacked& out) {
    const Packed packed(tile);
    for (int b = 0; b < 4; ++b) {
      __m512i w[4];
      packed.Bytes(b, w);
      for (int v = 0; v < 4; ++v) _mm512_store_si512(out.bytes + b * 256 + v * 64, w[v]);
      _mm512_store_ps(out.scales + b * 16, packed.Scales(b));
    }
  }

  // What the operand at x (block b of a tile) adds for 16 rows whose biased bytes are w.
  static __m512 Step(const __m512i* w, __m512 scales, const std::byte* x, int b, __m512 sum) {
    const auto at = [x](int64_t byte) { return _mm512_set1_epi32(LoadInt32(x + byte)); };
    __m512i dot = at(kBias + 4 * b);
    for (int v = 0; v < 4; ++v) {
      dot = AddProducts(dot, w[v], x + 64 * (planes - 1) + 16 * b + 4 * v);
    }
    if constexpr (planes == 2) {
      __m512i upper = _mm512_setzero_si512();
      for (int v = 0; v < 4; ++v) upper = AddProducts(upper, w[v], x + 16 * b + 4 * v);
      dot = _mm512_add_epi32(dot, _mm512_slli_epi32(upper, 8));
    }
    const __m512 scale = _mm512_castsi512_ps(at(kScale + 4 * b));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scales, scale), sum);
  }

  template <int tokens, class AnyTile>
  [[gnu::always_inline]] static inline void Add(const AnyTile& tile, int /*part*/,
                                                const std::byte* x, int64_t x_row_bytes,
                                                Sums* sums) {
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      __m512i w[4];
      tile.Bytes(b, w);
      const __m512 scales = tile.Scales(b);
#pragma GCC unroll 8
      for (int t = 0; t < tokens; ++t) {
        __m512& sum = sums[t].parity[b % 2];
        sum = Step(w, scales, x + t * x_row_bytes, b, sum);
      }
    }
  }

  static void Store(const Sums (&sums)[1], float* y, int64_t rows) {
    const __m512 sum = _mm512_add_ps(sums[0].parity[0], sums[0].parity[1]);
    const auto mask = static_cast<__mmask16>((1 << rows) - 1);
    _mm512_mask_storeu_ps(y, mask, _mm512_mul_ps(sum, _mm512_set1_ps(Tile::kLastFactor)));
  }
};

}  // namespace

void W4a4Avx512Vnni(const PackedArguments& a) { RunPanels<IntVnni<1>>(a); }
// A GEMM would be slower for any number of tokens: taking a tile apart costs little beside its two
// products.
void W4a16Avx512Vnni(const PackedArguments& a) { RunGemvGroups<IntVnni<2>>(a); }

}  // namespace halfbyte::packed_kernels
