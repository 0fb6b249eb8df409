// The last step of a layer on the GPU (moe-layer.md §2, step 9), as kernels/combine/combine_slots.h
// has it: out[t] = output_scale * sum of the token's slot values times their weights, in the order
// of its choices, each step one fused multiply-add; rounded once if the output is bf16. Every row
// of out is written.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace halfbyte {

struct CombineArguments {
  const float* slot_values = nullptr;    // [rows, hidden]
  const int32_t* row_of_slot = nullptr;  // [tokens * top_k]; -1: left out
  const float* slot_weights = nullptr;   // [tokens * top_k], or null: all 1
  int64_t tokens = 0;
  int64_t top_k = 0;
  int64_t hidden = 0;  // a multiple of 4
  float output_scale = 1;
  void* out = nullptr;      // [tokens, hidden], 16-byte aligned
  bool out_is_bf16 = true;  // else fp32
};
cudaError_t LaunchCombine(const CombineArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte
