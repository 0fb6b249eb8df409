// W8a16 and W16a16 of packed_linear.h with AVX-512 BF16. `vdpbf16ps` adds the product of the upper
// halves first, then that of the lower ones, each rounded like a fused multiply-add.
#include <immintrin.h>

#include "kernels/packed_linear/bf16_dot.h"
#include "kernels/packed_linear/packed_tile.h"
#include "kernels/packed_linear/panel_driver.h"
#include "kernels/packed_linear/parity_sums.h"

namespace halfbyte::packed_kernels {
namespace {

// Bytes of the bf16 numbers that E4M3 magnitudes are, upper and lower.
struct E4m3Tables {
  alignas(64) uint8_t upper[128];
  alignas(64) uint8_t lower[128];
};
constexpr E4m3Tables MakeE4m3Tables() {
  E4m3Tables tables = {};
  for (int byte = 1; byte < 128; ++byte) {
    int exponent = byte >> 3;
    int mantissa = byte & 7;
    if (exponent == 0) {
      for (exponent = 1; mantissa < 8; mantissa *= 2) --exponent;
      mantissa &= 7;
    }
    const int bits = ((exponent + 120) << 7) | (mantissa << 4);
    tables.upper[byte] = static_cast<uint8_t>(bits >> 8);
    tables.lower[byte] = static_cast<uint8_t>(bits & 0xff);
  }
  return tables;
}
constexpr E4m3Tables kE4m3 = MakeE4m3Tables();

inline __m512 Dot(__m512 sum, __m512i w, const std::byte* x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w),
                          reinterpret_cast<__m512bh>(_mm512_set1_epi32(LoadInt32(x))));
}

// The tiles of two formats: for GEMV as Packed, for GEMM as bf16_dot.h takes them. In bf16 there is
// nothing to take apart and so no GEMM, and half a tile is taken for one, so that fetching ahead
// asks for fewer lines at once.
struct Bf16Weights : ParitySums {
  static constexpr int64_t kTileBytes = 1024;
  // Far, and beyond the end of a small matrix: behind it lies what the layer needs next.
  static constexpr int64_t kPrefetchBytes = 16 * kTileBytes;
  static constexpr int kBlocks = 2;
  static constexpr int64_t kXTileBytes = kBlocks * 32;
  static constexpr int kGemvTokens = 8;
  static constexpr int kGemvGroup = 6;

  struct Packed {
    const uint8_t* tile;

    explicit Packed(const uint8_t* tile_in) : tile(tile_in) {}
    void Pairs(int b, int v, __m512i* w) const {
      for (int i = 0; i < 2; ++i) {
        w[i] = _mm512_load_si512(tile + b * 512 + v * 128 + i * 64);
        asm("" : "+v"(w[i]));  // loads are scarce, and g++ would load it for each token
      }
    }
    __m512 Add(int /*b*/, __m512 dots, __m512 sum) const { return _mm512_add_ps(dots, sum); }
  };
};

struct Fp8Weights : ParitySums {
  static constexpr int64_t kTileBytes = 2112;
  static constexpr int64_t kScaleBytes = 64;  // before the rest
  static constexpr int64_t kPrefetchBytes = 3 * kTileBytes;
  static constexpr int kBlocks = 8;
  static constexpr int64_t kXTileBytes = kBlocks * 32;
  static constexpr int kGemvTokens = 4;

  struct Packed {
    const uint8_t* tile;

    explicit Packed(const uint8_t* tile_in) : tile(tile_in) {}
    void Pairs(int b, int v, __m512i* w) const {
      const auto look_up = [](const uint8_t* table, __m512i index) {
        return _mm512_permutex2var_epi8(_mm512_load_si512(table), index,
                                        _mm512_load_si512(table + 64));
      };
      const __m512i bytes = _mm512_load_si512(tile + kScaleBytes + b * 256 + v * 64);
      const __m512i lower = look_up(kE4m3.lower, bytes);
      // upper | (bytes & sign)
      const __m512i upper = _mm512_ternarylogic_epi32(look_up(kE4m3.upper, bytes), bytes,
                                                      _mm512_set1_epi8(-0x80), 0xf8);
      w[0] = _mm512_unpacklo_epi8(lower, upper);
      w[1] = _mm512_unpackhi_epi8(lower, upper);
    }
    __m512 Add(int /*b*/, __m512 dots, __m512 sum) const {
      return _mm512_fmadd_ps(dots, _mm512_load_ps(tile), sum);
    }
  };
  struct Unpacked {
    alignas(64) uint8_t pairs[kBlocks * 512];
    alignas(64) float scales[16];

    __m512i Pair(int b, int j) const { return _mm512_load_si512(pairs + b * 512 + j * 64); }
    __m512 Add(int /*b*/, __m512 dots, __m512 sum) const {
      return _mm512_fmadd_ps(dots, _mm512_load_ps(scales), sum);
    }
  };
  static void Unpack(const uint8_t* tile, Unpacked& out) {
    const Packed packed(tile);
    for (int b = 0; b < kBlocks; ++b) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        __m512i w[2];
        packed.Pairs(b, v, w);
        _mm512_store_si512(out.pairs + b * 512 + v * 128, w[0]);
        _mm512_store_si512(out.pairs + b * 512 + v * 128 + 64, w[1]);
      }
    }
    _mm512_store_ps(out.scales, _mm512_load_ps(tile));
  }
};

template <class Weights>
struct WideGemv : Weights {
  using typename Weights::Packed, typename Weights::Sums;
  static constexpr int kParts = 1;

  template <int tokens>
  [[gnu::always_inline]] static inline void Add(const Packed& tile, int /*part*/,
                                                const std::byte* x, int64_t x_row_bytes,
                                                Sums* sums) {
#pragma GCC unroll 8
    for (int b = 0; b < Weights::kBlocks; ++b) {
      __m512 dots[tokens];
      for (int t = 0; t < tokens; ++t) dots[t] = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        __m512i w[2];
        tile.Pairs(b, v, w);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 8
          for (int t = 0; t < tokens; ++t) {
            dots[t] = Dot(dots[t], w[i], x + t * x_row_bytes + 32 * b + 8 * v + 4 * i);
          }
        }
      }
      for (int t = 0; t < tokens; ++t) {
        __m512& sum = sums[t].parity[b % 2];
        sum = tile.Add(b, dots[t], sum);
      }
    }
  }
};

}  // namespace

void W8a16Avx512Bf16(const PackedArguments& a) {
  RunPanels<WideGemv<Fp8Weights>, Bf16Dot<Fp8Weights, 2>>(a);
}
void W16a16Avx512Bf16(const PackedArguments& a) {
  PackedArguments halves = a;
  halves.tiles *= 2;
  RunGemvGroups<WideGemv<Bf16Weights>>(halves);
}

void PreparePairs(const float* x, int64_t columns, std::byte* operand) {
  constexpr int64_t kRowStep = Fp8Weights::kBlocks * 16;  // columns are filled up to a tile with 0
  // Sixteen columns from k on, those below kLeastWide as 0.
  const auto load = [&](int64_t k) {
    if (k >= columns) return _mm512_setzero_ps();
    const __m512 value = _mm512_loadu_ps(x + k);
    const __mmask16 keep =
        _mm512_cmp_ps_mask(_mm512_abs_ps(value), _mm512_set1_ps(kLeastWide), _CMP_NLT_UQ);
    return _mm512_maskz_mov_ps(keep, value);
  };
  for (int64_t k = 0; k < (columns + kRowStep - 1) / kRowStep * kRowStep; k += 32) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(load(k + 16), load(k));
    // [second, first] of each two.
    _mm512_storeu_si512(operand + k * 2, _mm512_rol_epi32(reinterpret_cast<__m512i>(rounded), 16));
  }
}

}  // namespace halfbyte::packed_kernels
