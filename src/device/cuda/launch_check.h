// HALFBYTE_CUDA_CHECK=1 in the environment: after every launch of a kernel of ours the host waits
// for its stream, so that a fault is told by the call that launched the kernel, with its name.
// Without it a fault comes out of some later call, ours or not. Slow; not in captured calls, which
// run nothing yet.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace halfbyte {

// `launched`, unless kernels are checked and this one failed; then its error.
cudaError_t CheckLaunch(cudaError_t launched, const void* kernel, cudaStream_t stream);

// The name of the kernel whose error CheckLaunch has just returned in this thread; asking forgets
// it. Empty: the error is no kernel's.
std::string TakeFailedKernel();

}  // namespace halfbyte
