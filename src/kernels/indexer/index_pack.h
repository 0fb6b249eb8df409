// How queries and stored keys of kMxfp4 become what index_score.h multiplies.
#pragma once

#include <cstdint>

#include "device/arena.h"
#include "kernels/indexer/index_score.h"
#include "kernels/indexer/indexer.h"

namespace halfbyte {

// The packed queries of some tokens, in an arena's memory.
class IndexQueryPacks {
 public:
  IndexQueryPacks(const Indexer& indexer, int64_t tokens, Arena& arena);

  // q: [heads * dim]. `weights` must stay.
  void Pack(int64_t token, const float* q, const float* weights);
  IndexQueryPack of(int64_t token) const;

 private:
  int64_t heads_, dim_, blocks_;
  int8_t* codes_;          // [tokens, heads, blocks, 32]
  int32_t* offsets_;       // [tokens, heads, blocks]
  float* scales_;          // [tokens, heads, blocks]
  const float** weights_;  // [tokens]
};

// kScoreTile keys of which the first `count` are entries [first, first + count); the others are 0.
class IndexKeyPack {
 public:
  IndexKeyPack(const IndexRow& row, const PagedRows& keys, int64_t first, int64_t count);
  IndexKeyTile tile() const { return {codes_, scales_}; }

 private:
  static constexpr int64_t kMostBlocks = IndexRow::kMaxMxfp4Dim / 32;

  void PackBlock(int64_t block, int64_t bytes, const uint8_t* const* keys);

  alignas(64) uint8_t codes_[kMostBlocks * 32 * kScoreTile];
  alignas(64) float scales_[kMostBlocks * kScoreTile];
};

}  // namespace halfbyte
