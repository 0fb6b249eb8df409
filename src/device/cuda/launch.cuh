// How every kernel is launched. The result is the launch's own error, never one that somebody left
// for cudaGetLastError. With HALFBYTE_CUDA_CHECK=1 it is the kernel's too (launch_check.h).
//
// Programmatic dependent launch: a kernel of a chain is set up, and begins what does not depend on
// the one before it, while that one still runs. A kernel that is launched with LaunchDependent
// calls WaitForPrevious before it touches what any earlier kernel of the stream writes, and before
// it ends even if it touches nothing of the kind: then its own end says that all before it have
// ended.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "device/cuda/launch_check.h"

namespace halfbyte {

// Until the kernel before has ended and its writes can be seen.
__device__ inline void WaitForPrevious() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next kernel may be set up once all blocks have said so or ended.
__device__ inline void LetNextStart() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

struct LaunchShape {
  dim3 grid;
  dim3 threads;
  size_t shared_bytes = 0;
};

namespace internal {

template <class... Parameters, class... Arguments>
cudaError_t Launch(bool dependent, void (*kernel)(Parameters...), const LaunchShape& shape,
                   cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  const cudaError_t launched =
      cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  return CheckLaunch(launched, reinterpret_cast<const void*>(kernel), stream);
}

}  // namespace internal

template <class... Parameters, class... Arguments>
cudaError_t LaunchKernel(void (*kernel)(Parameters...), const LaunchShape& shape,
                         cudaStream_t stream, Arguments&&... arguments) {
  return internal::Launch(/*dependent=*/false, kernel, shape, stream,
                          std::forward<Arguments>(arguments)...);
}

template <class... Parameters, class... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), const LaunchShape& shape,
                            cudaStream_t stream, Arguments&&... arguments) {
  return internal::Launch(/*dependent=*/true, kernel, shape, stream,
                          std::forward<Arguments>(arguments)...);
}

}  // namespace halfbyte
