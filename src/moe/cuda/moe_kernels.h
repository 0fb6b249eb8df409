// What computes the experts of a layer on one family of GPUs: what it supports, how it keeps an
// expert, and the steps between the plan and the combine, which all families share
// (cuda_moe_layer.h). MoeKernelsOf names the one for a device; a new family is a class and a row
// there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "device/cuda/cuda_device.h"
#include "kernels/dispatch_plan/token_tiles.h"
#include "kernels/uploaded_expert.h"
#include "moe/cuda/cuda_moe_call.h"
#include "moe/moe_params.h"

namespace halfbyte {

// How the rows of a call are cut into token tiles (token_plan.h).
struct MoeTiling {
  int32_t max_tile_rows = 0;
  int32_t wide_tile_rows = 0;
  bool gather_plans = false;  // no plan kernel runs: GateUp makes the plan
  const char* name = "";      // for reports
};

// Memory of a workspace (cuda_moe_workspace.h).
struct MoeKernelMemory {
  TokenPlan plan;
  float* row_scales = nullptr;   // [rows], w4a4 without a static scale: of x, then of h
  float* row_weights = nullptr;  // [rows]
  // Operands of gate_up [rows, hidden]: ImageBytes. They share their memory with what comes after
  // gate_up: the slot values [rows, hidden].
  uint8_t* image = nullptr;
  float* slot_values = nullptr;
  uint8_t* h_image = nullptr;  // operands of down [rows, intermediate]: ImageBytes
};

// A layer's weights in device memory.
struct MoeKernelWeights {
  const uint8_t* experts = nullptr;          // [local experts] of ExpertBytes
  const float* alpha_gate = nullptr;         // [local experts]: global scale, of activations too
  const float* alpha_up = nullptr;           // [local experts]
  const float* alpha_down = nullptr;         // [local experts]
  const int32_t* local_of_global = nullptr;  // [global_experts]; -1: another rank's
  int32_t global_experts = 0;
  int32_t local_experts = 0;
};

struct MoeKernelCall {
  const MoeParams& params;
  const CudaMoeCall& call;
  const MoeKernelWeights& weights;
  const MoeKernelMemory& memory;

  bool weights_before_down() const {
    return params.routing_weight == RoutingWeightPlacement::kBeforeDown;
  }
};

class MoeKernels {
 public:
  virtual ~MoeKernels() = default;

  // Error: what of these parameters it does not compute. `name` says whose they are.
  virtual Status Supports(const MoeParams& params, std::string_view name) const = 0;

  virtual int64_t ExpertBytes(int64_t hidden, int64_t intermediate) const = 0;  // packed
  // Into ExpertBytes, without loss.
  virtual cudaError_t Pack(const UploadedExpert& expert, int64_t hidden, int64_t intermediate,
                           uint8_t* packed, cudaStream_t stream) const = 0;
  virtual int64_t ImageBytes(int64_t rows, int64_t columns) const = 0;

  // Once per device, before the first call and outside of stream capture.
  virtual cudaError_t Prepare() const = 0;

  // Bits do not depend on it.
  virtual MoeTiling TilingFor(int64_t slots, int64_t experts) const = 0;

  // From hidden rows and the plan to h, and from h to slot values; in w4a4 each quantizes its
  // input first. Neither allocates, waits or reads the device.
  virtual cudaError_t GateUp(const MoeKernelCall& call, cudaStream_t stream) const = 0;
  virtual cudaError_t Down(const MoeKernelCall& call, cudaStream_t stream) const = 0;
};

// Error: nothing computes layers on such a device.
Result<const MoeKernels*> MoeKernelsOf(const CudaDevice& device);

}  // namespace halfbyte
