#include "model/load_routed_layer.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace halfbyte {
namespace {

// gate, up and down.
using StoredExpert = std::array<StoredWeight, 3>;

// gate, up and down of expert e; their scale bytes have been read if the expert is `local`.
Result<StoredExpert> FindExpert(const WeightSource& source, int64_t layer, int32_t e, bool local) {
  StoredExpert parts;
  constexpr std::array kModules = {Module::kExpertGate, Module::kExpertUp, Module::kExpertDown};
  for (size_t i = 0; i < parts.size(); ++i) {
    const ModuleKey key = ModuleKey::Layer(layer, kModules[i], e);
    HB_ASSIGN_OR_RETURN(parts[i], local ? source.Stored(key) : source.Unread(key));
  }
  return parts;
}

void AddInputScales(const StoredExpert& expert, int32_t e, ExpertInputScales& scales) {
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

// Those of the placement; the input scales of all.
Result<std::vector<StoredExpert>> LoadExperts(const WeightSource& source, int64_t layer,
                                              const ExpertPlacement& placement,
                                              ExpertInputScales& scales) {
  std::vector<StoredExpert> experts;
  for (int32_t e = 0; e < placement.experts(); ++e) {
    const bool local = placement.ToLocal(e).has_value();
    HB_ASSIGN_OR_RETURN(StoredExpert expert, FindExpert(source, layer, e, local));
    AddInputScales(expert, e, scales);
    if (local) experts.push_back(std::move(expert));
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

Result<RoutedLayerParts> LoadRoutedLayer(const WeightSource& source, int64_t layer,
                                         const RoutedLayerOptions& options,
                                         const ExpertPlacement& placement) {
  const ModelConfig& config = source.config();
  RoutedLayerParts parts{.name = fmt::format("layer {}", layer),
                         .params = {.hidden = config.hidden_size,
                                    .intermediate = config.expert_size,
                                    .arithmetic = options.arithmetic,
                                    .round_activations = options.round_activations},
                         .placement = placement,
                         .experts = {},
                         .routing = {.params = RouterOf(config)}};
  if (config.swiglu_limit) parts.params.swiglu.limit = static_cast<float>(*config.swiglu_limit);
  HB_ASSIGN_OR_RETURN(std::vector<StoredExpert> stored,
                      LoadExperts(source, layer, placement, parts.input_scales));
  for (const auto& [gate, up, down] : stored) {
    parts.experts.push_back({gate.matrix, up.matrix, down.matrix});
  }
  if (options.arithmetic == Arithmetic::kW4a4) {
    HB_ASSIGN_OR_RETURN(
        const StageScales chosen,
        options.activation_scales.Resolve(layer, MoeShapeOf(config), parts.input_scales));
    parts.params.gate_up_input_scale = chosen.gate_up;
    parts.params.down_input_scale = chosen.down;
  }
  parts.release = [stored = std::move(stored)](LocalExpert e) {
    for (const StoredWeight& weight : stored[static_cast<size_t>(Index(e))]) weight.DropPages();
  };
  if (config.layers[static_cast<size_t>(layer)].hash_routed) {
    HB_ASSIGN_OR_RETURN(parts.routing.table,
                        source.RouterTable(ModuleKey::Layer(layer, Module::kRouterTable)));
  } else {
    HB_ASSIGN_OR_RETURN(
        parts.routing.bias,
        source.Vector(ModuleKey::Layer(layer, Module::kRouterBias), config.routed_experts));
  }
  return parts;
}

}  // namespace halfbyte
