// How the rows of the experts become token tiles, and how much room that takes at most. For host
// and device: the plan kernel and its reference cut alike.
//
// An expert with n rows takes RoundUp(n, 8) of them and, if it has any, CeilDiv(rows, max_rows)
// tiles of nearly equal size: 300 rows with tiles of at most 192 are 152 + 152, not 192 + 112.
#pragma once

#include <cstdint>

#include "kernels/dispatch_plan/padded_rows.h"
#include "numerics/host_device.h"

namespace halfbyte {

// Some rows of one local expert. Rows are numbered through all tiles: row_begin of a tile is the
// sum of `rows` of those before it. `rows` is a multiple of 8; rows beyond the slots of the expert
// are padding, may hold anything and reach no other row.
struct TokenTile {
  int32_t expert = 0;
  int32_t row_begin = 0;
  int32_t rows = 0;
};

// An atom: the rows that a tile is made of. 32-bit throughout: the plan kernel divides for every
// expert, and 64-bit divisions are slow there.
inline constexpr int32_t kTileStep = 8;
HB_HD constexpr int32_t AtomsOfExpert(int32_t rows) { return (rows + kTileStep - 1) / kTileStep; }
// `max_rows` is a multiple of 8.
HB_HD constexpr int32_t TilesOfExpert(int32_t rows, int32_t max_rows) {
  return (AtomsOfExpert(rows) * kTileStep + max_rows - 1) / max_rows;
}
// Tile `index` of `tiles` of an expert with `rows` rows, the first of which is `row_begin`.
HB_HD constexpr TokenTile TileOfExpert(int32_t expert, int32_t row_begin, int32_t rows,
                                       int32_t index, int32_t tiles) {
  const int32_t atoms = AtomsOfExpert(rows);
  const int32_t each = atoms / tiles, longer = atoms % tiles;
  const int32_t before = index * each + (index < longer ? index : longer);
  const int32_t own = each + (index < longer ? 1 : 0);
  return {expert, row_begin + before * kTileStep, own * kTileStep};
}

// Of those tiles the first so many have more than `wide_rows` rows.
HB_HD constexpr int32_t WideTilesOfExpert(int32_t rows, int32_t tiles, int32_t wide_rows) {
  if (tiles == 0) return 0;
  const int32_t atoms = AtomsOfExpert(rows);
  const int32_t each = atoms / tiles * kTileStep;
  if (each > wide_rows) return tiles;
  return each + kTileStep > wide_rows ? atoms % tiles : 0;
}

// The dispatch plan: which row each slot takes, and the tiles. Device memory; sizes follow from the
// slots and local experts.
struct TokenPlan {
  TokenTile* tiles = nullptr;       // [MaxTokenTiles]
  int32_t* tile_count = nullptr;    // [2]: all, and the wide ones, which come first
  int32_t* row_count = nullptr;     // [1], padding included
  int32_t* row_of_slot = nullptr;   // [slots]; -1: no local expert
  int32_t* slot_of_row = nullptr;   // [MaxTokenRows]; -1: padding; written up to row_count
  int32_t* tile_of_atom = nullptr;  // [MaxTokenRows / 8]: the tile of rows 8 i .. 8 i + 7
  int32_t* counts = nullptr;        // [PlanChunks(slots) * experts], scratch
};

// Rows, padding included, that `slots` slots can need on `experts` experts.
HB_HD constexpr int64_t MaxTokenRows(int64_t slots, int64_t experts) {
  return PaddedRowsBound(slots, experts, kTileStep);
}
// Tiles that they can need: one begun for each expert in use, the rest full.
HB_HD constexpr int64_t MaxTokenTiles(int64_t slots, int64_t experts, int64_t max_rows) {
  const int64_t used = slots < experts ? slots : experts;
  return used + MaxTokenRows(slots, experts) / max_rows;
}

}  // namespace halfbyte
