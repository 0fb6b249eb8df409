// ScoreTile with AVX-512 VNNI: sixteen keys a register.
#include <immintrin.h>

#include <cstring>

#include "kernels/indexer/index_score.h"

namespace halfbyte::simd_avx512 {
namespace {

constexpr int kParts = 2;  // registers of a tile's keys
constexpr int kHeadTile = 4;

__m512i SpreadWord(const int8_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Adds heads [head, head + Heads) to the lanes.
template <int Heads>
void AddHeads(const IndexQueryPack& query, const IndexKeyTile& keys, int64_t head,
              __m512 (&lanes)[4][kParts]) {
  __m512 dots[Heads][kParts];
  for (auto& dot : dots) {
    for (__m512& part : dot) part = _mm512_setzero_ps();
  }
  for (int64_t b = 0; b < query.blocks; ++b) {
    __m512i sums[Heads][kParts];
    for (int h = 0; h < Heads; ++h) {
      const int32_t offset = query.offsets[(head + h) * query.blocks + b];
      for (__m512i& sum : sums[h]) sum = _mm512_set1_epi32(offset);
    }
    const int8_t* codes = query.codes + (head * query.blocks + b) * 32;
    for (int64_t run = 0; run < 8; ++run) {
      __m512i key[kParts];
      for (int p = 0; p < kParts; ++p) {
        key[p] = _mm512_loadu_si512(keys.codes + ((b * 8 + run) * kParts + p) * 64);
      }
      for (int h = 0; h < Heads; ++h) {
        const __m512i word = SpreadWord(codes + h * query.blocks * 32 + run * 4);
        for (int p = 0; p < kParts; ++p) sums[h][p] = _mm512_dpbusd_epi32(sums[h][p], key[p], word);
      }
    }
    for (int p = 0; p < kParts; ++p) {
      const __m512 key_scale = _mm512_loadu_ps(keys.scales + (b * kParts + p) * 16);
      for (int h = 0; h < Heads; ++h) {
        const __m512 scale =
            _mm512_mul_ps(_mm512_set1_ps(query.scales[(head + h) * query.blocks + b]), key_scale);
        dots[h][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[h][p]), scale, dots[h][p]);
      }
    }
  }
  for (int h = 0; h < Heads; ++h) {
    const __m512 weight = _mm512_set1_ps(query.weights[head + h]);
    for (int p = 0; p < kParts; ++p) {
      __m512& lane = lanes[(head + h) % 8 / 2][p];
      lane = _mm512_fmadd_ps(weight, _mm512_max_ps(_mm512_setzero_ps(), dots[h][p]), lane);
    }
  }
}

}  // namespace

void ScoreTileVnni(const IndexQueryPack& query, const IndexKeyTile& keys, float* scores) {
  __m512 lanes[4][kParts];
  for (auto& lane : lanes) {
    for (__m512& part : lane) part = _mm512_setzero_ps();
  }
  int64_t head = 0;
  for (; head + kHeadTile <= query.heads; head += kHeadTile) {
    AddHeads<kHeadTile>(query, keys, head, lanes);
  }
  for (; head < query.heads; ++head) AddHeads<1>(query, keys, head, lanes);
  for (int p = 0; p < kParts; ++p) {
    const __m512 even = _mm512_add_ps(lanes[0][p], lanes[2][p]);
    const __m512 odd = _mm512_add_ps(lanes[1][p], lanes[3][p]);
    _mm512_storeu_ps(scores + p * 16, _mm512_add_ps(even, odd));
  }
}

}  // namespace halfbyte::simd_avx512
