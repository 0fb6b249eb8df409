// Programmatic dependent launch: a kernel of a chain is set up, and begins what does not depend on
// the one before it, while that one still runs.
//
// A kernel that is launched with LaunchDependent calls WaitForPrevious before it touches what any
// earlier kernel of the stream writes, and before it ends even if it touches nothing of the kind:
// then its own end says that all before it have ended.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

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

template <class... Parameters, class... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), const LaunchShape& shape,
                            cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute dependent = {};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace halfbyte
