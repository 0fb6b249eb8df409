// A weight matrix [rows, columns] rearranged once at load, so that the kernels of packed_linear.h
// read it as one sequential stream. Panels of 16 rows follow each other; a panel is a sequence of
// tiles, 16 rows x 64 columns (FP8: 128). In a tile, blocks of 16 columns follow each other. Rows
// are filled up to 16 and columns to a tile with zeros. A tile's scales stand first, since its
// first block needs them: lines touched in ascending order are what AMD's prefetchers follow
// (docs/performance.md).
//
// kFourBit, 576 bytes a tile, exactly the 4.5 bits a weight of NVFP4: block scales, then codes.
//   scales  [4 blocks][16 rows], an E4M3 number as PackedScale: three bits of mantissa below five
//           of exponent, bias 10, no subnormal numbers. Shifted left by 20 the byte is an fp32
//           number, 2^-117 of its value. (Left as subnormals, rare scales below 2^-6 would cost
//           processors of Intel over a hundred cycles each.)
//   codes   two vectors of 64 bytes for each block; in vector v (0 or 1) byte 4 * row + i holds
//           column 8v + i in its low and 8v + 4 + i in its high nibble
//   NVFP4 keeps every code and scale; the global scale stays beside the bytes. MXFP4 becomes NVFP4
//   without loss (tensor/mxfp4_to_nvfp4.h) where all its scales lie within 18 binades.
//
// kBf16, 2048 bytes a tile: bf16 numbers, eight pairs of columns a block, each [16 rows][odd
//   column, even column]. Numbers below 2^-52 become 0.
//
// kFp8, 2112 bytes a tile: one fp32 scale for each of the 16 rows, then E4M3 bytes.
//   bytes   four vectors of 64 bytes for each block, two pairs in each:
//           [4 groups of 4 rows][2 pairs of columns][4 rows][odd column, even column]
//   Not for matrices with a NaN among their bytes or with scales that change within 128 columns.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "base/thread_pool.h"
#include "numerics/e4m3.h"
#include "numerics/global_scale.h"
#include "tensor/nvfp4_matrix.h"
#include "tensor/weight_matrix.h"

namespace halfbyte {

enum class PackedFormat : uint8_t { kFourBit, kFp8, kBf16 };

inline constexpr int64_t kPanelRows = 16;
inline constexpr int64_t kTileScaleBytes = 64;  // of kFourBit and kFp8
// Of kFourBit.
inline constexpr int64_t kTileColumns = 64;
inline constexpr int64_t kTileBytes = kTileScaleBytes + kPanelRows * kTileColumns / 2;

struct TileShape {
  int64_t columns;
  int64_t bytes;
};
constexpr TileShape TileOf(PackedFormat format) {
  return format == PackedFormat::kFourBit ? TileShape{kTileColumns, kTileBytes}
         : format == PackedFormat::kFp8   ? TileShape{128, kTileScaleBytes + kPanelRows * 128}
                                          : TileShape{64, kPanelRows * 64 * 2};
}

// Any E4M3 byte 0x00..0x7e, and back. 0 stays 0.
constexpr uint8_t PackedScale(uint8_t e4m3) {
  const float value = E4m3ToFloat(e4m3);
  // fp32 bits with bias 10 in place of 127; exact, as E4M3 has three bits of mantissa.
  return value == 0 ? uint8_t{0}
                    : static_cast<uint8_t>((std::bit_cast<uint32_t>(value) >> 20) - (117u << 3));
}
constexpr float PackedScaleToFloat(uint8_t packed) {
  return packed == 0 ? 0.0f : std::bit_cast<float>((uint32_t{packed} << 20) + (117u << 23));
}

// A view; whoever packed owns the bytes, which start at a multiple of 64.
struct PackedMatrix {
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 16
  const uint8_t* data = nullptr;
  GlobalScale global_scale{1.0f};  // of kFourBit: weight = code * block_scale * global_scale
  PackedFormat format = PackedFormat::kFourBit;

  int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  int64_t tiles() const {  // of a panel
    return (columns + TileOf(format).columns - 1) / TileOf(format).columns;
  }
  int64_t panel_bytes() const { return tiles() * TileOf(format).bytes; }
  int64_t bytes() const { return panels() * panel_bytes(); }
};

// How w is packed. Nothing: fp32 and fp16 never are, nor are columns that are no multiple of 16.
std::optional<PackedFormat> PackedFormatOf(const WeightMatrix& w);
// Bytes that PackMatrix writes; 0 if it surely packs nothing.
int64_t PackedBytes(const WeightMatrix& w);

// Packs a matrix into memory of PackedBytes(w) that starts at a multiple of 64; parallel over
// panels. Nothing: it has no packed form (see above), whatever was written. Error: a block scale
// byte of NVFP4 or MXFP4 that is NaN or has a sign, naming `name` and the position.
Result<std::optional<PackedMatrix>> PackMatrix(ThreadPool& pool, const WeightMatrix& w,
                                               uint8_t* memory, std::string_view name);

// The inverse for kFourBit: what was packed, with linear scales.
Nvfp4Matrix UnpackMatrix(const PackedMatrix& packed);

}  // namespace halfbyte
