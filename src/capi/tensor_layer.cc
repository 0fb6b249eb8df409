#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "capi/moe_handles.h"
#include "numerics/mxfp4_block.h"
#include "numerics/nvfp4_block.h"
#include "tensor/scale_check.h"

namespace halfbyte {
namespace {

Result<WeightFormat> ReadFormat(int32_t format, std::string_view name) {
  switch (format) {
    case HALFBYTE_MOE_NVFP4:
      return WeightFormat::kNvfp4;
    case HALFBYTE_MOE_MXFP4:
      return WeightFormat::kMxfp4;
    case HALFBYTE_MOE_BF16:
      return WeightFormat::kBf16;
    case HALFBYTE_MOE_FP8:
      return WeightFormat::kFp8;
    default:
      return MakeError("{}: format {} is none of HALFBYTE_MOE_NVFP4, MXFP4, BF16, FP8", name,
                       format);
  }
}

Result<DType> ReadScaleType(int32_t type, std::string_view name) {
  switch (type) {
    case HALFBYTE_MOE_SCALE_F32:
      return DType::kF32;
    case HALFBYTE_MOE_SCALE_BF16:
      return DType::kBf16;
    case HALFBYTE_MOE_SCALE_E8M0:
      return DType::kF8E8m0;
    default:
      return MakeError("{}: scale_type {} is none of HALFBYTE_MOE_SCALE_F32, BF16, E8M0", name,
                       type);
  }
}

// What only some formats have: blocks, scale types, the global scale.
Status ReadFormatFields(const halfbyte_moe_matrix& from, std::string_view name, WeightMatrix& w) {
  switch (w.format) {
    case WeightFormat::kNvfp4:
      w.scale_dtype = DType::kF8E4m3;
      w.global_scale = GlobalScale(from.global_scale);
      break;
    case WeightFormat::kMxfp4:
      w.scale_dtype = DType::kF8E8m0;
      if (w.columns % kMxfp4Block != 0) {
        return MakeError("{}: {} columns; MXFP4 needs a multiple of {}", name, w.columns,
                         kMxfp4Block);
      }
      break;
    case WeightFormat::kFp8: {
      HB_ASSIGN_OR_RETURN(w.scale_dtype, ReadScaleType(from.scale_type, name));
      if (from.block_rows < 1 || from.block_columns < 1) {
        return MakeError("{}: FP8 blocks of [{}, {}]; both must be positive", name, from.block_rows,
                         from.block_columns);
      }
      w.scale_block_rows = from.block_rows;
      w.scale_block_columns = from.block_columns;
      break;
    }
    default:
      break;
  }
  return {};
}

Status CheckBytes(const void* bytes, uint64_t size, int64_t expected, std::string_view name,
                  std::string_view what) {
  if (size != static_cast<uint64_t>(expected)) {
    return MakeError("{}: {} bytes of {} where its shape makes it {}", name, size, what, expected);
  }
  if (bytes == nullptr && expected > 0) return MakeError("{}: {} is NULL", name, what);
  return {};
}

Result<WeightMatrix> ReadMatrix(const halfbyte_moe_matrix& from, int64_t rows, int64_t columns,
                                std::string_view name) {
  WeightMatrix w{.rows = rows, .columns = columns};
  HB_ASSIGN_OR_RETURN(w.format, ReadFormat(from.format, name));
  HB_RETURN_IF_ERROR(ReadFormatFields(from, name, w));
  HB_RETURN_IF_ERROR(CheckBytes(from.data, from.data_bytes, rows * w.row_bytes(), name, "data"));
  const bool scaled = w.format != WeightFormat::kBf16;
  const int64_t scales = scaled ? w.scale_rows() * w.scale_columns() * DTypeSize(w.scale_dtype) : 0;
  HB_RETURN_IF_ERROR(CheckBytes(from.scales, from.scale_bytes, scales, name, "scales"));
  w.data = static_cast<const std::byte*>(from.data);
  if (scaled) w.scales = static_cast<const std::byte*>(from.scales);
  HB_RETURN_IF_ERROR(CheckScales(w, name));
  return w;
}

Result<std::vector<ExpertWeights>> ReadExperts(const halfbyte_moe_weights& from,
                                               const ExpertPlacement& placement) {
  const auto local = static_cast<uint64_t>(placement.local_experts());
  if (from.matrices != local) {
    return MakeError("weights.matrices: {} where {} experts belong here", from.matrices, local);
  }
  if (local > 0 && (from.gate == nullptr || from.up == nullptr || from.down == nullptr)) {
    return MakeError("weights: gate, up or down is NULL");
  }
  std::vector<ExpertWeights> experts(local);
  for (size_t e = 0; e < local; ++e) {
    const std::string name =
        fmt::format("expert {}", Index(placement.ToGlobal(LocalExpert{static_cast<int32_t>(e)})));
    HB_ASSIGN_OR_RETURN(experts[e].gate,
                        ReadMatrix(from.gate[e], from.intermediate, from.hidden, name + ", gate"));
    HB_ASSIGN_OR_RETURN(experts[e].up,
                        ReadMatrix(from.up[e], from.intermediate, from.hidden, name + ", up"));
    HB_ASSIGN_OR_RETURN(experts[e].down,
                        ReadMatrix(from.down[e], from.hidden, from.intermediate, name + ", down"));
  }
  return experts;
}

Status CheckSizes(const halfbyte_moe_weights& from) {
  if (from.experts < 1 || from.experts > kMaxExperts) {
    return MakeError("weights.experts: {} is outside 1..{}", from.experts, kMaxExperts);
  }
  if (from.top_k < 1 || from.top_k > from.experts) {
    return MakeError("weights.top_k: {} of {} experts", from.top_k, from.experts);
  }
  for (const auto& [name, width] :
       {std::pair{"hidden", from.hidden}, std::pair{"intermediate", from.intermediate}}) {
    if (width < kNvfp4Block || width > kMaxWidth || width % kNvfp4Block != 0) {
      return MakeError("weights.{}: {} is not a multiple of {} up to {}", name, width, kNvfp4Block,
                       kMaxWidth);
    }
  }
  if (!(from.swiglu_limit >= 0)) {
    return MakeError("weights.swiglu_limit: {} is negative or NaN; 0 means none",
                     from.swiglu_limit);
  }
  return {};
}

// One of the names in `values`, which the enum of moe.h counts from 0.
template <class T, size_t kCount>
Status ReadEnum(int32_t value, const T (&values)[kCount], std::string_view field, T& out) {
  if (value < 0 || value >= int32_t{kCount}) {
    return MakeError("weights.{}: {} is outside 0..{}; moe.h names its values", field, value,
                     kCount - 1);
  }
  out = values[value];
  return {};
}

Status ReadGroups(const halfbyte_moe_weights& from, RouterParams& router) {
  if (from.router_groups == 0 && from.router_chosen_groups == 0) return {};
  router.groups = from.router_groups;
  router.chosen_groups = from.router_chosen_groups;
  if (router.groups < 1 || from.experts % router.groups != 0) {
    return MakeError("weights.router_groups: {} experts do not fall into {} equal groups",
                     from.experts, router.groups);
  }
  if (router.chosen_groups < 1 || router.chosen_groups > router.groups) {
    return MakeError("weights.router_chosen_groups: {} is outside 1..{}", router.chosen_groups,
                     router.groups);
  }
  const int64_t candidates = router.chosen_groups * (from.experts / router.groups);
  if (from.top_k > candidates) {
    return MakeError("weights.top_k: {} of the {} experts in {} groups", from.top_k, candidates,
                     router.chosen_groups);
  }
  return {};
}

Result<RouterParams> ReadRouter(const halfbyte_moe_weights& from) {
  RouterParams router{.experts = from.experts, .top_k = from.top_k};
  constexpr RouterScore kScores[] = {RouterScore::kSqrtSoftplus, RouterScore::kSigmoid,
                                     RouterScore::kSoftmax, RouterScore::kIdentity};
  constexpr Renormalization kWeights[] = {Renormalization::kSum, Renormalization::kNone,
                                          Renormalization::kSelectedSoftmax};
  HB_RETURN_IF_ERROR(ReadEnum(from.router_score, kScores, "router_score", router.score));
  HB_RETURN_IF_ERROR(
      ReadEnum(from.router_weights, kWeights, "router_weights", router.renormalization));
  if (!std::isfinite(from.routed_scaling_factor)) {
    return MakeError("weights.routed_scaling_factor: {} is not finite", from.routed_scaling_factor);
  }
  if (from.routed_scaling_factor != 0) router.routed_scaling_factor = from.routed_scaling_factor;
  HB_RETURN_IF_ERROR(ReadGroups(from, router));
  return router;
}

// Empty if there is none.
Result<std::vector<float>> ReadRouterBias(const halfbyte_moe_weights& from) {
  if (from.router_bias == nullptr) return std::vector<float>();
  std::vector<float> bias(from.router_bias, from.router_bias + from.experts);
  for (size_t e = 0; e < bias.size(); ++e) {
    if (std::isfinite(bias[e])) continue;
    return MakeError("weights.router_bias: {} for expert {} is not finite", bias[e], e);
  }
  return bias;
}

ExpertInputScales InputScalesOf(const halfbyte_moe_weights& from) {
  if (from.gate_up_input_scale == 0 && from.down_input_scale == 0) {
    return {.gate_up = {}, .down = {}, .missing = "gate_up and down"};
  }
  return {.gate_up = {from.gate_up_input_scale}, .down = {from.down_input_scale}, .missing = ""};
}

}  // namespace

Result<std::unique_ptr<halfbyte_moe_layer>> LayerFromTensors(const halfbyte_moe_weights& weights,
                                                             const LayerOptions& options) {
  HB_RETURN_IF_ERROR(CheckSizes(weights));
  HB_ASSIGN_OR_RETURN(const RouterParams router, ReadRouter(weights));
  HB_ASSIGN_OR_RETURN(ExpertPlacement placement, options.Placement(weights.experts));
  HB_ASSIGN_OR_RETURN(std::vector<ExpertWeights> experts, ReadExperts(weights, placement));
  RoutedLayerParts parts{.name = "weights",
                         .params = {.hidden = weights.hidden,
                                    .intermediate = weights.intermediate,
                                    .arithmetic = options.routed.arithmetic,
                                    .routing_weight = weights.weight_after_down != 0
                                                          ? RoutingWeightPlacement::kAfterDown
                                                          : RoutingWeightPlacement::kBeforeDown,
                                    .round_activations = options.routed.round_activations},
                         .placement = std::move(placement),
                         .experts = std::move(experts),
                         .routing = {.params = router},
                         .input_scales = InputScalesOf(weights)};
  if (weights.swiglu_limit > 0) parts.params.swiglu.limit = weights.swiglu_limit;
  if (parts.params.arithmetic == Arithmetic::kW4a4) {
    HB_ASSIGN_OR_RETURN(
        const StageScales chosen,
        options.routed.activation_scales.ResolveUnmeasured("weights", parts.input_scales));
    parts.params.gate_up_input_scale = chosen.gate_up;
    parts.params.down_input_scale = chosen.down;
  }
  HB_ASSIGN_OR_RETURN(parts.routing.bias, ReadRouterBias(weights));
  return LayerFromParts(std::move(parts), options);
}

}  // namespace halfbyte
