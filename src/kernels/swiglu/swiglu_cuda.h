// SwigluRow on the GPU, with all scales and the weight 1 and h rounded to bf16: bit for bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "numerics/bf16.h"

namespace halfbyte {

struct SwigluArguments {
  float limit = 0;  // of SwigluParams
  float alpha = 1;
  float add = 0;
  const float* gate = nullptr;  // [count]
  const float* up = nullptr;    // [count]
  int64_t count = 0;            // a multiple of 4
  Bf16* h = nullptr;            // out, [count]
};
cudaError_t LaunchSwiglu(const SwigluArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte
