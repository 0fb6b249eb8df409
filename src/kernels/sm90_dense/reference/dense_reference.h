// Products of sm90_dense.h from a checkpoint's bytes, plainly: one thread for an output, sums in
// double. The judge of the fast kernels; slow.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/sm90_dense/sm90_dense.h"
#include "numerics/bf16.h"

namespace halfbyte::sm90 {

// value, bound [tokens, rows]: the exact sum (to double), and how far nearly all fp32 sums are from
// it at most (sm90_dense.h).
cudaError_t LaunchReferenceDense(const StoredDense& stored, const Bf16* x, int64_t tokens,
                                 double* value, double* bound, cudaStream_t stream);

}  // namespace halfbyte::sm90
