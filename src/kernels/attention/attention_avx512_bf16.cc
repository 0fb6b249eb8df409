// AttendHeads with AVX-512 BF16. `vdpbf16ps` adds the product of the upper halves first, then that
// of the lower ones, each rounded like a fused multiply-add: so words hold, in this order, numbers
// l and l + 16 of a key for scores, and the values of two keys for sums of values.
#include <utility>

#include "kernels/attention/attend_blocks.h"
#include "kernels/attention/attention_simd.h"

namespace halfbyte::simd_avx512 {
namespace {

constexpr int kKeyTile = 4;
constexpr __mmask32 kUpper = 0xaaaaaaaa;

// Upper halves of `first`, lower halves of `second`.
__m512i Halves(__m512i first, __m512i second) {
  return _mm512_mask_blend_epi16(kUpper, second, first);
}
__m512i UpperOf(__m512i first, __m512i second) {
  return Halves(first, _mm512_srli_epi32(second, 16));
}
__m512i LowerOf(__m512i first, __m512i second) {
  return Halves(_mm512_slli_epi32(first, 16), second);
}
F32x16 Dot(__m512i a, __m512i b, F32x16 sum) {
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b))};
}

// Calls body(0), ..., body(Count - 1) with constants: a loop around arrays of vectors would keep
// them in memory.
template <int Count, class Body>
void ForEach(const Body& body) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (body(I), ...);
  }(std::make_integer_sequence<int, Count>());
}

void PackQueries(const HeadArguments& a) {
  const float* q = a.q;
  float* packed = a.q_rows;
  const int64_t count = a.heads * a.dim;
  const auto load = [](const float* p) {
    return _mm512_castps_si512(ZeroBelow(Load16(p), kLeastBf16).v);
  };
  for (int64_t i = 0; i < count; i += 32) {
    _mm512_storeu_si512(packed + i / 2, UpperOf(load(q + i), load(q + i + 16)));
  }
}

// One step of the tree of Sum (simd16.h) for two vectors at once: what x has where `kMask` has
// zeros and y elsewhere, plus their other halves brought there.
template <__mmask16 kMask, class Exchange>
__m512 Step(__m512 x, __m512 y, const Exchange& exchange) {
  return _mm512_add_ps(_mm512_mask_blend_ps(kMask, x, y),
                       exchange(_mm512_mask_blend_ps(kMask, y, x)));
}

// The first step for sixteen vectors [head, key].
struct EightVectors {
  __m512 v[8];
};
EightVectors FirstStep(const F32x16 (&a)[4][4]) {
  const auto eight = [&](int head, int key) {
    return Step<0xff00>(a[head][key].v, a[head + 2][key].v,
                        [](__m512 v) { return _mm512_shuffle_f32x4(v, v, 0x4e); });
  };
  return {{eight(0, 0), eight(1, 0), eight(0, 2), eight(1, 2),  //
           eight(0, 1), eight(1, 1), eight(0, 3), eight(1, 3)}};
}

// The other steps: the sums in lanes 4 head + key.
__m512 LastSteps(const EightVectors& a) {
  const auto four = [&](int i) {
    return Step<0xf0f0>(a.v[i], a.v[i + 1],
                        [](__m512 v) { return _mm512_shuffle_f32x4(v, v, 0xb1); });
  };
  const auto two = [](__m512 x, __m512 y) {
    return Step<0xcccc>(x, y, [](__m512 v) { return _mm512_permute_ps(v, 0x4e); });
  };
  return Step<0xaaaa>(two(four(0), four(2)), two(four(4), four(6)),
                      [](__m512 v) { return _mm512_permute_ps(v, 0xb1); });
}

// Channels [d, d + 32 * Blocks) of Add. Not inlined, nor is Score: together g++ 12 has too few
// registers for their pointers.
template <int Heads, int Blocks>
[[gnu::noinline]] void AddBlocks(const HeadArguments& a, int64_t head, int64_t d, int64_t key,
                                 int64_t end) {
  float* totals = Totals(a, head, d) + d % kSlice;
  F32x16 acc[Heads][2 * Blocks] = {};
  if (key > 0) {
    ForEach<Heads * 2 * Blocks>([&](int i) {
      acc[i / (2 * Blocks)][i % (2 * Blocks)] =
          Load16(totals + i / (2 * Blocks) * kSlice + 16 * (i % (2 * Blocks)));
    });
  }
  const int64_t stride = a.score_stride();
  const float* weights = a.scores + head * stride;
  for (; key < end; key += 2) {  // behind the last key weights and rows are zeros
    __m512i value[2 * Blocks];
    for (int b = 0; b < Blocks; ++b) {
      const __m512i first = _mm512_loadu_si512(a.keys[key] + 2 * d + 64 * b);
      const __m512i second = _mm512_loadu_si512(a.keys[key + 1] + 2 * d + 64 * b);
      value[2 * b] = UpperOf(first, second);
      value[2 * b + 1] = LowerOf(first, second);
    }
    for (int h = 0; h < Heads; ++h) {
      const __m512i pair = _mm512_castps_si512(_mm512_set1_ps(weights[h * stride + key / 2]));
      for (int v = 0; v < 2 * Blocks; ++v) acc[h][v] = Dot(pair, value[v], acc[h][v]);
    }
  }
  ForEach<Heads * 2 * Blocks>([&](int i) {
    Store16(totals + i / (2 * Blocks) * kSlice + 16 * (i % (2 * Blocks)),
            acc[i / (2 * Blocks)][i % (2 * Blocks)]);
  });
}

struct Tiles {
  static constexpr int kHeads = 4;

  // To words of two bf16 numbers, in place.
  static void PackWeights(int64_t count, float* weights) {
    for (int64_t j = 0; j < count; j += 16) {
      const __m512i pairs = _mm512_loadu_si512(weights + j);
      const __m512i words = _mm512_or_si512(pairs, _mm512_srli_epi64(pairs, 48));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + j / 2),
                          _mm512_cvtepi64_epi32(words));
    }
  }

  // scores[h][j] = scale * q[h] . keys[j]
  template <int Heads>
  [[gnu::noinline]] static void Score(const HeadArguments& a, int64_t head, int64_t key,
                                      int64_t end) {
    const int64_t words = a.dim / 2;
    const int64_t stride = a.score_stride();
    const float scale = a.scale;
    const float* q = a.q_rows + head * words;
    float* scores = a.scores + head * stride;
    const auto finish = [&](const EightVectors& sums, int64_t at) {
      const __m512 of_tile = _mm512_mul_ps(LastSteps(sums), _mm512_set1_ps(scale));
      _mm_storeu_ps(scores + at, _mm512_castps512_ps128(of_tile));
      _mm_storeu_ps(scores + stride + at, _mm512_extractf32x4_ps(of_tile, 1));
      _mm_storeu_ps(scores + 2 * stride + at, _mm512_extractf32x4_ps(of_tile, 2));
      _mm_storeu_ps(scores + 3 * stride + at, _mm512_extractf32x4_ps(of_tile, 3));
    };
    // A tile is finished while the next one's products are formed: no step waits for the one
    // before.
    EightVectors pending = {};
    const int64_t begin = key;
    for (; key < end; key += kKeyTile) {
      const std::byte* const* rows = a.keys + key;
      F32x16 acc[Heads][kKeyTile] = {};
      for (int64_t w = 0; w < words; w += 16) {
        __m512i part[kKeyTile];
        for (int j = 0; j < kKeyTile; ++j) part[j] = _mm512_loadu_si512(rows[j] + 4 * w);
        for (int h = 0; h < Heads; ++h) {
          const __m512i query = _mm512_loadu_si512(q + h * words + w);
          for (int j = 0; j < kKeyTile; ++j) acc[h][j] = Dot(query, part[j], acc[h][j]);
        }
      }
      if constexpr (Heads == 1) {
        SumFour(acc[0], scale, scores + key);
      } else {
        if (key > begin) finish(pending, key - kKeyTile);
        pending = FirstStep(acc);
      }
    }
    if constexpr (Heads > 1) finish(pending, begin + (end - 1 - begin) / kKeyTile * kKeyTile);
  }

  template <int Heads>
  static void Add(const HeadArguments& a, int64_t head, int64_t d, int64_t key, int64_t end) {
    if (a.dim - d >= kSlice) return AddBlocks<Heads, kSlice / 32>(a, head, d, key, end);
    AddBlocks<Heads, 1>(a, head, d, key, end);
  }
};

}  // namespace

void AttendHeadsBf16(const HeadArguments& a) {
  PackQueries(a);
  AttendBlocks<Tiles>(a);
}

}  // namespace halfbyte::simd_avx512
