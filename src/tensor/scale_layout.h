// Where the block scale of (row, block) lies. This file owns every such offset; nobody else
// computes one (nvfp4.md §6). `block` counts groups of 16 (NVFP4) along K.
#pragma once

#include <cstdint>

#include "numerics/host_device.h"

namespace halfbyte {

constexpr int64_t CeilDiv(int64_t x, int64_t y) { return (x + y - 1) / y; }
constexpr int64_t RoundUp(int64_t x, int64_t multiple) { return CeilDiv(x, multiple) * multiple; }

// Row-major [rows, blocks], as checkpoints store it.
struct LinearScales {
  int64_t rows = 0;
  int64_t blocks = 0;

  HB_HD constexpr int64_t bytes() const { return rows * blocks; }
  HB_HD constexpr int64_t offset(int64_t row, int64_t block) const { return row * blocks + block; }
};

// 128x4 tiles, as tensor cores with block scaling read it: rows padded to 128, blocks to 4; padding
// bytes must be 0. Each expert's rows start at a multiple of 128 (moe-layer.md §5).
struct TiledScales {
  static constexpr int64_t kTileRows = 128;
  static constexpr int64_t kTileBlocks = 4;
  static constexpr int64_t kTileBytes = kTileRows * kTileBlocks;

  int64_t rows = 0;
  int64_t blocks = 0;

  HB_HD constexpr int64_t tile_columns() const { return (blocks + kTileBlocks - 1) / kTileBlocks; }
  HB_HD constexpr int64_t padded_rows() const {
    return (rows + kTileRows - 1) / kTileRows * kTileRows;
  }
  HB_HD constexpr int64_t bytes() const { return padded_rows() * tile_columns() * kTileBlocks; }

  HB_HD constexpr int64_t offset(int64_t row, int64_t block) const {
    const int64_t tile = (row / kTileRows) * tile_columns() + block / kTileBlocks;
    return tile * kTileBytes + (row % 32) * 16 + (row % kTileRows) / 32 * 4 + block % kTileBlocks;
  }

  struct Position {
    int64_t row = 0;
    int64_t block = 0;
    friend constexpr bool operator==(Position, Position) = default;
  };
  // The inverse of offset, over the padded buffer.
  HB_HD constexpr Position position(int64_t offset) const {
    const int64_t tile = offset / kTileBytes;
    const int64_t in_tile = offset % kTileBytes;
    const int64_t row = in_tile / 16 + in_tile % 16 / 4 * 32;
    return {tile / tile_columns() * kTileRows + row,
            tile % tile_columns() * kTileBlocks + in_tile % 4};
  }
};

}  // namespace halfbyte
