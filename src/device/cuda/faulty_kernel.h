// For tests: a kernel that writes where no memory is. The process cannot use its GPU afterwards.
#pragma once

#include <cuda_runtime_api.h>

namespace halfbyte {

cudaError_t LaunchFaultyKernel(cudaStream_t stream);

}  // namespace halfbyte
