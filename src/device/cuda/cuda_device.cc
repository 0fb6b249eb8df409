#include "device/cuda/cuda_device.h"

#include "device/cuda/launch_check.h"

namespace halfbyte {

bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
      return true;
    default:
      return false;
  }
}

Status CudaStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  const std::string why =
      fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
  const std::string kernel = TakeFailedKernel();
  if (!kernel.empty()) return MakeError(ErrorKind::kDevice, "{}, kernel {}: {}", what, kernel, why);
  if (IsSticky(error)) {
    return MakeError(
        ErrorKind::kDevice,
        "work that was begun on the GPU before this call, by whomever in this process, "
        "has failed: {}; start the process again, with HALFBYTE_CUDA_CHECK=1 to learn "
        "whether it was a kernel of halfbyte",
        why);
  }
  const bool memory = error == cudaErrorMemoryAllocation;
  return MakeError(memory ? ErrorKind::kMemory : ErrorKind::kDevice, "{}: {}", what, why);
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
  // No driver, or no GPU that it may use: not the GPU's failure.
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (IsSticky(error)) HB_RETURN_IF_ERROR(CudaStatus(error, ""));
  if (error != cudaSuccess) {
    return MakeError("no GPU can be used: {} ({})", cudaGetErrorString(error),
                     cudaGetErrorName(error));
  }
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
                    .major = properties.major,
                    .minor = properties.minor,
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
  if (before != ordinal) {
    HB_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "choosing the GPU"));
  }
  CudaDeviceScope scope(before == ordinal ? kNothingToDo : before);
  // The last error of this thread alone says nothing: others' mistakes stay in it for ever. One
  // that cannot be cleared does.
  if (const cudaError_t last = cudaPeekAtLastError(); IsSticky(last)) {
    HB_RETURN_IF_ERROR(CudaStatus(last, ""));
  }
  return scope;
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
