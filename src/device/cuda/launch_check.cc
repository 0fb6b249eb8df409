#include "device/cuda/launch_check.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

namespace halfbyte {
namespace {

thread_local const void* failed_kernel = nullptr;

bool ChecksKernels() {
  static const bool checks = [] {
    const char* value = std::getenv("HALFBYTE_CUDA_CHECK");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return checks;
}

bool IsCaptured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
         status != cudaStreamCaptureStatusNone;
}

}  // namespace

cudaError_t CheckLaunch(cudaError_t launched, const void* kernel, cudaStream_t stream) {
  cudaError_t error = launched;
  if (error == cudaSuccess && ChecksKernels() && !IsCaptured(stream)) {
    error = cudaStreamSynchronize(stream);
  }
  failed_kernel = ChecksKernels() && error != cudaSuccess ? kernel : nullptr;
  return error;
}

std::string TakeFailedKernel() {
  const void* kernel = std::exchange(failed_kernel, nullptr);
  const char* name = nullptr;
  if (kernel == nullptr || cudaFuncGetName(&name, kernel) != cudaSuccess) return "";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return readable != nullptr ? readable.get() : name;
}

}  // namespace halfbyte
