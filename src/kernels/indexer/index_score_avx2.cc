// ScoreTile with AVX2: eight keys a register. The products of a block's four bytes in a lane of 16
// bits are at most 16 * 24 * 12, so they are widened once a block.
#include <immintrin.h>

#include <cstring>

#include "kernels/indexer/index_score.h"

namespace halfbyte::simd_avx2 {
namespace {

constexpr int kParts = 4;  // registers of a tile's keys
constexpr int kHeadTile = 2;

__m256i SpreadWord(const int8_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  return _mm256_set1_epi32(word);
}

// The sums of block b of one tile of heads, 16 bits wide.
template <int Heads>
void AddProducts(const IndexQueryPack& query, const IndexKeyTile& keys, int64_t head, int64_t b,
                 __m256i (&sums)[Heads][kParts]) {
  for (auto& sum : sums) {
    for (__m256i& part : sum) part = _mm256_setzero_si256();
  }
  const int8_t* codes = query.codes + (head * query.blocks + b) * 32;
  for (int64_t run = 0; run < 8; ++run) {
    __m256i word[Heads];
    for (int h = 0; h < Heads; ++h) word[h] = SpreadWord(codes + h * query.blocks * 32 + run * 4);
    for (int p = 0; p < kParts; ++p) {
      const uint8_t* at = keys.codes + ((b * 8 + run) * kParts + p) * 32;
      const __m256i key = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      for (int h = 0; h < Heads; ++h) {
        sums[h][p] = _mm256_add_epi16(sums[h][p], _mm256_maddubs_epi16(key, word[h]));
      }
    }
  }
}

// Adds heads [head, head + Heads) to the lanes.
template <int Heads>
void AddHeads(const IndexQueryPack& query, const IndexKeyTile& keys, int64_t head,
              __m256 (&lanes)[4][kParts]) {
  __m256 dots[Heads][kParts];
  for (auto& dot : dots) {
    for (__m256& part : dot) part = _mm256_setzero_ps();
  }
  for (int64_t b = 0; b < query.blocks; ++b) {
    __m256i sums[Heads][kParts];
    AddProducts<Heads>(query, keys, head, b, sums);
    for (int h = 0; h < Heads; ++h) {
      const __m256i offset = _mm256_set1_epi32(query.offsets[(head + h) * query.blocks + b]);
      const __m256 query_scale = _mm256_set1_ps(query.scales[(head + h) * query.blocks + b]);
      for (int p = 0; p < kParts; ++p) {
        const __m256i wide = _mm256_madd_epi16(sums[h][p], _mm256_set1_epi16(1));
        const __m256 scale =
            _mm256_mul_ps(query_scale, _mm256_loadu_ps(keys.scales + (b * kParts + p) * 8));
        dots[h][p] =
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(wide, offset)), scale, dots[h][p]);
      }
    }
  }
  for (int h = 0; h < Heads; ++h) {
    const __m256 weight = _mm256_set1_ps(query.weights[head + h]);
    for (int p = 0; p < kParts; ++p) {
      __m256& lane = lanes[(head + h) % 8 / 2][p];
      lane = _mm256_fmadd_ps(weight, _mm256_max_ps(_mm256_setzero_ps(), dots[h][p]), lane);
    }
  }
}

}  // namespace

void ScoreTile(const IndexQueryPack& query, const IndexKeyTile& keys, float* scores) {
  __m256 lanes[4][kParts];
  for (auto& lane : lanes) {
    for (__m256& part : lane) part = _mm256_setzero_ps();
  }
  int64_t head = 0;
  for (; head + kHeadTile <= query.heads; head += kHeadTile) {
    AddHeads<kHeadTile>(query, keys, head, lanes);
  }
  if (head < query.heads) AddHeads<1>(query, keys, head, lanes);
  for (int p = 0; p < kParts; ++p) {
    const __m256 even = _mm256_add_ps(lanes[0][p], lanes[2][p]);
    const __m256 odd = _mm256_add_ps(lanes[1][p], lanes[3][p]);
    _mm256_storeu_ps(scores + p * 8, _mm256_add_ps(even, odd));
  }
}

}  // namespace halfbyte::simd_avx2
