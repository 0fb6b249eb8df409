#include "device/cuda/device_buffer.h"

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_device.h"

namespace halfbyte {

DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

Result<DeviceBuffer> DeviceBuffer::Allocate(int64_t bytes, std::string_view what) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // it is told here, not at the next call
    HB_ASSIGN_OR_RETURN(const CudaMemory memory, FreeCudaMemory());
    return MakeError(ErrorKind::kMemory, "{}: {} bytes of GPU memory are needed, {} of {} are free",
                     what, bytes, memory.free_bytes, memory.total_bytes);
  }
  HB_RETURN_IF_ERROR(CudaStatus(error, what));
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

Result<DeviceBuffer> DeviceBuffer::Upload(const void* host, int64_t bytes, std::string_view what) {
  HB_ASSIGN_OR_RETURN(DeviceBuffer buffer, Allocate(bytes, what));
  if (bytes == 0) return buffer;
  HB_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(buffer.data(), host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice), what));
  // It returns when the last bytes are on their way, and no other stream waits for them.
  HB_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(cudaStreamLegacy), what));
  return buffer;
}

}  // namespace halfbyte
