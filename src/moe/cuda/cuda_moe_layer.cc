#include "moe/cuda/cuda_moe_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>

#include "base/check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/combine/cuda_combine.h"
#include "kernels/dispatch_plan/token_plan.h"
#include "moe/cuda/cuda_expert_upload.h"

namespace halfbyte {
namespace {

constexpr int64_t kPointerAlignment = 16;

Status CheckParams(const MoeParams& params, const ExpertPlacement& placement, int64_t experts,
                   std::string_view name) {
  if (experts != placement.local_experts()) {
    return MakeError("{}: weights of {} experts where {} belong here", name, experts,
                     placement.local_experts());
  }
  if (experts > kMaxPlanExperts) {
    return MakeError("{}: {} experts on one GPU; at most {} are possible", name, experts,
                     kMaxPlanExperts);
  }
  for (const std::optional<GlobalScale>& scale :
       {params.gate_up_input_scale, params.down_input_scale}) {
    if (scale && !scale->IsUsable()) {
      return MakeError("{}: activation scale {} is not finite and positive", name, scale->value());
    }
  }
  return {};
}

Status CheckPointer(const void* pointer, int64_t alignment, std::string_view name) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address == 0) return MakeError("MoE layer: {} is null", name);
  if (address % static_cast<uintptr_t>(alignment) != 0) {
    return MakeError("MoE layer: the address of {}, {:#x}, is no multiple of {}", name, address,
                     alignment);
  }
  return {};
}

Nvfp4BlockStats HostStats(const Nvfp4DeviceStats& stats) {
  return {.blocks = static_cast<int64_t>(stats.blocks),
          .zero = static_cast<int64_t>(stats.zero),
          .flushed = static_cast<int64_t>(stats.flushed),
          .at_max = static_cast<int64_t>(stats.at_max),
          .clipped = static_cast<int64_t>(stats.clipped),
          .non_finite = static_cast<int64_t>(stats.non_finite),
          .amax = std::bit_cast<float>(stats.amax_bits)};
}

}  // namespace

MoeCounters HostCounters(const CudaMoeCounters& counters) {
  return {.gate_up = HostStats(counters.gate_up), .down = HostStats(counters.down)};
}

Result<CudaMoeLayer> CudaMoeLayer::Create(const CudaDevice& device, const MoeParams& params,
                                          ExpertPlacement placement,
                                          std::span<const ExpertWeights> experts,
                                          std::string_view name,
                                          const std::function<void(LocalExpert)>& release,
                                          const MoeKernels* kernels) {
  if (kernels == nullptr) {
    HB_ASSIGN_OR_RETURN(kernels, MoeKernelsOf(device));
  }
  HB_RETURN_IF_ERROR(kernels->Supports(params, name));
  HB_RETURN_IF_ERROR(CheckParams(params, placement, std::ssize(experts), name));
  CudaMoeLayer layer(params, std::move(placement), *kernels);
  HB_RETURN_IF_ERROR(layer.Upload(device, experts, name, release));
  HB_RETURN_IF_ERROR(CudaStatus(PrepareTokenPlan(), "preparing the plan kernel"));
  HB_RETURN_IF_ERROR(CudaStatus(kernels->Prepare(), "preparing the product kernels"));
  return layer;
}

Status CudaMoeLayer::Upload(const CudaDevice& device, std::span<const ExpertWeights> experts,
                            std::string_view name,
                            const std::function<void(LocalExpert)>& release) {
  const auto count = static_cast<int64_t>(experts.size());
  const int64_t stored = StoredExpertBytes(params_.hidden, params_.intermediate);
  const int64_t bytes = count * expert_bytes();
  HB_ASSIGN_OR_RETURN(const CudaMemory memory, FreeCudaMemory());
  if (bytes + stored > memory.free_bytes) {
    return MakeError(
        ErrorKind::kMemory,
        "{}: {} experts take {} bytes of GPU memory and {} more while they are uploaded; {} of {} "
        "on {} are free",
        name, count, bytes, stored, memory.free_bytes, memory.total_bytes, device.name);
  }
  HB_ASSIGN_OR_RETURN(experts_, DeviceBuffer::Allocate(bytes, name));
  HB_ASSIGN_OR_RETURN(ExpertUploader uploader,
                      ExpertUploader::Create(*kernels_, params_.hidden, params_.intermediate));
  // By stage: what an activation's own scale contributes to alpha.
  const auto act = [&](const std::optional<GlobalScale>& scale) {
    return params_.arithmetic == Arithmetic::kW4a4 && scale ? scale->value() : 1.0f;
  };
  std::vector<float> alphas(static_cast<size_t>(3 * count));
  for (int64_t e = 0; e < count; ++e) {
    const LocalExpert local{static_cast<int32_t>(e)};
    const std::string title = fmt::format("{}, expert {}", name, Index(placement_.ToGlobal(local)));
    HB_ASSIGN_OR_RETURN(
        const ExpertGlobalScales scales,
        uploader.Upload(experts[static_cast<size_t>(e)], title,
                        reinterpret_cast<uint8_t*>(experts_.data()) + e * expert_bytes()));
    alphas[static_cast<size_t>(e)] = act(params_.gate_up_input_scale) * scales.gate.value();
    alphas[static_cast<size_t>(count + e)] = act(params_.gate_up_input_scale) * scales.up.value();
    alphas[static_cast<size_t>(2 * count + e)] =
        act(params_.down_input_scale) * scales.down.value();
    if (release) release(local);
  }
  std::vector<int32_t> locals(static_cast<size_t>(placement_.experts()));
  for (int32_t id = 0; id < placement_.experts(); ++id) {
    const std::optional<LocalExpert> local = placement_.ToLocal(id);
    locals[static_cast<size_t>(id)] = local ? Index(*local) : -1;
  }
  const auto upload = [&](const auto& values) {
    return DeviceBuffer::Upload(values.data(), std::ssize(values) * int64_t{sizeof(values[0])},
                                name);
  };
  HB_ASSIGN_OR_RETURN(alphas_, upload(alphas));
  HB_ASSIGN_OR_RETURN(local_of_global_, upload(locals));
  peak_device_bytes_ = device_bytes() + stored;
  return {};
}

int64_t CudaMoeLayer::device_bytes() const {
  return experts_.bytes() + alphas_.bytes() + local_of_global_.bytes();
}

MoeKernelWeights CudaMoeLayer::weights() const {
  const int64_t local = placement_.local_experts();
  return {.experts = experts_.as<uint8_t>(),
          .alpha_gate = alphas_.as<float>(),
          .alpha_up = alphas_.as<float>() + local,
          .alpha_down = alphas_.as<float>() + 2 * local,
          .local_of_global = local_of_global_.as<int32_t>(),
          .global_experts = placement_.experts(),
          .local_experts = placement_.local_experts()};
}

Status CudaMoeLayer::CheckCall(const CudaMoeCall& call, const CudaMoeWorkspace& workspace) const {
  const MoeLimits& limits = workspace.limits();
  if (params_.hidden > limits.hidden || params_.intermediate > limits.intermediate ||
      placement_.local_experts() > limits.experts) {
    return MakeError(
        "MoE layer: {} experts of [{}, {}] do not fit the workspace, which was made for {} of "
        "[{}, {}]",
        placement_.local_experts(), params_.hidden, params_.intermediate, limits.experts,
        limits.hidden, limits.intermediate);
  }
  if (call.tokens < 0 || call.tokens > limits.tokens || call.top_k < 1 ||
      call.top_k > limits.top_k) {
    return MakeError(
        "MoE layer: {} tokens with {} experts each; the workspace was made for at most {} tokens "
        "and {} experts",
        call.tokens, call.top_k, limits.tokens, limits.top_k);
  }
  if (call.tokens == 0) return {};
  HB_RETURN_IF_ERROR(CheckPointer(call.hidden, kPointerAlignment, "hidden"));
  HB_RETURN_IF_ERROR(CheckPointer(call.topk_ids, alignof(int32_t), "topk_ids"));
  HB_RETURN_IF_ERROR(CheckPointer(call.topk_weights, alignof(float), "topk_weights"));
  HB_RETURN_IF_ERROR(CheckPointer(call.out, kPointerAlignment, "out"));
  if (call.counters == nullptr) return {};
  return CheckPointer(call.counters, alignof(CudaMoeCounters), "counters");
}

Status CudaMoeLayer::Run(cudaStream_t stream, const CudaMoeCall& call,
                         const CudaMoeWorkspace& workspace) const {
  for (const Step step : {Step::kPlan, Step::kGateUp, Step::kDown, Step::kCombine}) {
    HB_RETURN_IF_ERROR(RunStep(step, stream, call, workspace));
  }
  return {};
}

Status CudaMoeLayer::RunStep(Step step, cudaStream_t stream, const CudaMoeCall& call,
                             const CudaMoeWorkspace& workspace) const {
  HB_RETURN_IF_ERROR(CheckCall(call, workspace));
  if (call.tokens == 0) return {};
  const MoeKernelWeights own = weights();
  const MoeKernelCall products{params_, call, own, workspace.memory()};
  switch (step) {
    case Step::kPlan:
      return CudaStatus(Plan(stream, call, workspace), "MoE layer, plan");
    case Step::kGateUp:
      return CudaStatus(kernels_->GateUp(products, stream), "MoE layer, gate_up");
    case Step::kDown:
      return CudaStatus(kernels_->Down(products, stream), "MoE layer, down");
    case Step::kCombine:
      return CudaStatus(Combine(stream, call, workspace), "MoE layer, combine");
  }
  return {};
}

cudaError_t CudaMoeLayer::Plan(cudaStream_t stream, const CudaMoeCall& call,
                               const CudaMoeWorkspace& workspace) const {
  const MoeTiling tiling = TilingFor(call.tokens, call.top_k);
  if (tiling.gather_plans) return cudaSuccess;
  return LaunchTokenPlan({.topk_ids = call.topk_ids,
                          .slots = call.slots(),
                          .local_of_global = local_of_global_.as<int32_t>(),
                          .global_experts = placement_.experts(),
                          .local_experts = placement_.local_experts(),
                          .max_tile_rows = tiling.max_tile_rows,
                          .wide_tile_rows = tiling.wide_tile_rows},
                         workspace.memory().plan, stream);
}

cudaError_t CudaMoeLayer::Combine(cudaStream_t stream, const CudaMoeCall& call,
                                  const CudaMoeWorkspace& workspace) const {
  const bool before_down = params_.routing_weight == RoutingWeightPlacement::kBeforeDown;
  return LaunchCombine({.slot_values = workspace.memory().slot_values,
                        .row_of_slot = workspace.memory().plan.row_of_slot,
                        .slot_weights = before_down ? nullptr : call.topk_weights,
                        .tokens = call.tokens,
                        .top_k = call.top_k,
                        .hidden = params_.hidden,
                        .output_scale = params_.output_scale,
                        .out = call.out,
                        .out_is_bf16 = call.output == CudaMoeOutput::kBf16},
                       stream);
}

}  // namespace halfbyte
