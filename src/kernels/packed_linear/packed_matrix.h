// A 4-bit weight matrix [rows, columns] rearranged once at load, so that the kernels of
// packed_linear.h read it as one sequential stream. Exactly the 4.5 bits a weight of NVFP4.
//
//   panel   16 rows, all columns; panels follow each other
//   tile    16 rows x 64 columns of a panel, 576 bytes: 512 of codes, then 64 of block scales
//   codes   two vectors of 64 bytes for each block of 16 columns; in vector v (0 or 1) byte
//           4 * row + i holds column 8v + i in its low and 8v + 4 + i in its high nibble
//   scales  [4 blocks][16 rows], an E4M3 number as PackedScale: three bits of mantissa below five
//   of
//           exponent, bias 10, no subnormal numbers. Shifted left by 20 the byte is an fp32 number,
//           2^-117 of its value. (Left as subnormals, rare scales below 2^-6 would cost processors
//           of Intel over a hundred cycles each.)
//
// Rows are filled up to 16 and columns to 64 with zero codes under zero scales.
// NVFP4 keeps every code and scale; the global scale stays beside the bytes. MXFP4 becomes
// NVFP4 without loss (tensor/mxfp4_to_nvfp4.h) where all its scales lie within 18 binades.
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

inline constexpr int64_t kPanelRows = 16;
inline constexpr int64_t kTileColumns = 64;
inline constexpr int64_t kTileCodeBytes = kPanelRows * kTileColumns / 2;
inline constexpr int64_t kTileBytes = kTileCodeBytes + kPanelRows * kTileColumns / 16;

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
  GlobalScale global_scale{1.0f};  // weight = code * block_scale * global_scale

  int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  int64_t tiles() const { return (columns + kTileColumns - 1) / kTileColumns; }  // of a panel
  int64_t bytes() const { return panels() * tiles() * kTileBytes; }
};

// Packs an NVFP4 or MXFP4 matrix into memory of PackedMatrix{w.rows, w.columns}.bytes() that starts
// at a multiple of 64; parallel over panels. Nothing: an MXFP4 matrix that does not fit (see
// above). Error: a block scale byte that is NaN or has a sign, naming `name` and the position.
// Another format or a column count that is no multiple of 16 aborts.
Result<std::optional<PackedMatrix>> PackMatrix(ThreadPool& pool, const WeightMatrix& w,
                                               uint8_t* memory, std::string_view name);

// The inverse: what was packed, with linear scales.
Nvfp4Matrix UnpackMatrix(const PackedMatrix& packed);

}  // namespace halfbyte
