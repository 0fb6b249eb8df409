// The experts of one mixture-of-experts layer on a GPU of the Hopper family: moe_layer.h's rules
// with its kW4a16 and kW4a4, computed by kernels/sm90_moe.
//
//   plan -> gather (kW4a4: quantize hidden) -> gate_up, SwiGLU -> (kW4a4: requantize h) -> down
//        -> combine
//
// In calls of few slots (sm90::GemmVariant::kFew) the gather makes the plan and gate_up requantizes
// h, unless each row of h has a scale of its own, which takes all of the row.
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
#include "kernels/quantize_nvfp4/quantize_nvfp4_cuda.h"
#include "kernels/sm90_moe/activation_image.h"
#include "kernels/sm90_moe/sm90_gemm.h"
#include "moe/cuda/cuda_moe_workspace.h"
#include "moe/expert_placement.h"
#include "moe/expert_weights.h"
#include "moe/moe_layer.h"

namespace halfbyte {

// What the quantizers of kW4a4 saw, in device memory; see Nvfp4DeviceStats.
struct CudaMoeCounters {
  Nvfp4DeviceStats gate_up;
  Nvfp4DeviceStats down;
};

enum class CudaMoeOutput : uint8_t {
  kBf16,  // the sum rounded once
  kF32,   // as it is, for a caller that adds to it (the shared expert, other ranks)
};

// One call. All pointers are device memory; hidden and out are aligned to 16 bytes.
struct CudaMoeCall {
  const Bf16* hidden = nullptr;         // [tokens, hidden]
  const int32_t* topk_ids = nullptr;    // [tokens, top_k] global ids; others: no expert
  const float* topk_weights = nullptr;  // [tokens, top_k]
  int64_t tokens = 0;
  int64_t top_k = 0;
  void* out = nullptr;  // [tokens, hidden], every row is written
  CudaMoeOutput output = CudaMoeOutput::kBf16;
  CudaMoeCounters* counters = nullptr;  // added to in kW4a4; or null
};

// Which kernels compute the products. kReference is the judge (reference_gemm.h): slow.
enum class CudaMoeProducts : uint8_t { kTensorCore, kReference };

class CudaMoeLayer {
 public:
  // Uploads and packs expert after expert: of GPU memory this takes device_bytes(), and one
  // expert's stored bytes more until it returns. experts[e] for local expert e; their bytes are not
  // needed afterwards. `release` is called when those of an expert are not. Errors: another
  // arithmetic; weights that are not NVFP4, or MXFP4 that cannot become NVFP4 without loss; shapes,
  // scales and numbers of experts as MoeLayer::Create has them; sizes that are no multiple of 16;
  // GPU memory, with the numbers.
  static Result<CudaMoeLayer> Create(const CudaDevice& device, const MoeParams& params,
                                     ExpertPlacement placement,
                                     std::span<const ExpertWeights> experts, std::string_view name,
                                     const std::function<void(LocalExpert)>& release = {});

  // Puts the layer's work into the stream. Errors, all before anything is put there: more tokens
  // than the workspace takes, another top_k or layer shape than it was made for, a pointer that is
  // null or not aligned. A stream error of CUDA is returned too.
  Status Run(cudaStream_t stream, const CudaMoeCall& call, const CudaMoeWorkspace& workspace) const;

  // The steps of Run one by one, in this order, for measuring them.
  enum class Step : uint8_t { kPlan, kGateUp, kDown, kCombine };
  Status RunStep(Step step, cudaStream_t stream, const CudaMoeCall& call,
                 const CudaMoeWorkspace& workspace) const;

  // Which tiles a call of so many tokens is computed with; bits do not depend on it.
  sm90::GemmVariant VariantFor(int64_t tokens, int64_t top_k) const;

  const MoeParams& params() const { return params_; }
  const ExpertPlacement& placement() const { return placement_; }
  int64_t expert_bytes() const { return shape_.bytes(); }  // packed
  int64_t device_bytes() const;                            // of GPU memory, without the workspace
  int64_t peak_device_bytes() const { return peak_device_bytes_; }  // while Create ran

  void set_products(CudaMoeProducts products) { products_ = products; }

 private:
  CudaMoeLayer(const MoeParams& params, ExpertPlacement placement)
      : params_(params),
        placement_(std::move(placement)),
        shape_{params.hidden, params.intermediate} {}

  Status Upload(const CudaDevice& device, std::span<const ExpertWeights> experts,
                std::string_view name, const std::function<void(LocalExpert)>& release);
  Status CheckCall(const CudaMoeCall& call, const CudaMoeWorkspace& workspace) const;
  bool WeightsBeforeDown() const {
    return params_.routing_weight == RoutingWeightPlacement::kBeforeDown;
  }
  bool GateUpRequantizes(const CudaMoeCall& call) const;
  sm90::FewSlots FewSlotsOf(const CudaMoeCall& call) const;  // none, if they are many
  sm90::ActivationQuantizer Quantizer(const std::optional<GlobalScale>& scale,
                                      Nvfp4DeviceStats* stats) const;
  sm90::GemmArguments Gemm(const CudaMoeWorkspace& workspace,
                           const std::optional<GlobalScale>& input_scale) const;
  sm90::GateUpArguments GateUpOf(const CudaMoeCall& call, const CudaMoeWorkspace& workspace) const;
  cudaError_t Plan(cudaStream_t stream, const CudaMoeCall& call,
                   const CudaMoeWorkspace& workspace) const;
  cudaError_t Gather(cudaStream_t stream, const CudaMoeCall& call,
                     const CudaMoeWorkspace& workspace) const;
  cudaError_t GateUp(cudaStream_t stream, const CudaMoeCall& call,
                     const CudaMoeWorkspace& workspace) const;
  cudaError_t Requantize(cudaStream_t stream, const CudaMoeCall& call,
                         const CudaMoeWorkspace& workspace) const;
  cudaError_t Down(cudaStream_t stream, const CudaMoeCall& call,
                   const CudaMoeWorkspace& workspace) const;
  cudaError_t Combine(cudaStream_t stream, const CudaMoeCall& call,
                      const CudaMoeWorkspace& workspace) const;

  MoeParams params_;
  ExpertPlacement placement_;
  sm90::ExpertShape shape_;
  CudaMoeProducts products_ = CudaMoeProducts::kTensorCore;
  DeviceBuffer experts_;          // [local experts] packed
  DeviceBuffer alphas_;           // [3][local experts]: gate, up, down
  DeviceBuffer local_of_global_;  // [experts]
  int64_t peak_device_bytes_ = 0;
};

}  // namespace halfbyte
