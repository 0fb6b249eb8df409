// Window rows of a step into the KV cache on the GPU: RmsNorm, ApplyRope and StoreKvRows of the CPU
// with Rounding::kBf16, bit for bit, and the norm of what queries are made of.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device_step.h"
#include "numerics/bf16.h"

namespace halfbyte {

struct StoreRowsArguments {
  DeviceTokens tokens;  // all of the step; padding stores nothing
  DeviceSequences sequences;
  DeviceRope rope;

  Bf16* low_rank = nullptr;  // [tokens, low_rank_columns], normed in place
  int64_t low_rank_columns = 0;
  const float* low_rank_norm = nullptr;  // [low_rank_columns]

  const Bf16* window = nullptr;  // [tokens, head_dim] as projected
  int64_t head_dim = 0;
  const float* window_norm = nullptr;  // [head_dim]
  float eps = 0;                       // of both norms
  DeviceRows rows;                     // of the layer, in window pages: position p is row p
};
cudaError_t LaunchStoreRows(const StoreRowsArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte
