// The NVFP4 quantizer of activations on the GPU: rows of bf16, under one given global scale or each
// row's own (moe-layer.md §4). Codes and scale bytes are those of kernels/quantize_nvfp4 and
// numerics/nvfp4_block.h, byte for byte: the device runs the same functions on a block.
//
// Nothing is read by the host and nothing depends on other rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "numerics/bf16.h"

namespace halfbyte {

// Nvfp4BlockStats in device memory, summed over any number of launches by integer atomics, which
// give the same sums in any order. Zero them with cudaMemset.
struct Nvfp4DeviceStats {
  unsigned long long blocks = 0;
  unsigned long long zero = 0;
  unsigned long long flushed = 0;
  unsigned long long at_max = 0;
  unsigned long long clipped = 0;
  unsigned long long non_finite = 0;
  uint32_t amax_bits = 0;  // of an fp32 that is not negative: ordered as the number is
};

struct QuantizeRowsArguments {
  const Bf16* x = nullptr;  // [rows, k], 16-byte aligned
  int64_t rows = 0;
  int64_t k = 0;           // a multiple of 16
  float static_scale = 0;  // 0: each row's own, as of its largest finite value
  // Outputs, each null if it is not wanted.
  uint8_t* codes = nullptr;         // [rows, k / 2]
  uint8_t* block_scales = nullptr;  // [rows, k / 16]
  Bf16* decoded = nullptr;          // [rows, k], code * block_scale, which bf16 holds exactly
  float* row_scales = nullptr;      // [rows], the global scales
  Nvfp4DeviceStats* stats = nullptr;
};
cudaError_t LaunchQuantizeRows(const QuantizeRowsArguments& arguments, cudaStream_t stream);

// tiled = TileScales(linear): 128x4 tiles of tensor/scale_layout.h, padding zero. [rows, blocks]
// bytes in, TiledScales{rows, blocks}.bytes() out. And back.
cudaError_t LaunchTileScales(const uint8_t* linear, int64_t rows, int64_t blocks, uint8_t* tiled,
                             cudaStream_t stream);
cudaError_t LaunchUntileScales(const uint8_t* tiled, int64_t rows, int64_t blocks, uint8_t* linear,
                               cudaStream_t stream);

}  // namespace halfbyte
