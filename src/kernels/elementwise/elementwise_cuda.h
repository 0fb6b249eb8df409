// The small steps between products, on the GPU: rows of bf16, rounded as Rounding::kBf16 does.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device_step.h"
#include "numerics/bf16.h"

namespace halfbyte {

// EmbedTokens; zeros where padding.
struct EmbedArguments {
  const Bf16* table = nullptr;  // [vocab, columns]
  int64_t vocab = 0;
  int64_t columns = 0;  // a multiple of 8
  int64_t copies = 1;
  DeviceTokens tokens;  // positions, token_ids
  Bf16* out = nullptr;  // [tokens, copies * columns]
};
cudaError_t LaunchEmbed(const EmbedArguments& arguments, cudaStream_t stream);

// to[i] = from[rows[i]]: rows of bytes. The two do not overlap.
struct KeepRowsArguments {
  const void* from = nullptr;
  const int32_t* rows = nullptr;  // [count]
  int64_t count = 0;
  int64_t row_bytes = 0;  // a multiple of 4
  void* to = nullptr;
};
cudaError_t LaunchKeepRows(const KeepRowsArguments& arguments, cudaStream_t stream);

// out = round(a + b)
struct AddRowsArguments {
  const float* a = nullptr;  // [count]
  const float* b = nullptr;
  int64_t count = 0;  // a multiple of 4
  Bf16* out = nullptr;
};
cudaError_t LaunchAddRows(const AddRowsArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte
