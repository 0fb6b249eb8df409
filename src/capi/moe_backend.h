// What computes the layers of the C interface: the CPU (cpu_backend.h) or a GPU (cuda_backend.h).
// moe_abi.cc has checked what it can of the arguments without knowing which.
#pragma once

#include <halfbyte/moe.h>

#include <memory>

#include "base/result.h"
#include "capi/layer_options.h"
#include "model/routed_layer.h"

namespace halfbyte {

// What a layer takes.
struct BackendMemory {
  int64_t weight_bytes = 0;       // as stored
  int64_t device_bytes = 0;       // GPU memory that the layer takes; 0 on the CPU
  int64_t peak_device_bytes = 0;  // and took while it was made
};

class MoeBackend {
 public:
  // Memory and threads between the steps of calls, one call at a time.
  class Workspace {
   public:
    virtual ~Workspace() = default;
  };

  virtual ~MoeBackend() = default;

  virtual const MoeParams& params() const = 0;
  virtual const ExpertPlacement& placement() const = 0;
  virtual const RoutingRule& routing() const = 0;
  virtual BackendMemory memory() const = 0;

  virtual uint64_t WorkspaceBytes(const MoeLimits& limits) const = 0;
  virtual Result<std::unique_ptr<Workspace>> CreateWorkspace(const MoeLimits& limits) const = 0;

  // Both return what the C function does. The workspace is one of such a backend on the same
  // device, and no other call uses it. There are tokens, and pointers to all they need.
  virtual Result<int> Run(Workspace& workspace, const halfbyte_moe_run_arguments& run) const = 0;
  virtual Result<int> Route(Workspace& workspace,
                            const halfbyte_moe_route_arguments& route) const = 0;

  // All but struct_size.
  virtual Result<halfbyte_moe_counters> ReadCounters() const = 0;
};

// `options.threads` pack the experts, and then work in each workspace.
Result<std::unique_ptr<MoeBackend>> CreateCpuBackend(RoutedLayerParts parts,
                                                     const LayerOptions& options);

// Error: this GPU is not there or not of a kind that computes layers; in libraries built without
// CUDA, that they are.
Status CheckCudaDevice(int32_t ordinal);
// On the GPU options.device_ordinal; the parts' bytes are not needed afterwards.
Result<std::unique_ptr<MoeBackend>> CreateCudaBackend(RoutedLayerParts parts,
                                                      const LayerOptions& options);

}  // namespace halfbyte
