// Block scales from linear to 128x4 tiles and back: bytes are moved, never converted.
#pragma once

#include <cstdint>

#include "tensor/scale_layout.h"

namespace halfbyte {

// tiled[layout.bytes()] from linear[rows, blocks]; every padding byte becomes 0. For a group of a
// grouped GEMM pass the group's own rows and a pointer to the tile where it starts:
// buffer + TiledScales{all_padded_rows, blocks}.offset(padded_begin, 0).
void TileScales(const uint8_t* linear, TiledScales layout, uint8_t* tiled);

// linear[rows, blocks] from tiled[layout.bytes()]; padding is not read.
void UntileScales(const uint8_t* tiled, TiledScales layout, uint8_t* linear);

// What one of `parts` equal pieces of a contraction dimension K holds, for a split of weights among
// ranks. K must be a multiple of 16 * parts.
struct ContractionPart {
  int64_t elements = 0;
  int64_t blocks = 0;
  bool whole_tiles = false;  // if not, tiled scales must be rebuilt for each part, not cut
};
ContractionPart SplitContraction(int64_t k, int64_t parts);

}  // namespace halfbyte
