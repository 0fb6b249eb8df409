// Which GPU the process computes on, and errors of the CUDA runtime as values.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace halfbyte {

// Success, or "WHAT: CUDA's sentence (its name)", with the kernel that failed where that is known
// (launch_check.h). The error is of kind kMemory, or kDevice: what a call of the runtime returns
// may be the fault of work that anybody put on the GPU before it. Where it must be, because a
// kernel was killed, the sentence says so instead of naming `what`.
Status CudaStatus(cudaError_t error, std::string_view what);

// Whether the error stays with the process: a kernel has failed, and no call that uses the GPU
// works any more.
bool IsSticky(cudaError_t error);

// Whether the kernels run on compute capability MAJOR.MINOR; the error names the GPU.
Status CheckComputeCapability(int ordinal, std::string_view name, int major, int minor);

struct CudaDevice {
  int ordinal = 0;
  std::string name;  // "NVIDIA H200"
  int major = 0;     // compute capability
  int minor = 0;
  int multiprocessors = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;

  // Errors: no driver, no such device, or an architecture that the kernels are not compiled for:
  // only 9.0 (H100, H200) is.
  static Result<CudaDevice> Find(int ordinal = 0);
  // The same, and makes it the calling thread's current one.
  static Result<CudaDevice> Open(int ordinal = 0);
};

// Makes a device the calling thread's current one while it lives, for work in somebody's process.
// Error also: earlier work on the GPU has failed, so that no argument is blamed for it.
class CudaDeviceScope {
 public:
  static Result<CudaDeviceScope> Enter(int ordinal);
  CudaDeviceScope(CudaDeviceScope&& other) noexcept
      : before_(std::exchange(other.before_, kNothingToDo)) {}
  CudaDeviceScope& operator=(CudaDeviceScope&&) = delete;
  ~CudaDeviceScope();

 private:
  static constexpr int kNothingToDo = -1;
  explicit CudaDeviceScope(int before) : before_(before) {}

  int before_;
};

struct CudaMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};
// Of the current device.
Result<CudaMemory> FreeCudaMemory();

}  // namespace halfbyte
