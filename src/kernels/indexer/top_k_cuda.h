// The best of many scores on the GPU, exactly: kernels/indexer/top_k.h for each token of a step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace halfbyte {

struct TopKArguments {
  const int32_t* positions = nullptr;  // [tokens]; -1: padding, which sees nothing
  int64_t tokens = 0;
  int64_t rate = 4;   // a token at position p sees (p + 1) / rate entries
  int64_t top_k = 0;  // >= 1
  // [tokens, stride] ordered_score.h of visible entries, the rest is not read; 16-byte aligned.
  // Tokens that see no more than top_k need none.
  const uint32_t* scores = nullptr;
  int64_t stride = 0;           // a multiple of 4; no token sees more
  int32_t* selected = nullptr;  // out, [tokens, top_k]: ascending, then -1
  int32_t* counts = nullptr;    // out, [tokens]
};
cudaError_t LaunchTopK(const TopKArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte
