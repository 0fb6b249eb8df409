// A layer of routed experts on some device: what the C interface and hosts of other programs call,
// whichever device it is. expert_device.h makes one.
//
// A layer is immutable and may be used by several threads; a workspace by one call at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "kernels/route/router.h"
#include "moe/moe_params.h"
#include "moe/moe_workspace.h"
#include "moe/routed_layer.h"
#include "numerics/nvfp4_block.h"

namespace halfbyte {

enum class RowType : uint8_t { kBf16, kF32 };

// Memory of the layer's device. `stream`: of work on a GPU, a cudaStream_t; the CPU has none.
struct ExpertCall {
  const void* hidden = nullptr;  // [tokens, hidden]
  RowType hidden_type = RowType::kBf16;
  const int32_t* topk_ids = nullptr;    // [tokens, top_k] global ids; others: no expert
  const float* topk_weights = nullptr;  // [tokens, top_k]
  int64_t tokens = 0;                   // at least one
  int64_t top_k = 0;
  void* out = nullptr;  // [tokens, hidden], every row is written
  RowType out_type = RowType::kBf16;
  void* stream = nullptr;
};

struct RouteCall {
  const float* logits = nullptr;       // [tokens, experts]
  const int32_t* token_ids = nullptr;  // [tokens], where the rule is a table
  int64_t tokens = 0;                  // at least one
  int32_t* topk_ids = nullptr;         // [tokens, top_k]
  float* topk_weights = nullptr;       // [tokens, top_k]
  void* stream = nullptr;
};

// What a layer takes.
struct ExpertLayerMemory {
  int64_t weight_bytes = 0;       // as stored
  int64_t device_bytes = 0;       // GPU memory that the layer takes; 0 on the CPU
  int64_t peak_device_bytes = 0;  // and took while it was made
};

// Of all calls so far.
struct ExpertLayerCounters {
  Nvfp4BlockStats gate_up, down;  // what the quantizers of kW4a4 saw
  RouterCounters router;
};

class ExpertLayer {
 public:
  // Memory, and threads, between the steps of calls.
  class Workspace {
   public:
    virtual ~Workspace() = default;
    // Whether work in another stream may still be using it.
    virtual Result<bool> IsBusyFor(void* stream) const = 0;
  };

  virtual ~ExpertLayer() = default;

  virtual const MoeParams& params() const = 0;
  virtual const ExpertPlacement& placement() const = 0;
  virtual const RoutingRule& routing() const = 0;
  virtual ExpertLayerMemory memory() const = 0;

  virtual int64_t WorkspaceBytes(const MoeLimits& limits) const = 0;
  // Error: not enough memory, with the numbers.
  virtual Result<std::unique_ptr<Workspace>> CreateWorkspace(const MoeLimits& limits) const = 0;

  // The sum over the experts of this rank. The workspace is one of such a layer on the same device,
  // large enough, and not busy. On a GPU the work is put into the stream and nothing waits: it may
  // be captured. Errors: memory of another device; the device failed.
  virtual Status Run(Workspace& workspace, const ExpertCall& call) const = 0;
  // Error also: a token id outside the table.
  virtual Status Route(Workspace& workspace, const RouteCall& call) const = 0;

  // Waits for work on the device.
  virtual Result<ExpertLayerCounters> ReadCounters() const = 0;
};

}  // namespace halfbyte
