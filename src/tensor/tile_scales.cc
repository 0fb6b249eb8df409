#include "tensor/tile_scales.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {
namespace {

constexpr int64_t kTileBlocks = TiledScales::kTileBlocks;

}  // namespace

void TileScales(const uint8_t* linear, TiledScales layout, uint8_t* tiled) {
  const LinearScales source{layout.rows, layout.blocks};
  for (int64_t row = 0; row < layout.padded_rows(); ++row) {
    for (int64_t block = 0; block < layout.tile_columns() * kTileBlocks; block += kTileBlocks) {
      // Four blocks of a row are neighbours in both layouts.
      uint8_t* out = tiled + layout.offset(row, block);
      const int64_t real = row < layout.rows ? std::min(kTileBlocks, layout.blocks - block) : 0;
      std::memset(out, 0, kTileBlocks);
      if (real > 0) std::memcpy(out, linear + source.offset(row, block), static_cast<size_t>(real));
    }
  }
}

void UntileScales(const uint8_t* tiled, TiledScales layout, uint8_t* linear) {
  const LinearScales target{layout.rows, layout.blocks};
  for (int64_t row = 0; row < layout.rows; ++row) {
    for (int64_t block = 0; block < layout.blocks; block += kTileBlocks) {
      const int64_t real = std::min(kTileBlocks, layout.blocks - block);
      std::memcpy(linear + target.offset(row, block), tiled + layout.offset(row, block),
                  static_cast<size_t>(real));
    }
  }
}

ContractionPart SplitContraction(int64_t k, int64_t parts) {
  HB_CHECK(k % (kNvfp4Block * parts) == 0, "K = {} in {} parts", k, parts);
  const int64_t blocks = k / parts / kNvfp4Block;
  return {k / parts, blocks, blocks % kTileBlocks == 0};
}

}  // namespace halfbyte
