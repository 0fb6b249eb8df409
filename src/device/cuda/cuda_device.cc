#include "device/cuda/cuda_device.h"

namespace halfbyte {

Status CudaStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  return MakeError("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

Status CheckComputeCapability(int ordinal, std::string_view name, int major, int minor) {
  if (major == 9 && minor == 0) return {};
  return MakeError(
      "GPU {} is a {} of compute capability {}.{}, but the CUDA kernels are compiled for 9.0 only "
      "(H100, H200)",
      ordinal, name, major, minor);
}

Result<CudaDevice> CudaDevice::Find(int ordinal) {
  int count = 0;
  HB_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "no GPU can be used"));
  if (ordinal < 0 || ordinal >= count) {
    return MakeError("there is no GPU {}: this machine has {}", ordinal, count);
  }
  cudaDeviceProp properties;
  HB_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "properties of the GPU"));
  HB_RETURN_IF_ERROR(
      CheckComputeCapability(ordinal, properties.name, properties.major, properties.minor));
  return CudaDevice{.ordinal = ordinal,
                    .name = properties.name,
                    .multiprocessors = properties.multiProcessorCount,
                    .l2_bytes = properties.l2CacheSize,
                    .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)};
}

Result<CudaDevice> CudaDevice::Open(int ordinal) {
  HB_ASSIGN_OR_RETURN(CudaDevice device, Find(ordinal));
  HB_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "choosing the GPU"));
  return device;
}

Result<CudaDeviceScope> CudaDeviceScope::Enter(int ordinal) {
  int before = 0;
  HB_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&before), "the current GPU"));
  if (before == ordinal) return CudaDeviceScope(kNothingToDo);
  HB_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "choosing the GPU"));
  return CudaDeviceScope(before);
}

CudaDeviceScope::~CudaDeviceScope() {
  if (before_ != kNothingToDo) cudaSetDevice(before_);
}

Result<CudaMemory> FreeCudaMemory() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  HB_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "GPU memory"));
  return CudaMemory{static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

}  // namespace halfbyte
