// The grouped products of sm90_gemm.h, plainly: one thread for an output, one number at a time from
// the packed weights and the image, sums in fp64. The judge of the fast kernels; slow.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/sm90_moe/sm90_gemm.h"

namespace halfbyte::sm90 {

cudaError_t LaunchReferenceGateUp(const GateUpArguments& arguments, cudaStream_t stream);
cudaError_t LaunchReferenceDown(const DownArguments& arguments, cudaStream_t stream);

}  // namespace halfbyte::sm90
