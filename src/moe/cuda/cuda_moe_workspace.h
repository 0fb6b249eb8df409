// GPU memory of a MoE layer between its steps (moe_workspace.h says the same of the CPU): one for
// each device, shared by all layers, used by one stream at a time. What it held before never
// changes a result.
#pragma once

#include <cstdint>

#include "device/cuda/device_buffer.h"
#include "moe/cuda/token_plan.h"
#include "moe/moe_workspace.h"

namespace halfbyte {

class CudaMoeWorkspace {
 public:
  // The one function that sizes it; `limits.tokens` is the most that one Run takes.
  static int64_t Bytes(const MoeLimits& limits);

  // Error: not enough GPU memory, with the numbers.
  static Result<CudaMoeWorkspace> Create(const MoeLimits& limits);
  // In memory of the caller: at least Bytes(limits), aligned to 256 bytes, else an error.
  static Result<CudaMoeWorkspace> In(std::byte* memory, int64_t bytes, const MoeLimits& limits);

  const MoeLimits& limits() const { return limits_; }
  std::byte* data() const { return memory_; }

 private:
  friend class CudaMoeLayer;

  // Where everything lies, at full capacity, whatever a call needs of it.
  struct Layout {
    TokenPlan plan;
    float* row_scales = nullptr;   // [rows], w4a4 without a static scale: of x, then of h
    float* row_weights = nullptr;  // [rows]
    // The image of hidden [rows, PaddedK(hidden)] is read by gate_up only and shares its memory
    // with what comes after that: the slot values [rows, hidden].
    uint8_t* image = nullptr;
    float* slot_values = nullptr;
    uint8_t* h_image = nullptr;  // [rows, PaddedK(intermediate)]
    int64_t bytes = 0;
  };
  static Layout Lay(std::byte* memory, const MoeLimits& limits);

  MoeLimits limits_;
  DeviceBuffer own_;
  std::byte* memory_ = nullptr;
  Layout layout_;
};

}  // namespace halfbyte
