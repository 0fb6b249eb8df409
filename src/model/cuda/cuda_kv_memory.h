// The rows of the KV cache in GPU memory, in the layout of kernels/device_step.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "device/cuda/device_buffer.h"
#include "kernels/device_step.h"
#include "model/cuda/cuda_steps.h"
#include "model/kv_memory.h"

namespace halfbyte {

class CudaKvMemory : public KvMemory {
 public:
  // In the formats of the default math. Moves are put into the stream, which must outlive it.
  // Errors: KvLayout::CheckSizes's; rows that do not lie at multiples of 16 bytes, with the sizes;
  // GPU memory, with the numbers.
  static Result<std::unique_ptr<CudaKvMemory>> Create(const KvLayout& layout,
                                                      const KvPoolSizes& sizes,
                                                      cudaStream_t stream);

  const KvPoolSizes& sizes() const { return sizes_; }

  // For the kernels of one layer.
  const DeviceRows& window(int64_t layer) const {
    return pools_[static_cast<size_t>(layer)].window;
  }
  const DeviceRows& entries(int64_t layer) const {
    return pools_[static_cast<size_t>(layer)].entries;
  }
  const DeviceRows& index(int64_t layer) const { return pools_[static_cast<size_t>(layer)].index; }
  // [slots, state_slot_bytes() / 4] floats; KvLayout::Ring says where a ring lies in a slot.
  float* state() const { return state_.as<float>(); }

  CudaSteps steps;  // is kept here for whoever runs them

  Status Copy(const PageCopy& copy) override;
  Status SaveTail(const TailMove& move) override;
  Status RestoreTail(const TailMove& move) override;

 private:
  struct LayerPools {
    DeviceRows window, entries, index;
  };

  CudaKvMemory(const KvLayout& layout, const KvPoolSizes& sizes, cudaStream_t stream)
      : KvMemory(layout), sizes_(sizes), stream_(stream) {}
  Status Allocate();
  Status Move(std::byte* to, const std::byte* from, int64_t bytes) const;
  Status CopyPage(const DeviceRows& rows, const PageCopy& copy) const;
  template <class Body>
  Status ForEachTailPart(const TailMove& move, const Body& body) const;

  const KvPoolSizes sizes_;
  const cudaStream_t stream_;
  std::vector<LayerPools> pools_;
  DeviceBuffer rows_;
  DeviceBuffer state_;
  DeviceBuffer tails_;
};

}  // namespace halfbyte
