// The experts of one mixture-of-experts layer on a GPU: moe_layer.h's rules with its kW4a16 and
// kW4a4.
//
//   plan -> gather (kW4a4: quantize hidden) -> gate_up, SwiGLU -> (kW4a4: requantize h) -> down
//        -> combine
//
// Plan and combine are the same on every GPU; the steps between them, and how an expert is kept,
// are its family's (moe_kernels.h), which may merge steps: on Hopper, in calls of few slots, the
// gather makes the plan and gate_up requantizes h, unless each row of h has a scale of its own,
// which takes all of the row.
//
// Rounding points are those of the CPU. What differs: sums over K are formed by the tensor core in
// fp32, so results agree within the tolerance of those sums, not bit for bit; in kW4a4 a value of h
// that rounds to another bf16 number may quantize to another code. On the device the same bits come
// from every run, from eager calls and replays, from any batch a token is in, and from any rank
// that computes an expert.
//
// Nothing here allocates, waits, or reads the device in Run: it can be captured once and replayed
// with other numbers in the same buffers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/device_buffer.h"
#include "kernels/dispatch_plan/expert_placement.h"
#include "moe/cuda/cuda_moe_call.h"
#include "moe/cuda/cuda_moe_workspace.h"
#include "moe/cuda/moe_kernels.h"
#include "moe/expert_weights.h"
#include "moe/moe_layer.h"

namespace halfbyte {

// What was copied from the device.
MoeCounters HostCounters(const CudaMoeCounters& counters);

class CudaMoeLayer {
 public:
  // Uploads and packs expert after expert: of GPU memory this takes device_bytes(), and one
  // expert's stored bytes more until it returns. experts[e] for local expert e; their bytes are not
  // needed afterwards. `release` is called when those of an expert are not. kernels: null, those of
  // the device. Errors: what they do not support; weights that are not NVFP4, or MXFP4 that cannot
  // become NVFP4 without loss; shapes, scales and numbers of experts as MoeLayer::Create has them;
  // sizes that are no multiple of 16; GPU memory, with the numbers.
  static Result<CudaMoeLayer> Create(const CudaDevice& device, const MoeParams& params,
                                     ExpertPlacement placement,
                                     std::span<const ExpertWeights> experts, std::string_view name,
                                     const std::function<void(LocalExpert)>& release = {},
                                     const MoeKernels* kernels = nullptr);

  // Puts the layer's work into the stream. Errors, all before anything is put there: more tokens
  // than the workspace takes, another top_k or layer shape than it was made for, a pointer that is
  // null or not aligned. A stream error of CUDA is returned too.
  Status Run(cudaStream_t stream, const CudaMoeCall& call, const CudaMoeWorkspace& workspace) const;

  // The steps of Run one by one, in this order, for measuring them.
  enum class Step : uint8_t { kPlan, kGateUp, kDown, kCombine };
  Status RunStep(Step step, cudaStream_t stream, const CudaMoeCall& call,
                 const CudaMoeWorkspace& workspace) const;

  // Which tiles a call of so many tokens is computed with; bits do not depend on it.
  MoeTiling TilingFor(int64_t tokens, int64_t top_k) const {
    return kernels_->TilingFor(tokens * top_k, placement_.experts());
  }

  const MoeParams& params() const { return params_; }
  const ExpertPlacement& placement() const { return placement_; }
  const MoeKernels& kernels() const { return *kernels_; }
  int64_t expert_bytes() const {  // packed
    return kernels_->ExpertBytes(params_.hidden, params_.intermediate);
  }
  int64_t device_bytes() const;  // of GPU memory, without the workspace
  int64_t peak_device_bytes() const { return peak_device_bytes_; }  // while Create ran

 private:
  CudaMoeLayer(const MoeParams& params, ExpertPlacement placement, const MoeKernels& kernels)
      : params_(params), placement_(std::move(placement)), kernels_(&kernels) {}

  Status Upload(const CudaDevice& device, std::span<const ExpertWeights> experts,
                std::string_view name, const std::function<void(LocalExpert)>& release);
  Status CheckCall(const CudaMoeCall& call, const CudaMoeWorkspace& workspace) const;
  MoeKernelWeights weights() const;
  cudaError_t Plan(cudaStream_t stream, const CudaMoeCall& call,
                   const CudaMoeWorkspace& workspace) const;
  cudaError_t Combine(cudaStream_t stream, const CudaMoeCall& call,
                      const CudaMoeWorkspace& workspace) const;

  MoeParams params_;
  ExpertPlacement placement_;
  const MoeKernels* kernels_;
  DeviceBuffer experts_;          // [local experts] packed
  DeviceBuffer alphas_;           // [3][local experts]: gate, up, down
  DeviceBuffer local_of_global_;  // [experts]
  int64_t peak_device_bytes_ = 0;
};

}  // namespace halfbyte
