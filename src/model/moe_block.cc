#include "model/moe_block.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"

namespace halfbyte {
namespace {

struct LocalExperts {
  std::vector<ExpertWeights> weights;
  std::vector<std::array<StoredWeight, 3>> stored;
};

// Views of this rank's experts; of the others' nothing but scalar scales is read. The activation
// scale is the same on all ranks (moe-layer.md §7).
Result<LocalExperts> LoadExperts(const WeightLoader& loader, int64_t layer,
                                 const ExpertPlacement& placement, ExpertInputScales& scales) {
  const ModelConfig& config = loader.config();
  LocalExperts experts;
  for (int64_t e = 0; e < config.routed_experts; ++e) {
    HB_ASSIGN_OR_RETURN(const StoredWeight gate,
                        loader.Stored(ModuleKey::Layer(layer, Module::kExpertGate, e)));
    HB_ASSIGN_OR_RETURN(const StoredWeight up,
                        loader.Stored(ModuleKey::Layer(layer, Module::kExpertUp, e)));
    HB_ASSIGN_OR_RETURN(const StoredWeight down,
                        loader.Stored(ModuleKey::Layer(layer, Module::kExpertDown, e)));
    if (placement.ToLocal(static_cast<int32_t>(e))) {
      experts.weights.push_back({gate.matrix, up.matrix, down.matrix});
      experts.stored.push_back({gate, up, down});
    }
    for (const auto& [weight, part] :
         {std::pair{&gate, "gate"}, std::pair{&up, "up"}, std::pair{&down, "down"}}) {
      if (weight->input_scale || !scales.missing.empty()) continue;
      scales.missing = fmt::format("expert {}, {}", e, part);
    }
    if (!gate.input_scale || !up.input_scale || !down.input_scale) continue;
    scales.gate_up.push_back(std::max(gate.input_scale->value(), up.input_scale->value()));
    scales.down.push_back(down.input_scale->value());
  }
  return experts;
}

Result<MoeLayer> LoadShared(const WeightLoader& loader, int64_t layer, MoeParams params,
                            const std::string& name) {
  const ModelConfig& config = loader.config();
  const auto matrix = [&](Module module, int64_t rows, int64_t columns) {
    return loader.Matrix(ModuleKey::Layer(layer, module), rows, columns);
  };
  params.intermediate = config.shared_size();
  params.gate_up_input_scale.reset();
  params.down_input_scale.reset();
  ExpertWeights shared;
  HB_ASSIGN_OR_RETURN(shared.gate, matrix(Module::kSharedGate, params.intermediate, params.hidden));
  HB_ASSIGN_OR_RETURN(shared.up, matrix(Module::kSharedUp, params.intermediate, params.hidden));
  HB_ASSIGN_OR_RETURN(shared.down, matrix(Module::kSharedDown, params.hidden, params.intermediate));
  // The 4-bit arithmetic is for 4-bit weights; a shared expert in FP8 or BF16 keeps bf16
  // activations.
  const auto is_fp4 = [](const WeightMatrix& w) {
    return w.format == WeightFormat::kNvfp4 || w.format == WeightFormat::kMxfp4;
  };
  if (params.arithmetic == Arithmetic::kW4a4 &&
      !(is_fp4(shared.gate) && is_fp4(shared.up) && is_fp4(shared.down))) {
    params.arithmetic = Arithmetic::kW4a16;
  }

  return MoeLayer::Create(params, ExpertPlacement::Single(1), {shared}, name + " shared expert");
}

}  // namespace

Result<MoeBlock> MoeBlock::Load(const WeightLoader& loader, int64_t layer, Arithmetic arithmetic,
                                Rounding rounding, const ExpertPlacement& placement,
                                const ActivationScalePolicy& activation_scales, ThreadPool& pool) {
  const ModelConfig& config = loader.config();
  const std::string name = "layer " + std::to_string(layer);
  MoeParams params{.hidden = config.hidden_size,
                   .intermediate = config.expert_size,
                   .arithmetic = arithmetic,
                   .round_activations = rounding == Rounding::kBf16};
  if (config.swiglu_limit) params.swiglu.limit = static_cast<float>(*config.swiglu_limit);

  ExpertInputScales scales;
  HB_ASSIGN_OR_RETURN(LocalExperts experts, LoadExperts(loader, layer, placement, scales));
  if (arithmetic == Arithmetic::kW4a4) {
    HB_ASSIGN_OR_RETURN(const StageScales chosen,
                        activation_scales.Resolve(layer, Shape(config), scales));
    params.gate_up_input_scale = chosen.gate_up;
    params.down_input_scale = chosen.down;
  }
  HB_ASSIGN_OR_RETURN(MoeLayer shared, LoadShared(loader, layer, params, name));
  // The stored bytes of an expert leave memory once it is packed: never two copies of a layer.
  const auto release = [&](LocalExpert e) {
    for (const StoredWeight& weight : experts.stored[static_cast<size_t>(Index(e))]) {
      weight.DropPages();
    }
  };
  HB_ASSIGN_OR_RETURN(MoeLayer routed,
                      MoeLayer::Create(params, placement, std::move(experts.weights), name,
                                       {.pool = &pool, .release = release}));
  MoeBlock block(std::move(routed), std::move(shared));
  block.input_scales_ = std::move(scales);
  block.router_ = {
      .experts = config.routed_experts,
      .top_k = config.experts_per_token,
      .score = RouterScore::kSqrtSoftplus,
      .renormalization = config.norm_topk_prob ? Renormalization::kSum : Renormalization::kNone,
      .routed_scaling_factor = static_cast<float>(config.routed_scaling_factor)};
  HB_ASSIGN_OR_RETURN(block.router_weight_,
                      loader.Matrix(ModuleKey::Layer(layer, Module::kRouter), config.routed_experts,
                                    config.hidden_size));
  if (config.layers[static_cast<size_t>(layer)].hash_routed) {
    HB_ASSIGN_OR_RETURN(block.table_,
                        loader.RouterTable(ModuleKey::Layer(layer, Module::kRouterTable)));
  } else {
    HB_ASSIGN_OR_RETURN(block.bias_, loader.Vector(ModuleKey::Layer(layer, Module::kRouterBias),
                                                   config.routed_experts));
  }
  return block;
}

MoeModelShape MoeBlock::Shape(const ModelConfig& config) {
  return {.layers = config.layer_count(),
          .experts = config.routed_experts,
          .hidden = config.hidden_size,
          .intermediate = config.expert_size};
}

MoeLimits MoeBlock::Limits(const ModelConfig& config, int64_t tokens) {
  return {.tokens = tokens,
          .top_k = config.experts_per_token,
          .experts = config.routed_experts,
          .hidden = config.hidden_size,
          .intermediate = std::max(config.expert_size, config.shared_size())};
}

Status MoeBlock::Forward(const Step& step, MatrixView<const float> x, MutableRouting routing,
                         MatrixView<float> out) {
  const Arena::Scope scope(*step.arena);
  const Context& context = *step.context;
  const MatrixView<float> logits = step.arena->Matrix(step.tokens, router_.experts);
  Linear(context, x, router_weight_, logits);
  if (table_.empty()) {
    Route(context, router_, logits, bias_, routing);
  } else {
    const MatrixView<const int32_t> table{table_.data(), std::ssize(table_) / router_.top_k,
                                          router_.top_k};
    RouteByTable(context, router_, logits, table, step.token_ids, routing);
  }
  const MatrixView<float> shared = step.arena->Matrix(step.tokens, out.columns);
  if (step.expert_exchange == nullptr) {
    routed_.Run(context, x, routing, out, *step.moe_workspace, &counters_);
  } else {
    HB_RETURN_IF_ERROR(step.expert_exchange->Run(context, routed_, x, routing, out,
                                                 *step.moe_workspace, &counters_));
  }
  shared_.RunDense(context, x, shared, *step.moe_workspace, &counters_);
  AddRows(context, shared, step.rounding, out);
  return {};
}

}  // namespace halfbyte
