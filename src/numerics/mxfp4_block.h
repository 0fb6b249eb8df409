// MXFP4: 32 E2M1 codes and one E8M0 scale (nvfp4.md §4), and its lossless form as two NVFP4 blocks.
#pragma once

#include <bit>
#include <cstdint>

#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/host_device.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {

inline constexpr int kMxfp4Block = 32;

struct Mxfp4Block {
  uint8_t codes[kMxfp4Block / 2] = {};
  uint8_t scale = 0;  // E8M0, never 0xff
};

// DeepSeek's rule: max(amax, 6 * 2^-126) / 6 rounded up to a power of two, so nothing saturates.
HB_HD constexpr uint8_t Mxfp4BlockScale(float amax) {
  constexpr float kFloor = kE2m1Max * 0x1p-126f;
  return E8m0FromFloatRoundUp((amax > kFloor ? amax : kFloor) / kE2m1Max);
}

HB_HD constexpr Mxfp4Block QuantizeMxfp4Block(const float* x) {
  Mxfp4Block block;
  block.scale = Mxfp4BlockScale(BlockAmax(x, kMxfp4Block));
  const float scale = E8m0ToFloat(block.scale);
  for (int i = 0; i < kMxfp4Block; i += 2) {
    block.codes[i / 2] = PackE2m1(E2m1FromFloat(x[i] / scale), E2m1FromFloat(x[i + 1] / scale));
  }
  return block;
}

HB_HD constexpr float DequantizeMxfp4(uint8_t code, uint8_t scale) {
  return E2m1ToFloat(code) * E8m0ToFloat(scale);
}

// Lossless MXFP4 -> NVFP4 (nvfp4.md §4.1): codes stay, global_scale = 2^(k_max - 8), each 2^k
// becomes the E4M3 number 2^(k - k_max + 8), exact for k_max - k <= kLosslessBinades.
inline constexpr int kLosslessBinades = 17;

// 2^(k_max - 8) for the largest scale byte among the tensor's blocks that are not all zero.
// Clamped to [2^-149, 2^127], the powers of two of fp32.
HB_HD constexpr GlobalScale LosslessGlobalScale(uint8_t largest_scale) {
  const int exponent = int{largest_scale} - 127 - 8;
  if (exponent >= -126) return GlobalScale(E8m0ToFloat(static_cast<uint8_t>(exponent + 127)));
  return GlobalScale(std::bit_cast<float>(uint32_t{1} << (exponent + 149)));
}

// The E4M3 byte for a block with scale byte `scale` <= largest_scale; 0 if it lies more than 17
// binades below.
HB_HD constexpr uint8_t LosslessBlockScale(uint8_t scale, uint8_t largest_scale) {
  const int exponent = int{scale} - int{largest_scale} + 8;  // of the wanted E4M3 number
  if (exponent >= -6) return static_cast<uint8_t>((exponent + 7) << 3);
  if (exponent >= -9) return static_cast<uint8_t>(1 << (exponent + 9));
  return 0;
}

// MXFP4 -> FP8 tile: E2M1 values are E4M3 numbers, so a tile's blocks can share one E8M0 scale.
// With 2^(k_max - 6) the largest value is 6 * 64 = 384; a block is exact if it lies at most
// kFp8TileBinades below the largest, and others lose their small codes.
inline constexpr int kFp8TileBinades = 14;

// The shared E8M0 byte, 0 (2^-127) if 2^(k_max - 6) is below that.
HB_HD constexpr uint8_t Fp8TileScale(uint8_t largest_scale) {
  return static_cast<uint8_t>(largest_scale > 6 ? largest_scale - 6 : 0);
}

}  // namespace halfbyte
