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

Status ReadRouter(const halfbyte_moe_weights& from, halfbyte_moe_layer& handle) {
  handle.router.experts = from.experts;
  handle.router.top_k = from.top_k;
  constexpr RouterScore kScores[] = {RouterScore::kSqrtSoftplus, RouterScore::kSigmoid,
                                     RouterScore::kSoftmax, RouterScore::kIdentity};
  if (from.router_score < 0 || from.router_score >= std::ssize(kScores)) {
    return MakeError("weights.router_score: {} is none of HALFBYTE_MOE_SQRT_SOFTPLUS, ...",
                     from.router_score);
  }
  handle.router.score = kScores[from.router_score];
  constexpr Renormalization kWeights[] = {Renormalization::kSum, Renormalization::kNone,
                                          Renormalization::kSelectedSoftmax};
  if (from.router_weights < 0 || from.router_weights >= std::ssize(kWeights)) {
    return MakeError("weights.router_weights: {} is none of HALFBYTE_MOE_DIVIDE_BY_SUM, ...",
                     from.router_weights);
  }
  handle.router.renormalization = kWeights[from.router_weights];
  if (!std::isfinite(from.routed_scaling_factor)) {
    return MakeError("weights.routed_scaling_factor: {} is not finite", from.routed_scaling_factor);
  }
  if (from.routed_scaling_factor != 0) {
    handle.router.routed_scaling_factor = from.routed_scaling_factor;
  }
  if (from.router_bias != nullptr) {
    handle.bias.assign(from.router_bias, from.router_bias + from.experts);
  }
  return {};
}

}  // namespace

Status CheckScales(const WeightMatrix& matrix, std::string_view name) {
  const int64_t count = matrix.scale_rows() * matrix.scale_columns();
  const auto bytes = [&] {
    return std::span(matrix.scales, static_cast<size_t>(count));  // scales of one byte
  };
  switch (matrix.format) {
    case WeightFormat::kNvfp4:
      return CheckE4m3BlockScales(bytes(), matrix.scale_columns(), name);
    case WeightFormat::kMxfp4:
      return CheckE8m0Scales(bytes(), matrix.scale_columns(), name);
    case WeightFormat::kFp8:
      if (matrix.scale_dtype == DType::kF8E8m0) {
        return CheckE8m0Scales(bytes(), matrix.scale_columns(), name);
      }
      for (int64_t r = 0; r < matrix.rows; r += matrix.scale_block_rows) {
        for (int64_t c = 0; c < matrix.columns; c += matrix.scale_block_columns) {
          if (!std::isfinite(Fp8WeightScale(matrix, r, c))) {
            return MakeError("{}: the scale of [{}, {}] is not finite", name, r, c);
          }
        }
      }
      return {};
    default:
      return {};
  }
}

Result<std::unique_ptr<halfbyte_moe_layer>> LayerFromTensors(const halfbyte_moe_weights& weights,
                                                             const LayerOptions& options) {
  HB_RETURN_IF_ERROR(CheckSizes(weights));
  HB_ASSIGN_OR_RETURN(ExpertPlacement placement, options.Placement(weights.experts));
  HB_ASSIGN_OR_RETURN(std::vector<ExpertWeights> experts, ReadExperts(weights, placement));
  MoeParams params{.hidden = weights.hidden,
                   .intermediate = weights.intermediate,
                   .arithmetic = options.arithmetic,
                   .placement = weights.weight_after_down != 0
                                    ? RoutingWeightPlacement::kAfterDown
                                    : RoutingWeightPlacement::kBeforeDown,
                   .round_activations = options.round_activations};
  if (weights.swiglu_limit > 0) params.swiglu.limit = weights.swiglu_limit;
  const bool has_scales = weights.gate_up_input_scale != 0 || weights.down_input_scale != 0;
  const size_t scales = has_scales ? 1 : 0;
  HB_RETURN_IF_ERROR(options.SetActivationScales({&weights.gate_up_input_scale, scales},
                                                 {&weights.down_input_scale, scales}, "weights",
                                                 params));
  ThreadPool pool(options.threads);
  HB_ASSIGN_OR_RETURN(MoeLayer moe,
                      MoeLayer::Create(params, std::move(placement), std::move(experts), "weights",
                                       {.pool = &pool}));
  auto handle = std::make_unique<halfbyte_moe_layer>(std::move(moe), options.threads);
  HB_RETURN_IF_ERROR(ReadRouter(weights, *handle));
  return handle;
}

}  // namespace halfbyte
