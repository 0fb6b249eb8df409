// Tiles of index scores with integer products (indexer.h has the order of operations): the packed
// queries of one token against kScoreTile packed keys, once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace halfbyte {

// One token's queries of kMxfp4; a block has 32 numbers, zeros beyond the dimension.
struct IndexQueryPack {
  int64_t heads = 0;
  int64_t blocks = 0;                // of a head
  const int8_t* codes = nullptr;     // [heads, blocks, 32], twice the numbers over the scale
  const int32_t* offsets = nullptr;  // [heads, blocks], -12 times the sum of the codes
  const float* scales = nullptr;     // [heads, blocks], halved
  const float* weights = nullptr;    // [heads]
};

// Keys side by side. A code is 12 more than twice its number over the scale, so that unsigned bytes
// meet signed ones; the query's offset takes the 12 away again.
struct IndexKeyTile {
  const uint8_t* codes = nullptr;  // [blocks, 8, kScoreTile, 4]: in eight runs of four numbers
  const float* scales = nullptr;   // [blocks, kScoreTile], halved
};

namespace simd_avx2 {
void ScoreTile(const IndexQueryPack& query, const IndexKeyTile& keys, float* scores);
}
namespace simd_avx512 {
void ScoreTileVnni(const IndexQueryPack& query, const IndexKeyTile& keys, float* scores);
}

}  // namespace halfbyte
