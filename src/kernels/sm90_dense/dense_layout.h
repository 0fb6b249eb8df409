// Where a packed weight of sm90_dense.h keeps what. For host and device.
//
//   strip   64 rows of a group (the last of a group is filled with zeros); those of a group follow
//           each other, then the next group's
//   block   64 rows x 256 columns of FP8, or x 128 of bf16: 16,384 bytes. A strip's blocks follow
//           each other along K, the last one filled with zeros.
//   scales  behind the blocks of FP8, 16 bytes each: two words, one for 128 columns
// Rows of a strip stand in such an order that rows 2 g and 2 g + 1 of a slab of sixteen end in the
// same thread (RowInStrip): its two numbers of a token are neighbours.
//
// FP8   [4 groups of 64 columns][2 steps of 16, twice][128 threads][2 steps][2 rows] words: thread
//       32 w + 4 g + t of a warpgroup has rows 2 g and 2 g + 1 of slab w, columns 2 t + {0, 1, 8,
//       9} of each step, in a word whose bits are woven so that few instructions make bf16 of them.
// bf16  [2 groups of 64 columns][8 atoms], as the tensor core reads them (sm90_shapes.h).
#pragma once

#include <cstdint>

#include "kernels/sm90/sm90_shapes.h"
#include "numerics/host_device.h"

namespace halfbyte::sm90 {

enum class DenseFormat : uint8_t {
  kFp8,  // E4M3 with a scale for each 128 x 128: a power of two, 2^-117 .. 2^7
  kBf16,
  kF32,
};

inline constexpr int64_t kSegmentK = 1024;
inline constexpr int64_t kDenseBlockBytes = 16384;
inline constexpr int64_t kDenseScaleBytes = 16;

struct DenseShape {
  DenseFormat format = DenseFormat::kBf16;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t groups = 1;

  HB_HD constexpr int64_t rows_of_group() const { return rows / groups; }
  HB_HD constexpr int64_t strips_of_group() const { return CeilDiv(rows_of_group(), kStripRows); }
  HB_HD constexpr int64_t strips() const { return groups * strips_of_group(); }
  HB_HD constexpr int64_t block_k() const { return format == DenseFormat::kFp8 ? 256 : 128; }
  HB_HD constexpr int64_t k_blocks() const { return CeilDiv(columns, block_k()); }
  HB_HD constexpr int64_t segments() const { return CeilDiv(columns, kSegmentK); }
  HB_HD constexpr int64_t blocks() const { return strips() * k_blocks(); }
  HB_HD constexpr int64_t scales_offset() const { return blocks() * kDenseBlockBytes; }
  HB_HD constexpr int64_t bytes() const {
    if (format == DenseFormat::kF32) return rows * columns * 4;
    return scales_offset() + (format == DenseFormat::kFp8 ? blocks() * kDenseScaleBytes : 0);
  }
};

// What sm90_dense.h asks of a weight.
constexpr bool IsDenseShape(const DenseShape& shape) {
  if (shape.rows <= 0 || shape.columns <= 0 || shape.groups <= 0) return false;
  if (shape.columns % kGroupK != 0 || shape.rows % shape.groups != 0) return false;
  const int64_t rows = shape.rows_of_group();
  return shape.format == DenseFormat::kF32   ? true
         : shape.format == DenseFormat::kFp8 ? rows % (shape.groups == 1 ? 8 : kStripRows) == 0
                                             : rows % 8 == 0;
}

// The row of a strip that stands at `position`.
HB_HD constexpr int64_t RowInStrip(int64_t position) {
  const int64_t at = position % 16;
  return position / 16 * 16 + (at < 8 ? 2 * at : 2 * (at - 8) + 1);
}

// Four FP8 codes as a word. As bf16, code * 2^-120 has its sign in bit 15 and its other seven bits
// in 10..4; the first two codes stand so in the two halves, the others fill the gaps:
//   first pair   w & 0x87f087f0        second pair   (w << 4) & 0x80f080f0 | (w >> 4) & 0x07000700
HB_HD constexpr uint32_t WeaveFp8Half(uint32_t first, uint32_t second) {
  return (first & 0x7f) << 4 | (first & 0x80) << 8 | (second & 0x0f) | (second & 0x70) << 8 |
         (second & 0x80) << 4;
}
HB_HD constexpr uint32_t WeaveFp8(const uint8_t (&codes)[4]) {
  return WeaveFp8Half(codes[0], codes[2]) | WeaveFp8Half(codes[1], codes[3]) << 16;
}
HB_HD constexpr uint32_t UnweaveFp8First(uint32_t word) { return word & 0x87f087f0u; }
HB_HD constexpr uint32_t UnweaveFp8Second(uint32_t word) {
  return ((word << 4) & 0x80f080f0u) | ((word >> 4) & 0x07000700u);
}

// A power of two 2^e, e in -117..7, by its E8M0 byte: below, a code's product could be a subnormal
// bf16; above, the factor that makes the product of an unwoven code is none any more.
inline constexpr int kLeastScale = 127 - 117, kGreatestScale = 127 + 7;
HB_HD constexpr bool IsDenseScale(int e8m0) {
  return e8m0 >= kLeastScale && e8m0 <= kGreatestScale;
}
// 2^(e + 120) as bf16, twice.
HB_HD constexpr uint32_t DenseScaleWord(int e8m0) {
  return static_cast<uint32_t>(e8m0 + 120) << 7 | static_cast<uint32_t>(e8m0 + 120) << 23;
}

}  // namespace halfbyte::sm90
