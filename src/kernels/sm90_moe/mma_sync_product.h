// A product by the tensor core's older instruction, for tests: y[m, n] = sum over k of
// w[m, k] * x[n, k], by mma.sync m16n8k16 in the order of k. Packed weights and images hold k in an
// order of their own (sm90_layout.h); with both operands in that order the sums have the bits of
// the wgmma that sm90_gemm.h uses.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "numerics/bf16.h"

namespace halfbyte::sm90 {

// m, n and k are multiples of 16, 8 and 16.
cudaError_t LaunchMmaSyncProduct(const Bf16* w, int64_t m, const Bf16* x, int64_t n, int64_t k,
                                 float* y, cudaStream_t stream);

}  // namespace halfbyte::sm90
