#include "model/routed_layer.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace halfbyte {
namespace {

struct LocalExperts {
  std::vector<ExpertWeights> weights;
  std::vector<std::array<StoredWeight, 3>> stored;  // the same: gate, up, down
};

// gate, up and down of expert e; their scale bytes have been read if the expert is `local`.
Result<std::array<StoredWeight, 3>> FindExpert(const WeightLoader& loader, int64_t layer, int32_t e,
                                               bool local) {
  std::array<StoredWeight, 3> parts;
  constexpr std::array kModules = {Module::kExpertGate, Module::kExpertUp, Module::kExpertDown};
  for (size_t i = 0; i < parts.size(); ++i) {
    const ModuleKey key = ModuleKey::Layer(layer, kModules[i], e);
    HB_ASSIGN_OR_RETURN(parts[i], local ? loader.Stored(key) : loader.Unread(key));
  }
  return parts;
}

void AddInputScales(const std::array<StoredWeight, 3>& expert, int32_t e,
                    ExpertInputScales& scales) {
  const auto& [gate, up, down] = expert;
  for (const auto& [weight, part] :
       {std::pair{&gate, "gate"}, std::pair{&up, "up"}, std::pair{&down, "down"}}) {
    if (weight->input_scale || !scales.missing.empty()) continue;
    scales.missing = fmt::format("expert {}, {}", e, part);
  }
  if (!gate.input_scale || !up.input_scale || !down.input_scale) return;
  scales.gate_up.push_back(std::max(gate.input_scale->value(), up.input_scale->value()));
  scales.down.push_back(down.input_scale->value());
}

Result<LocalExperts> LoadExperts(const WeightLoader& loader, int64_t layer,
                                 const ExpertPlacement& placement, ExpertInputScales& scales) {
  LocalExperts experts;
  for (int32_t e = 0; e < placement.experts(); ++e) {
    const bool local = placement.ToLocal(e).has_value();
    HB_ASSIGN_OR_RETURN(auto expert, FindExpert(loader, layer, e, local));
    AddInputScales(expert, e, scales);
    if (!local) continue;
    experts.weights.push_back({expert[0].matrix, expert[1].matrix, expert[2].matrix});
    experts.stored.push_back(std::move(expert));
  }
  return experts;
}

RouterParams RouterOf(const ModelConfig& config) {
  return {.experts = config.routed_experts,
          .top_k = config.experts_per_token,
          .score = RouterScore::kSqrtSoftplus,
          .renormalization = config.norm_topk_prob ? Renormalization::kSum : Renormalization::kNone,
          .routed_scaling_factor = static_cast<float>(config.routed_scaling_factor)};
}

}  // namespace

MoeModelShape MoeShapeOf(const ModelConfig& config) {
  return {.layers = config.layer_count(),
          .experts = config.routed_experts,
          .hidden = config.hidden_size,
          .intermediate = config.expert_size};
}

Result<RoutedLayer> RoutedLayer::Load(const WeightLoader& loader, int64_t layer,
                                      const RoutedLayerOptions& options,
                                      const ExpertPlacement& placement, ThreadPool& pool) {
  const ModelConfig& config = loader.config();
  MoeParams params{.hidden = config.hidden_size,
                   .intermediate = config.expert_size,
                   .arithmetic = options.arithmetic,
                   .round_activations = options.round_activations};
  if (config.swiglu_limit) params.swiglu.limit = static_cast<float>(*config.swiglu_limit);

  ExpertInputScales scales;
  HB_ASSIGN_OR_RETURN(LocalExperts experts, LoadExperts(loader, layer, placement, scales));
  if (options.arithmetic == Arithmetic::kW4a4) {
    HB_ASSIGN_OR_RETURN(const StageScales chosen,
                        options.activation_scales.Resolve(layer, MoeShapeOf(config), scales));
    params.gate_up_input_scale = chosen.gate_up;
    params.down_input_scale = chosen.down;
  }
  const auto release = [&](LocalExpert e) {
    for (const StoredWeight& weight : experts.stored[static_cast<size_t>(Index(e))]) {
      weight.DropPages();
    }
  };
  HB_ASSIGN_OR_RETURN(MoeLayer moe, MoeLayer::Create(params, placement, std::move(experts.weights),
                                                     fmt::format("layer {}", layer),
                                                     {.pool = &pool, .release = release}));
  RoutedLayer routed{
      .experts = std::move(moe), .router = RouterOf(config), .input_scales = std::move(scales)};
  if (config.layers[static_cast<size_t>(layer)].hash_routed) {
    HB_ASSIGN_OR_RETURN(routed.table,
                        loader.RouterTable(ModuleKey::Layer(layer, Module::kRouterTable)));
  } else {
    HB_ASSIGN_OR_RETURN(routed.bias, loader.Vector(ModuleKey::Layer(layer, Module::kRouterBias),
                                                   config.routed_experts));
  }
  return routed;
}

RouterCounters RoutedLayer::Route(const Context& context, MatrixView<const float> logits,
                                  std::span<const int32_t> token_ids,
                                  MutableRouting routing) const {
  if (!routes_by_token_id()) return halfbyte::Route(context, router, logits, bias, routing);
  return RouteByTable(context, router, logits, {table.data(), vocabulary(), router.top_k},
                      token_ids, routing);
}

}  // namespace halfbyte
