// GPU memory of a MoE layer between its steps (moe_workspace.h says the same of the CPU): one for
// each device, shared by all layers with the same kernels, used by one stream at a time. What it
// held before never changes a result.
#pragma once

#include <cstdint>

#include "device/cuda/device_buffer.h"
#include "moe/cuda/moe_kernels.h"
#include "moe/moe_workspace.h"

namespace halfbyte {

class CudaMoeWorkspace {
 public:
  // The one function that sizes it; `limits.tokens` is the most that one Run takes.
  static int64_t Bytes(const MoeKernels& kernels, const MoeLimits& limits);

  // Error: not enough GPU memory, with the numbers.
  static Result<CudaMoeWorkspace> Create(const MoeKernels& kernels, const MoeLimits& limits);
  // In memory of the caller: at least Bytes(limits), aligned to 256 bytes, else an error.
  static Result<CudaMoeWorkspace> In(const MoeKernels& kernels, std::byte* memory, int64_t bytes,
                                     const MoeLimits& limits);

  const MoeLimits& limits() const { return limits_; }
  std::byte* data() const { return data_; }

  // Where everything lies, at full capacity, whatever a call needs of it.
  const MoeKernelMemory& memory() const { return layout_.memory; }

 private:
  struct Layout {
    MoeKernelMemory memory;
    int64_t bytes = 0;
  };
  static Layout Lay(const MoeKernels& kernels, std::byte* memory, const MoeLimits& limits);

  MoeLimits limits_;
  DeviceBuffer own_;
  std::byte* data_ = nullptr;
  Layout layout_;
};

}  // namespace halfbyte
