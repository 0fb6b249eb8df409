#include "moe/cuda/sm90_moe_kernels.h"

#include <optional>

#include "kernels/sm90_moe/activation_image.h"
#include "kernels/sm90_moe/pack_expert.h"

namespace halfbyte {
namespace {

sm90::GemmVariant VariantOf(const MoeKernelCall& call) {
  return sm90::GemmVariantFor(call.call.slots(), call.weights.global_experts);
}

sm90::FewSlots FewSlotsOf(const MoeKernelCall& call) {  // none, if they are many
  if (VariantOf(call) != sm90::GemmVariant::kFew) return {};
  return {.topk_ids = call.call.topk_ids,
          .slots = static_cast<int32_t>(call.call.slots()),
          .local_of_global = call.weights.local_of_global,
          .global_experts = call.weights.global_experts};
}

cudaError_t Gather(const MoeKernelCall& call, cudaStream_t stream) {
  const MoeParams& params = call.params;
  const MoeKernelMemory& memory = call.memory;
  sm90::ActivationQuantizer quantizer;
  if (params.arithmetic == Arithmetic::kW4a4) {
    const std::optional<GlobalScale>& scale = params.gate_up_input_scale;
    quantizer = {.quantize = true,
                 .static_scale = scale ? scale->value() : 0,
                 .stats = call.call.counters != nullptr ? &call.call.counters->gate_up : nullptr};
  }
  return sm90::LaunchGather(
      {.plan = memory.plan,
       .few = FewSlotsOf(call),
       .tokens = call.call.tokens,
       .x = call.call.hidden,
       .k = params.hidden,
       .top_k = call.call.top_k,
       .quantizer = quantizer,
       .slot_weights = call.weights_before_down() ? call.call.topk_weights : nullptr,
       .image = memory.image,
       .row_scales = memory.row_scales,
       .row_weights = memory.row_weights},
      stream);
}

sm90::GemmArguments Gemm(const MoeKernelCall& call, const std::optional<GlobalScale>& input_scale) {
  const bool scaled_rows = call.params.arithmetic == Arithmetic::kW4a4 && !input_scale;
  return {.experts = call.weights.experts,
          .shape = {call.params.hidden, call.params.intermediate},
          .tiles = call.memory.plan.tiles,
          .tile_count = call.memory.plan.tile_count,
          .row_scale = scaled_rows ? call.memory.row_scales : nullptr};
}

cudaError_t Requantize(const MoeKernelCall& call, cudaStream_t stream) {
  const std::optional<GlobalScale>& scale = call.params.down_input_scale;
  return sm90::LaunchRequantize(
      {.plan = call.memory.plan,
       .max_rows = MaxTokenRows(call.call.slots(), call.weights.local_experts),
       .image = call.memory.h_image,
       .k = call.params.intermediate,
       .static_scale = scale ? scale->value() : 0,
       .row_scales = scale ? nullptr : call.memory.row_scales,
       .stats = call.call.counters != nullptr ? &call.call.counters->down : nullptr},
      stream);
}

}  // namespace

Status Sm90MoeKernels::Supports(const MoeParams& params, std::string_view name) const {
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
  return {};
}

int64_t Sm90MoeKernels::ExpertBytes(int64_t hidden, int64_t intermediate) const {
  return sm90::ExpertShape{hidden, intermediate}.bytes();
}

cudaError_t Sm90MoeKernels::Pack(const UploadedExpert& expert, int64_t hidden, int64_t intermediate,
                                 uint8_t* packed, cudaStream_t stream) const {
  return sm90::LaunchPackExpert(expert, {hidden, intermediate}, packed, stream);
}

int64_t Sm90MoeKernels::ImageBytes(int64_t rows, int64_t columns) const {
  return sm90::ImageBytes(rows, columns);
}

cudaError_t Sm90MoeKernels::Prepare() const { return sm90::PrepareGemms(); }

MoeTiling Sm90MoeKernels::TilingFor(int64_t slots, int64_t experts) const {
  const sm90::GemmVariant variant = sm90::GemmVariantFor(slots, experts);
  return {.max_tile_rows = sm90::MaxTileRows(variant),
          .wide_tile_rows = sm90::WideTileRows(variant),
          .gather_plans = variant == sm90::GemmVariant::kFew,
          .name = sm90::GemmVariantName(variant)};
}

// With more tokens a pass of its own takes less time than longer epilogues (docs/performance.md).
bool Sm90MoeKernels::GateUpRequantizes(const MoeKernelCall& call) const {
  return call.params.arithmetic == Arithmetic::kW4a4 && call.params.down_input_scale.has_value() &&
         VariantOf(call) == sm90::GemmVariant::kFew && epilogue_requantizes();
}

cudaError_t Sm90MoeKernels::GateUp(const MoeKernelCall& call, cudaStream_t stream) const {
  if (const cudaError_t error = Gather(call, stream); error != cudaSuccess) return error;
  const MoeParams& params = call.params;
  sm90::GateUpArguments arguments{
      .gemm = Gemm(call, params.gate_up_input_scale),
      .image = call.memory.image,
      .alpha_gate = call.weights.alpha_gate,
      .alpha_up = call.weights.alpha_up,
      .row_weight = call.weights_before_down() ? call.memory.row_weights : nullptr,
      .limit = params.swiglu.limit,
      .swiglu_alpha = params.swiglu.alpha,
      .swiglu_add = params.swiglu.add,
      .h_image = call.memory.h_image};
  if (GateUpRequantizes(call)) {
    arguments.quantizer = {
        .static_scale = params.down_input_scale->value(),
        .slot_of_row = call.memory.plan.slot_of_row,
        .stats = call.call.counters != nullptr ? &call.call.counters->down : nullptr};
  }
  return LaunchGateUp(arguments, VariantOf(call), stream);
}

cudaError_t Sm90MoeKernels::Down(const MoeKernelCall& call, cudaStream_t stream) const {
  if (call.params.arithmetic == Arithmetic::kW4a4 && !GateUpRequantizes(call)) {
    if (const cudaError_t error = Requantize(call, stream); error != cudaSuccess) return error;
  }
  return LaunchDown({.gemm = Gemm(call, call.params.down_input_scale),
                     .image = call.memory.h_image,
                     .alpha = call.weights.alpha_down,
                     .slot_values = call.memory.slot_values},
                    VariantOf(call), stream);
}

cudaError_t Sm90MoeKernels::LaunchGateUp(const sm90::GateUpArguments& arguments,
                                         sm90::GemmVariant variant, cudaStream_t stream) const {
  return sm90::LaunchGateUp(arguments, variant, sm90::Launch::kDependent, stream);
}

cudaError_t Sm90MoeKernels::LaunchDown(const sm90::DownArguments& arguments,
                                       sm90::GemmVariant variant, cudaStream_t stream) const {
  return sm90::LaunchDown(arguments, variant, sm90::Launch::kDependent, stream);
}

Result<const MoeKernels*> MoeKernelsOf(const CudaDevice& device) {
  static const Sm90MoeKernels hopper;
  if (device.major == 9) return &hopper;
  return MakeError("{} has compute capability {}.{}; layers are computed on 9.0 (Hopper)",
                   device.name, device.major, device.minor);
}

}  // namespace halfbyte
