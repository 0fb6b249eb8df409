// Activations into the images that the grouped products read (sm90_layout.h), and h of an image
// requantized to NVFP4 in place. Padding rows are neither written nor read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/quantize_nvfp4/quantize_nvfp4_cuda.h"
#include "kernels/sm90_moe/sm90_layout.h"
#include "numerics/bf16.h"

namespace halfbyte::sm90 {

// Which rows there are: device memory, as the plan kernel leaves it.
struct ImageRows {
  const TokenTile* tiles = nullptr;
  const int32_t* row_count = nullptr;     // [1], padding included
  const int32_t* slot_of_row = nullptr;   // -1: padding
  const int32_t* tile_of_atom = nullptr;  // the tile of rows 8 i .. 8 i + 7
  int64_t max_rows = 0;                   // what row_count can be at most: sizes the launch
};

struct GatherArguments {
  ImageRows rows;
  const int32_t* row_of_slot = nullptr;  // -1: none
  int64_t tokens = 0;
  const Bf16* x = nullptr;              // [tokens, k], 16-byte aligned
  int64_t k = 0;                        // a multiple of 16
  int64_t top_k = 0;                    // slot s belongs to token s / top_k
  const float* token_scales = nullptr;  // [tokens], or null
  const float* slot_weights = nullptr;  // [slots], or null
  uint8_t* image = nullptr;             // out; columns from k to PaddedK(k) become 0
  float* row_scales = nullptr;          // out, with token_scales
  float* row_weights = nullptr;         // out, with slot_weights
};
cudaError_t LaunchGather(const GatherArguments& arguments, cudaStream_t stream);

// Every block of 16 original columns becomes code * block_scale of its NVFP4 block (exact in bf16),
// under static_scale, or under each row's own scale, which goes to row_scales.
struct RequantizeArguments {
  ImageRows rows;
  uint8_t* image = nullptr;
  int64_t k = 0;                      // a multiple of 16
  float static_scale = 0;             // 0: each row's own, as of its largest finite value
  float* row_scales = nullptr;        // out, [rows], if static_scale is 0
  Nvfp4DeviceStats* stats = nullptr;  // or null
};
cudaError_t LaunchRequantize(const RequantizeArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte::sm90
