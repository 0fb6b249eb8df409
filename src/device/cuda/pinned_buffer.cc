#include "device/cuda/pinned_buffer.h"

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_device.h"

namespace halfbyte {

PinnedBuffer::~PinnedBuffer() { cudaFreeHost(data_); }

Result<PinnedBuffer> PinnedBuffer::Allocate(int64_t bytes, std::string_view what) {
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // it is told here, not at the next call
    return MakeError(ErrorKind::kMemory,
                     "{}: {} bytes of host memory that stays in place are needed, which the system "
                     "does not give",
                     what, bytes);
  }
  HB_RETURN_IF_ERROR(CudaStatus(error, what));
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace halfbyte
