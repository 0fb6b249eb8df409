#include <cstdint>

#include "device/cuda/faulty_kernel.h"
#include "device/cuda/launch.cuh"

namespace halfbyte {
namespace {

__global__ void FaultyKernel(uintptr_t address) { *reinterpret_cast<volatile int*>(address) = 1; }

}  // namespace

cudaError_t LaunchFaultyKernel(cudaStream_t stream) {
  return LaunchKernel(FaultyKernel, {1, 1}, stream, uintptr_t{16});
}

}  // namespace halfbyte
