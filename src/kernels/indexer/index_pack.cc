#include "kernels/indexer/index_pack.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "numerics/e2m1.h"
#include "numerics/e8m0.h"
#include "numerics/mxfp4_block.h"

namespace halfbyte {
namespace {

constexpr int32_t kKeyOffset = 12;  // twice the largest code

// A block of up to 32 numbers that are multiples of 2^(e-1), where 2^e times 4 or 6 is the largest:
// codes are the multiples. Returns 2^(e-1).
float PackBlockOfQuery(const float* x, int64_t count, int8_t* codes) {
  uint32_t magnitudes[kMxfp4Block] = {};
  std::memcpy(magnitudes, x, static_cast<size_t>(count) * sizeof(float));
  uint32_t largest = 0;
  for (uint32_t& bits : magnitudes) largest = std::max(largest, bits & 0x7fffffffu);
  std::memset(codes, 0, kMxfp4Block);
  const int biased = static_cast<int>(largest >> 23);
  if (biased == 255) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = std::max(biased - 127 - 2, -126);
  const auto factor = std::bit_cast<float>(static_cast<uint32_t>(1 - exponent + 127) << 23);
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(x[i] * factor));
  }
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23) * 0.5f;
}

struct ScaleTable {
  float half[256];
};
constexpr ScaleTable MakeScaleTable() {
  ScaleTable table{};
  for (int i = 0; i < 256; ++i) {
    const float scale = E8m0ToFloat(static_cast<uint8_t>(i));
    // 0xff is NaN, of which clang makes no constant by arithmetic.
    table.half[i] = scale != scale ? scale : scale * 0.5f;
  }
  return table;
}
constexpr ScaleTable kScales = MakeScaleTable();

__m128i LoadCodes(const uint8_t* p, int64_t bytes) {
  if (bytes == 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  __m128i codes = _mm_setzero_si128();
  std::memcpy(&codes, p, static_cast<size_t>(bytes));
  return codes;
}

// The 32 codes of 16 bytes, low nibble first, as bytes 2 * value + kKeyOffset.
__m256i SpreadCodes(__m128i codes) {
  const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  const __m128i nibble = _mm_set1_epi8(15);
  const __m128i low = _mm_shuffle_epi8(table, _mm_and_si128(codes, nibble));
  const __m128i high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(codes, 4), nibble));
  return _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
}

// rows[i] gets word i of all.
void Transpose(__m256i (&rows)[8]) {
  __m256i pairs[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m256i fours[8];
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm256_unpacklo_epi64(pairs[i + j], pairs[i + 2 + j]);
      fours[i + 2 * j + 1] = _mm256_unpackhi_epi64(pairs[i + j], pairs[i + 2 + j]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
  }
}

}  // namespace

IndexQueryPacks::IndexQueryPacks(const Indexer& indexer, int64_t tokens, Arena& arena)
    : heads_(indexer.heads),
      dim_(indexer.row.dim),
      blocks_(indexer.row.scale_count()),
      codes_(arena.Take<int8_t>(tokens * heads_ * blocks_ * kMxfp4Block)),
      offsets_(arena.Take<int32_t>(tokens * heads_ * blocks_)),
      scales_(arena.Take<float>(tokens * heads_ * blocks_)),
      weights_(arena.Take<const float*>(tokens)) {}

void IndexQueryPacks::Pack(int64_t token, const float* q, const float* weights) {
  weights_[token] = weights;
  for (int64_t h = 0; h < heads_; ++h) {
    for (int64_t b = 0; b < blocks_; ++b) {
      const int64_t at = (token * heads_ + h) * blocks_ + b;
      const int64_t begin = b * kMxfp4Block;
      int8_t* codes = codes_ + at * kMxfp4Block;
      scales_[at] = PackBlockOfQuery(q + h * dim_ + begin,
                                     std::min<int64_t>(kMxfp4Block, dim_ - begin), codes);
      int32_t sum = 0;
      for (int i = 0; i < kMxfp4Block; ++i) sum += codes[i];
      offsets_[at] = -kKeyOffset * sum;
    }
  }
}

IndexQueryPack IndexQueryPacks::of(int64_t token) const {
  const int64_t at = token * heads_ * blocks_;
  return {heads_, blocks_, codes_ + at * kMxfp4Block, offsets_ + at, scales_ + at, weights_[token]};
}

IndexKeyPack::IndexKeyPack(const IndexRow& row, const PagedRows& keys, int64_t first,
                           int64_t count) {
  static constexpr uint8_t kZeros[IndexRow::kMaxMxfp4Dim] = {};
  const uint8_t* rows[kScoreTile];
  std::fill(std::begin(rows), std::end(rows), kZeros);
  for (int64_t i = 0; i < count;) {  // page by page
    const std::byte* key = keys.row(first + i);
    const int64_t left = keys.rows_per_page - (first + i) % keys.rows_per_page;
    for (const int64_t end = std::min(count, i + left); i < end; key += keys.row_bytes) {
      rows[i++] = reinterpret_cast<const uint8_t*>(key);
    }
  }
  for (int64_t b = 0; b < row.scale_count(); ++b) {
    PackBlock(b, std::min<int64_t>(16, row.dim / 2 - b * 16), rows);
    for (int64_t i = 0; i < kScoreTile; ++i) {
      scales_[b * kScoreTile + i] = kScales.half[rows[i][row.dim / 2 + b]];
    }
  }
}

void IndexKeyPack::PackBlock(int64_t block, int64_t bytes, const uint8_t* const* keys) {
  for (int64_t group = 0; group < kScoreTile; group += 8) {
    __m256i words[8];
    for (int64_t i = 0; i < 8; ++i) {
      words[i] = SpreadCodes(LoadCodes(keys[group + i] + block * 16, bytes));
    }
    Transpose(words);
    for (int64_t run = 0; run < 8; ++run) {
      uint8_t* at = codes_ + ((block * 8 + run) * kScoreTile + group) * 4;
      _mm256_store_si256(reinterpret_cast<__m256i*>(at), words[run]);
    }
  }
}

}  // namespace halfbyte
