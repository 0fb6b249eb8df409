// How a launch cuts its work: tiles of tokens, and items, which are up to W strips of a weight, one
// of its segments or all of them, and a tile. Only speed depends on it. For host and device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/sm90_dense/dense_layout.h"
#include "numerics/host_device.h"

namespace halfbyte::sm90 {

inline constexpr int64_t kDenseStripsAtOnce = 2;  // DenseConfig::W of all variants
inline constexpr int64_t kDenseTileRows[] = {8, 16, 32, 64, 128, 160};
// Segments are items of their own up to so many tokens, if that makes work for more processors.
inline constexpr int64_t kMostTokensApart = 256;
inline constexpr int64_t kMostArrivals = 16384;

// Rows of token tiles: the narrowest that holds all tokens; of the two widest that which wastes
// less, or the wider, whose products are faster.
constexpr int64_t DenseTileRows(int64_t tokens) {
  for (const int64_t rows : {8, 16, 32, 64, 128}) {
    if (tokens <= rows) return rows;
  }
  const int64_t narrow = CeilDiv(tokens, 128) * 128, wide = CeilDiv(tokens, 160) * 160;
  return wide * 50 <= narrow * 51 ? 160 : 128;
}

// One weight.
struct DensePart {
  int64_t scales_offset = 0;  // in its packed bytes
  bool fp8 = false;
  int32_t rows = 0;
  int32_t rows_of_group = 0;
  int32_t strips_of_group = 0;
  int32_t k_blocks = 0;
  int32_t strip_items_of_group = 0;
  int32_t strip_items = 0;  // of all groups
  int32_t first_strip = 0;  // among those of all parts
  int32_t first_item = 0;
};

// In one launch.
inline constexpr int64_t kMaxDenseProducts = 8;

struct DenseWork {
  DensePart parts[kMaxDenseProducts];
  int32_t part_count = 0;
  int32_t items = 0;
  int32_t tokens = 0;
  int32_t tile_rows = 0;
  int32_t tiles = 0;
  int32_t tiles_at_once = 0;    // that blocks work on at the same time, strip by strip
  int32_t strips_per_item = 0;  // at most
  int32_t segments = 0;
  bool apart = false;  // an item is one segment, not all
  int32_t strips = 0;  // of all parts
};

struct DenseItem {
  int32_t part = 0;
  int32_t group = 0;
  int32_t strip = 0;  // the first, within the group
  int32_t count = 0;  // of strips
  int32_t segment = 0;
  int32_t segment_end = 0;
  int32_t tile = 0;
};

// Item `index` of all. Segments of a strip follow each other, then tiles (up to tiles_at_once of
// them), then strips.
HB_HD inline DenseItem GetDenseItem(const DenseWork& work, int32_t index) {
  DenseItem item;
  while (item.part + 1 < work.part_count && index >= work.parts[item.part + 1].first_item) {
    ++item.part;
  }
  const DensePart& part = work.parts[item.part];
  int32_t rest = index - part.first_item;
  item.segment_end = work.segments;
  if (work.apart) {
    item.segment = rest % work.segments;
    item.segment_end = item.segment + 1;
    rest /= work.segments;
  }
  const int32_t of_tiles = part.strip_items * work.tiles_at_once;
  const int32_t first_tile = rest / of_tiles * work.tiles_at_once;
  const int32_t left = work.tiles - first_tile;
  const int32_t tiles = left < work.tiles_at_once ? left : work.tiles_at_once;
  rest %= of_tiles;
  item.tile = first_tile + rest % tiles;
  rest /= tiles;
  item.group = rest / part.strip_items_of_group;
  item.strip = rest % part.strip_items_of_group * work.strips_per_item;
  const int32_t strips = part.strips_of_group - item.strip;
  item.count = strips < work.strips_per_item ? strips : work.strips_per_item;
  return item;
}

// The blocks of a strip that segments have: [begin, end).
struct BlockRange {
  int32_t begin = 0;
  int32_t end = 0;
};
HB_HD inline BlockRange BlocksOf(const DensePart& part, int32_t segment, int32_t segment_end) {
  const int32_t of_segment = part.fp8 ? kSegmentK / 256 : kSegmentK / 128;
  const int32_t end = segment_end * of_segment;
  return {segment * of_segment, end < part.k_blocks ? end : part.k_blocks};
}

// How many tiles are worked on at the same time: with as many strips, so that both stay in the L2
// cache.
inline constexpr int32_t kTilesAtOnce = 4;

// Strips of a weight, so many at once, none of two groups.
constexpr int64_t StripItems(const DenseShape& shape, int64_t at_once) {
  return shape.groups * CeilDiv(shape.strips_of_group(), at_once);
}

// Shapes of at most kMaxDenseProducts weights with the same segments; those whose items take longer
// come first.
inline DenseWork MakeDenseWork(std::span<const DenseShape> shapes, int64_t tokens,
                               int64_t multiprocessors) {
  const auto narrow = [](int64_t n) { return static_cast<int32_t>(n); };
  DenseWork work;
  work.part_count = narrow(std::ssize(shapes));
  work.tokens = narrow(tokens);
  work.tile_rows = narrow(DenseTileRows(tokens));
  work.tiles = narrow(CeilDiv(tokens, work.tile_rows));
  work.tiles_at_once = std::min(work.tiles, kTilesAtOnce);
  work.segments = narrow(shapes.front().segments());
  for (const DenseShape& shape : shapes) work.strips += narrow(shape.strips());
  const bool may_part = work.segments > 1 && tokens <= kMostTokensApart &&
                        int64_t{work.tiles} * work.strips <= kMostArrivals;
  int64_t least = 0;
  for (const bool apart : {false, true}) {
    if (apart && !may_part) continue;
    for (const int64_t at_once : {kDenseStripsAtOnce, int64_t{1}}) {
      int64_t items = 0;
      for (const DenseShape& shape : shapes) items += StripItems(shape, at_once) * work.tiles;
      if (apart) items *= work.segments;
      // In sixteenths of the time of a segment of two strips, from times on an H200. One strip
      // takes more than half of it: only its own warpgroup's part of the ring is in use. Segments
      // that meet in memory cost something, and the more the wider the tile.
      const int64_t rounds = CeilDiv(items, multiprocessors);
      const int64_t product = at_once == kDenseStripsAtOnce ? 16 : 12;
      const int64_t meeting = 6 + work.tile_rows * 3 / 16;
      const int64_t time =
          apart ? rounds * (product + meeting) + 4 : rounds * work.segments * product;
      if (least != 0 && time >= least) continue;
      least = time;
      work.strips_per_item = narrow(at_once);
      work.apart = apart;
      work.items = narrow(items);
    }
  }
  int64_t item = 0, strip = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const DenseShape& shape = shapes[i];
    DensePart& part = work.parts[i];
    const int64_t strip_items = StripItems(shape, work.strips_per_item);
    part = {.scales_offset = shape.scales_offset(),
            .fp8 = shape.format == DenseFormat::kFp8,
            .rows = narrow(shape.rows),
            .rows_of_group = narrow(shape.rows_of_group()),
            .strips_of_group = narrow(shape.strips_of_group()),
            .k_blocks = narrow(shape.k_blocks()),
            .strip_items_of_group = narrow(strip_items / shape.groups),
            .strip_items = narrow(strip_items),
            .first_strip = narrow(strip),
            .first_item = narrow(item)};
    item += strip_items * work.tiles * (work.apart ? work.segments : 1);
    strip += shape.strips();
  }
  return work;
}

}  // namespace halfbyte::sm90
