#include "moe/cuda/cuda_moe_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "base/check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/sm90_moe/activation_image.h"
#include "kernels/sm90_moe/pack_expert.h"
#include "kernels/sm90_moe/reference_gemm.h"
#include "moe/cuda/combine.h"
#include "moe/cuda/cuda_expert_upload.h"

namespace halfbyte {
namespace {

constexpr int64_t kPointerAlignment = 16;

Status CheckParams(const MoeParams& params, const ExpertPlacement& placement, int64_t experts,
                   std::string_view name) {
  if (params.arithmetic != Arithmetic::kW4a16 && params.arithmetic != Arithmetic::kW4a4) {
    return MakeError("{}: a GPU computes w4a16 and w4a4, not {}", name,
                     ArithmeticName(params.arithmetic));
  }
  if (!params.round_activations) {
    return MakeError("{}: a GPU computes with activations rounded to bf16 only", name);
  }
  if (params.hidden < 16 || params.intermediate < 16 || params.hidden % 16 != 0 ||
      params.intermediate % 16 != 0) {
    return MakeError("{}: hidden size {} and intermediate size {} must be multiples of 16", name,
                     params.hidden, params.intermediate);
  }
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

}  // namespace

Result<CudaMoeLayer> CudaMoeLayer::Create(const CudaDevice& device, const MoeParams& params,
                                          ExpertPlacement placement,
                                          std::span<const ExpertWeights> experts,
                                          std::string_view name,
                                          const std::function<void(LocalExpert)>& release) {
  HB_RETURN_IF_ERROR(CheckParams(params, placement, std::ssize(experts), name));
  CudaMoeLayer layer(params, std::move(placement));
  HB_RETURN_IF_ERROR(layer.Upload(device, experts, name, release));
  HB_RETURN_IF_ERROR(CudaStatus(PrepareTokenPlan(), "preparing the plan kernel"));
  HB_RETURN_IF_ERROR(CudaStatus(sm90::PrepareGemms(), "preparing the product kernels"));
  return layer;
}

Status CudaMoeLayer::Upload(const CudaDevice& device, std::span<const ExpertWeights> experts,
                            std::string_view name,
                            const std::function<void(LocalExpert)>& release) {
  const auto count = static_cast<int64_t>(experts.size());
  const int64_t stored = StoredExpertBytes(shape_);
  const int64_t bytes = count * shape_.bytes();
  HB_ASSIGN_OR_RETURN(const CudaMemory memory, FreeCudaMemory());
  if (bytes + stored > memory.free_bytes) {
    return MakeError(
        ErrorKind::kMemory,
        "{}: {} experts take {} bytes of GPU memory and {} more while they are uploaded; {} of {} "
        "on {} are free",
        name, count, bytes, stored, memory.free_bytes, memory.total_bytes, device.name);
  }
  HB_ASSIGN_OR_RETURN(experts_, DeviceBuffer::Allocate(bytes, name));
  HB_ASSIGN_OR_RETURN(ExpertUploader uploader, ExpertUploader::Create(shape_));
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
                        reinterpret_cast<uint8_t*>(experts_.data()) + e * shape_.bytes()));
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

sm90::GemmVariant CudaMoeLayer::VariantFor(int64_t tokens, int64_t top_k) const {
  return sm90::GemmVariantFor(tokens * top_k, placement_.experts());
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
  switch (step) {
    case Step::kPlan:
      return CudaStatus(Plan(stream, call, workspace), "MoE layer, plan");
    case Step::kGateUp:
      return CudaStatus(GateUp(stream, call, workspace), "MoE layer, gate_up");
    case Step::kDown:
      return CudaStatus(Down(stream, call, workspace), "MoE layer, down");
    case Step::kCombine:
      return CudaStatus(Combine(stream, call, workspace), "MoE layer, combine");
  }
  return {};
}

// With more tokens a pass of its own takes less time than longer epilogues (docs/performance.md).
bool CudaMoeLayer::GateUpRequantizes(const CudaMoeCall& call) const {
  return params_.arithmetic == Arithmetic::kW4a4 && params_.down_input_scale.has_value() &&
         VariantFor(call.tokens, call.top_k) == sm90::GemmVariant::kFew &&
         products_ == CudaMoeProducts::kTensorCore;
}

cudaError_t CudaMoeLayer::Plan(cudaStream_t stream, const CudaMoeCall& call,
                               const CudaMoeWorkspace& workspace) const {
  const sm90::GemmVariant variant = VariantFor(call.tokens, call.top_k);
  if (variant == sm90::GemmVariant::kFew) return cudaSuccess;  // made by Gather
  return LaunchTokenPlan({.topk_ids = call.topk_ids,
                          .slots = call.tokens * call.top_k,
                          .local_of_global = local_of_global_.as<int32_t>(),
                          .global_experts = placement_.experts(),
                          .local_experts = placement_.local_experts(),
                          .max_tile_rows = sm90::MaxTileRows(variant),
                          .wide_tile_rows = sm90::WideTileRows(variant)},
                         workspace.layout_.plan, stream);
}

sm90::FewSlots CudaMoeLayer::FewSlotsOf(const CudaMoeCall& call) const {
  if (VariantFor(call.tokens, call.top_k) != sm90::GemmVariant::kFew) return {};
  return {.topk_ids = call.topk_ids,
          .slots = static_cast<int32_t>(call.tokens * call.top_k),
          .local_of_global = local_of_global_.as<int32_t>(),
          .global_experts = placement_.experts()};
}

sm90::ActivationQuantizer CudaMoeLayer::Quantizer(const std::optional<GlobalScale>& scale,
                                                  Nvfp4DeviceStats* stats) const {
  if (params_.arithmetic != Arithmetic::kW4a4) return {};
  return {.quantize = true, .static_scale = scale ? scale->value() : 0, .stats = stats};
}

cudaError_t CudaMoeLayer::Gather(cudaStream_t stream, const CudaMoeCall& call,
                                 const CudaMoeWorkspace& workspace) const {
  const CudaMoeWorkspace::Layout& layout = workspace.layout_;
  Nvfp4DeviceStats* stats = call.counters != nullptr ? &call.counters->gate_up : nullptr;
  return sm90::LaunchGather({.plan = layout.plan,
                             .few = FewSlotsOf(call),
                             .tokens = call.tokens,
                             .x = call.hidden,
                             .k = params_.hidden,
                             .top_k = call.top_k,
                             .quantizer = Quantizer(params_.gate_up_input_scale, stats),
                             .slot_weights = WeightsBeforeDown() ? call.topk_weights : nullptr,
                             .image = layout.image,
                             .row_scales = layout.row_scales,
                             .row_weights = layout.row_weights},
                            stream);
}

sm90::GemmArguments CudaMoeLayer::Gemm(const CudaMoeWorkspace& workspace,
                                       const std::optional<GlobalScale>& input_scale) const {
  const bool scaled_rows = params_.arithmetic == Arithmetic::kW4a4 && !input_scale;
  return {.experts = experts_.as<uint8_t>(),
          .shape = shape_,
          .tiles = workspace.layout_.plan.tiles,
          .tile_count = workspace.layout_.plan.tile_count,
          .row_scale = scaled_rows ? workspace.layout_.row_scales : nullptr};
}

sm90::GateUpArguments CudaMoeLayer::GateUpOf(const CudaMoeCall& call,
                                             const CudaMoeWorkspace& workspace) const {
  const CudaMoeWorkspace::Layout& layout = workspace.layout_;
  sm90::GateUpArguments arguments{.gemm = Gemm(workspace, params_.gate_up_input_scale),
                                  .image = layout.image,
                                  .alpha_gate = alphas_.as<float>(),
                                  .alpha_up = alphas_.as<float>() + placement_.local_experts(),
                                  .row_weight = WeightsBeforeDown() ? layout.row_weights : nullptr,
                                  .limit = params_.swiglu.limit,
                                  .swiglu_alpha = params_.swiglu.alpha,
                                  .swiglu_add = params_.swiglu.add,
                                  .h_image = layout.h_image};
  if (GateUpRequantizes(call)) {
    arguments.quantizer = {.static_scale = params_.down_input_scale->value(),
                           .slot_of_row = layout.plan.slot_of_row,
                           .stats = call.counters != nullptr ? &call.counters->down : nullptr};
  }
  return arguments;
}

cudaError_t CudaMoeLayer::GateUp(cudaStream_t stream, const CudaMoeCall& call,
                                 const CudaMoeWorkspace& workspace) const {
  const cudaError_t error = Gather(stream, call, workspace);
  if (error != cudaSuccess) return error;
  const sm90::GateUpArguments arguments = GateUpOf(call, workspace);
  if (products_ == CudaMoeProducts::kReference) {
    return sm90::LaunchReferenceGateUp(arguments, stream);
  }
  return sm90::LaunchGateUp(arguments, VariantFor(call.tokens, call.top_k),
                            sm90::Launch::kDependent, stream);
}

cudaError_t CudaMoeLayer::Requantize(cudaStream_t stream, const CudaMoeCall& call,
                                     const CudaMoeWorkspace& workspace) const {
  const std::optional<GlobalScale>& scale = params_.down_input_scale;
  return sm90::LaunchRequantize(
      {.plan = workspace.layout_.plan,
       .max_rows = sm90::MaxTokenRows(call.tokens * call.top_k, placement_.local_experts()),
       .image = workspace.layout_.h_image,
       .k = params_.intermediate,
       .static_scale = scale ? scale->value() : 0,
       .row_scales = scale ? nullptr : workspace.layout_.row_scales,
       .stats = call.counters != nullptr ? &call.counters->down : nullptr},
      stream);
}

cudaError_t CudaMoeLayer::Down(cudaStream_t stream, const CudaMoeCall& call,
                               const CudaMoeWorkspace& workspace) const {
  if (params_.arithmetic == Arithmetic::kW4a4 && !GateUpRequantizes(call)) {
    const cudaError_t error = Requantize(stream, call, workspace);
    if (error != cudaSuccess) return error;
  }
  const sm90::DownArguments arguments{
      .gemm = Gemm(workspace, params_.down_input_scale),
      .image = workspace.layout_.h_image,
      .alpha = alphas_.as<float>() + 2 * int64_t{placement_.local_experts()},
      .slot_values = workspace.layout_.slot_values};
  if (products_ == CudaMoeProducts::kReference) {
    return sm90::LaunchReferenceDown(arguments, stream);
  }
  return sm90::LaunchDown(arguments, VariantFor(call.tokens, call.top_k), sm90::Launch::kDependent,
                          stream);
}

cudaError_t CudaMoeLayer::Combine(cudaStream_t stream, const CudaMoeCall& call,
                                  const CudaMoeWorkspace& workspace) const {
  return LaunchCombine({.slot_values = workspace.layout_.slot_values,
                        .row_of_slot = workspace.layout_.plan.row_of_slot,
                        .slot_weights = WeightsBeforeDown() ? nullptr : call.topk_weights,
                        .tokens = call.tokens,
                        .top_k = call.top_k,
                        .hidden = params_.hidden,
                        .output_scale = params_.output_scale,
                        .out = call.out,
                        .out_is_bf16 = call.output == CudaMoeOutput::kBf16},
                       stream);
}

}  // namespace halfbyte
