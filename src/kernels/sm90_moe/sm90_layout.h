// Where everything lies that the MoE layer of sm_90a (Hopper) keeps in device memory: packed 4-bit
// weights, activation images, token tiles. For host and device; every offset is computed here.
//
// Weights. Hopper multiplies no 4-bit numbers, so every weight becomes a bf16 number in a register,
// exactly, right before the tensor core reads it. The order below makes that cheap: a thread finds
// 32 codes in 16 bytes and their two scales in 2, in the order in which `wgmma` wants them.
//   strip   64 rows; as much of K as a matrix has, filled with zeros to a multiple of 512
//   block   64 rows x 512 columns, 18,432 bytes: 16,384 of codes, then 2,048 of scales. The blocks
//           of a strip follow each other along K, the strips follow each other, then the next
//           matrix: gate_up, down, gate_up of the next expert, ...
//   codes   [8 groups of 64 columns][128 threads][4 words], one word of 8 codes for a step of 16
//   scales  [128 threads][8 groups][row, row + 8], one byte each
// Thread 32 * w + 4 * g + t of a block owns rows 16 * w + g and 16 * w + g + 8, and of each group
// of 64 columns the sixteen from 16 * t on: one block of NVFP4.
//
// gate_up. One matrix: in each 16 rows of a strip, rows 0..7 are gate and 8..15 up of the same
// eight channels, so that both end in one thread. Two strips hold 64 channels, and in such an order
// that pairs of accumulators are words of an image of h.
//
// Images. Activations as the tensor core reads them from shared memory. The image of a token tile
// with n rows (a multiple of 8) is [k64 groups][n / 8][1,024 bytes]; the 1,024 bytes are 8 rows of
// 128 bytes = 64 columns of bf16, whose 16-byte pieces are exchanged: piece c of row r lies at
// c ^ (r % 8). Columns stand in KPosition order within their group.
#pragma once

#include <cstdint>

#include "kernels/dispatch_plan/token_tiles.h"
#include "kernels/sm90/sm90_shapes.h"
#include "numerics/host_device.h"

namespace halfbyte::sm90 {

inline constexpr int64_t kBlockK = 512;
inline constexpr int64_t kBlockGroups = kBlockK / kGroupK;
inline constexpr int64_t kBlockThreads = 128;
inline constexpr int64_t kCodeBytes = kStripRows * kBlockK / 2;
inline constexpr int64_t kScaleBytes = kStripRows * kBlockK / 16;
inline constexpr int64_t kBlockBytes = kCodeBytes + kScaleBytes;
inline constexpr int64_t kAtomRows = kTileStep;

HB_HD constexpr int64_t PaddedK(int64_t k) { return CeilDiv(k, kBlockK) * kBlockK; }

// Column 16 t + 4 s + i of a group of 64 (t, s, i in 0..3) stands at 16 s + 2 t + {0, 1, 8, 9}[i]:
// thread t's part of step s. And back.
HB_HD constexpr int64_t KPosition(int64_t column) {
  const int64_t t = column / 16, s = column % 16 / 4, i = column % 4;
  return 16 * s + 2 * t + i % 2 + i / 2 * 8;
}
HB_HD constexpr int64_t ColumnAtPosition(int64_t position) {
  const int64_t s = position / 16, t = position % 8 / 2;
  return 16 * t + 4 * s + position % 2 + position % 16 / 8 * 2;
}

// The eight codes of a thread and a step, woven into a word so that few instructions turn them into
// bf16 numbers. Fragment 0: row, columns 0 and 1 of four in a row; 1: row + 8, the same; 2 and 3:
// columns 2 and 3. As bf16 a code is code * 2^-126: sign in bit 15, magnitude in bits 8..6. These
// eight bits of both columns are, for the fragments 0, 1, 2, 3,
//   w,   w << 6,   w rotated left by 12,   and bits 8 of w >> 6, the others of w << 2.
// Bit 0..2 of a magnitude or its sign, 3, of the first or the second column (upper).
HB_HD constexpr int WovenBit(int fragment, int upper, int bit) {
  if (fragment == 0) return 16 * upper + (bit == 3 ? 15 : 6 + bit);
  if (fragment == 1) return 16 * upper + (bit == 3 ? 9 : bit);
  if (fragment == 2) return bit == 3 ? 3 + 16 * upper : 26 - 16 * upper + bit;
  return 16 * upper + (bit == 3 ? 13 : bit == 2 ? 14 : 4 + bit);
}
HB_HD constexpr uint32_t WeaveCode(uint32_t code, int fragment, int upper) {
  uint32_t word = 0;
  for (int bit = 0; bit < 4; ++bit) word |= (code >> bit & 1) << WovenBit(fragment, upper, bit);
  return word;
}
HB_HD constexpr uint8_t UnweaveCode(uint32_t word, int fragment, int upper) {
  uint32_t code = 0;
  for (int bit = 0; bit < 4; ++bit) code |= (word >> WovenBit(fragment, upper, bit) & 1) << bit;
  return static_cast<uint8_t>(code);
}
// row_a and row_b hold the four codes of rows r and r + 8, one in each nibble, the first lowest.
HB_HD constexpr uint32_t WeaveWord(uint32_t row_a, uint32_t row_b) {
  uint32_t word = 0;
  for (int column = 0; column < 4; ++column) {
    word |= WeaveCode(row_a >> (4 * column) & 15, column / 2 * 2, column % 2);
    word |= WeaveCode(row_b >> (4 * column) & 15, column / 2 * 2 + 1, column % 2);
  }
  return word;
}

// A block scale 2^e * (1 + m / 8), e = -9..8, as the byte (e + 9) << 3 | m. No scale has the byte
// 1, which stands for zero; the codes under it are zero. From E4M3 0x00..0x7e, and back.
inline constexpr uint8_t kZeroScaleByte = 1;
HB_HD constexpr uint8_t ScaleByte(uint8_t e4m3) {
  if (e4m3 == 0) return kZeroScaleByte;
  if (e4m3 >= 8) return static_cast<uint8_t>(e4m3 + 16);
  // A subnormal, m * 2^-9: its highest bit becomes the implicit one.
  const int e = e4m3 >= 4 ? 2 : e4m3 >= 2 ? 1 : 0;
  return static_cast<uint8_t>(e << 3 | ((e4m3 << (3 - e)) & 7));
}
HB_HD constexpr uint8_t E4m3OfScaleByte(uint8_t byte) {
  if (byte == kZeroScaleByte) return 0;
  if (byte >= 24) return static_cast<uint8_t>(byte - 16);
  return static_cast<uint8_t>((8 | (byte & 7)) >> (3 - (byte >> 3)));
}
// What a kernel multiplies is code * scale * 2^-7; the epilogue undoes it.
inline constexpr float kEpilogueFactor = 128.0f;

// A packed matrix of `strips` strips over `k` columns.
struct PackedShape {
  int64_t strips = 0;
  int64_t k = 0;

  HB_HD constexpr int64_t k_blocks() const { return CeilDiv(k, kBlockK); }
  HB_HD constexpr int64_t bytes() const { return strips * k_blocks() * kBlockBytes; }
  HB_HD constexpr int64_t block_offset(int64_t strip, int64_t k_block) const {
    return (strip * k_blocks() + k_block) * kBlockBytes;
  }
};
// Within a block.
HB_HD constexpr int64_t CodeOffset(int64_t group, int64_t thread) {
  return group * (kBlockThreads * 16) + thread * 16;
}
HB_HD constexpr int64_t ScaleOffset(int64_t group, int64_t thread) {
  return kCodeBytes + thread * 16 + group * 2;
}

// A row of gate_up: which matrix, which channel.
struct GateUpRow {
  bool up = false;
  int64_t channel = 0;
  friend constexpr bool operator==(GateUpRow, GateUpRow) = default;
};
// Two strips are 64 channels. A strip of the two has the channels of two NVFP4 blocks of h, 16 t ..
// 16 t + 15 each, so that it can requantize them: slab w (a warp's) has pieces 2 w and 2 w + 1 of
// an image's row, and of each the words of both blocks.
HB_HD constexpr GateUpRow GateUpRowAt(int64_t row) {
  const int64_t strip = row / 64 % 2, w = row / 16 % 4, g = row % 8;
  const int64_t piece = 2 * w + g / 4, t = 2 * strip + g / 2 % 2;
  return {row % 16 >= 8, row / 128 * 64 + 16 * t + 2 * piece + g % 2};
}
HB_HD constexpr int64_t RowOfGateUp(GateUpRow at) {
  const int64_t t = at.channel % 64 / 16, piece = at.channel % 16 / 2;
  const int64_t g = piece % 2 * 4 + t % 2 * 2 + at.channel % 2;
  return at.channel / 64 * 128 + t / 2 * 64 + piece / 2 * 16 + (at.up ? 8 : 0) + g;
}

// One expert. hidden and intermediate are multiples of 16.
struct ExpertShape {
  int64_t hidden = 0;
  int64_t intermediate = 0;

  HB_HD constexpr PackedShape gate_up() const { return {2 * CeilDiv(intermediate, 64), hidden}; }
  HB_HD constexpr PackedShape down() const { return {CeilDiv(hidden, kStripRows), intermediate}; }
  HB_HD constexpr int64_t down_offset() const { return gate_up().bytes(); }
  HB_HD constexpr int64_t bytes() const { return gate_up().bytes() + down().bytes(); }
};

// Byte offset in the buffer of all images. `row` counts within the tile; column < PaddedK(k).
HB_HD constexpr int64_t ImageBytes(int64_t rows, int64_t k) { return rows * PaddedK(k) * 2; }
HB_HD constexpr int64_t ImageOffset(const TokenTile& tile, int64_t k, int64_t row, int64_t column) {
  const int64_t atom = column / kGroupK * (tile.rows / kAtomRows) + row / kAtomRows;
  const int64_t position = KPosition(column % kGroupK);
  return ImageBytes(tile.row_begin, k) + atom * kAtomBytes + row % kAtomRows * 128 +
         ((position / 8) ^ (row % kAtomRows)) * 16 + position % 8 * 2;
}

}  // namespace halfbyte::sm90
