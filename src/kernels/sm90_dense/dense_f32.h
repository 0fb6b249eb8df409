// Products of fp32 weights, without the tensor core, in the order of kernels/linear.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sm90_dense/sm90_dense.h"

namespace halfbyte::sm90 {

// x, y and the weight as in DenseArguments.
cudaError_t LaunchDenseF32(const Bf16* x, int64_t tokens, const DenseProduct& product,
                           cudaStream_t stream);

}  // namespace halfbyte::sm90
