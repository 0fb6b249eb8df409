// Activations into the images that the grouped products read (sm90_layout.h), and h of an image
// requantized to NVFP4 in place. Padding rows are neither written nor read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/dispatch_plan/token_tiles.h"
#include "kernels/quantize_nvfp4/quantize_nvfp4_cuda.h"
#include "kernels/sm90_moe/few_slots.h"
#include "kernels/sm90_moe/sm90_layout.h"
#include "numerics/bf16.h"

namespace halfbyte::sm90 {

// What becomes of the activations of kW4a4: every block of 16 columns is code * block_scale of its
// NVFP4 block, which bf16 holds exactly.
struct ActivationQuantizer {
  bool quantize = false;
  float static_scale = 0;             // 0: each row's own, as of its largest finite value
  Nvfp4DeviceStats* stats = nullptr;  // or null
};

struct GatherArguments {
  TokenPlan plan;  // read; or written, tile_count[1] left out, with `few`
  FewSlots few;    // where the plan comes from, if not from memory
  int64_t tokens = 0;
  const Bf16* x = nullptr;  // [tokens, k], 16-byte aligned
  int64_t k = 0;            // a multiple of 16
  int64_t top_k = 0;        // slot s belongs to token s / top_k
  ActivationQuantizer quantizer;
  const float* slot_weights = nullptr;  // [slots], or null
  uint8_t* image = nullptr;             // out; columns from k to PaddedK(k) become 0
  float* row_scales = nullptr;          // out, [rows], if each row has its own scale
  float* row_weights = nullptr;         // out, [rows], with slot_weights
};
cudaError_t LaunchGather(const GatherArguments& arguments, cudaStream_t stream);

// Requantizes an image in place.
struct RequantizeArguments {
  TokenPlan plan;
  int64_t max_rows = 0;  // what row_count can be at most: sizes the launch
  uint8_t* image = nullptr;
  int64_t k = 0;                      // a multiple of 16
  float static_scale = 0;             // as in ActivationQuantizer
  float* row_scales = nullptr;        // out, [rows], if static_scale is 0
  Nvfp4DeviceStats* stats = nullptr;  // or null
};
cudaError_t LaunchRequantize(const RequantizeArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte::sm90
