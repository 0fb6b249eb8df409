#include <algorithm>
#include <array>
#include <string>

#include "capi/moe_handles.h"
#include "model/weight_loader.h"

namespace halfbyte {
namespace {

// The local experts, and the input scales of both stages over all experts: every rank must come to
// the same activation scale.
struct StoredExperts {
  std::vector<ExpertWeights> local;
  std::vector<std::array<StoredWeight, 3>> stored;  // the same
  std::vector<float> gate_up_scales;                // both empty if any expert lacks one
  std::vector<float> down_scales;
};

Result<StoredExperts> LoadExperts(const WeightLoader& loader, int64_t layer,
                                  const ExpertPlacement& placement) {
  StoredExperts experts;
  bool complete = true;
  for (int32_t e = 0; e < placement.experts(); ++e) {
    const auto stored = [&](Module module) {
      return loader.Stored(ModuleKey::Layer(layer, module, e));
    };
    HB_ASSIGN_OR_RETURN(const StoredWeight gate, stored(Module::kExpertGate));
    HB_ASSIGN_OR_RETURN(const StoredWeight up, stored(Module::kExpertUp));
    HB_ASSIGN_OR_RETURN(const StoredWeight down, stored(Module::kExpertDown));
    if (placement.ToLocal(e)) {
      for (const StoredWeight* weight : {&gate, &up, &down}) {
        HB_RETURN_IF_ERROR(CheckScales(weight->matrix, weight->name));
      }
      experts.local.push_back({gate.matrix, up.matrix, down.matrix});
      experts.stored.push_back({gate, up, down});
    }
    complete = complete && gate.input_scale && up.input_scale && down.input_scale;
    if (!complete) continue;
    experts.gate_up_scales.push_back(std::max(gate.input_scale->value(), up.input_scale->value()));
    experts.down_scales.push_back(down.input_scale->value());
  }
  if (!complete) {
    experts.gate_up_scales.clear();
    experts.down_scales.clear();
  }
  return experts;
}

Status LoadRouter(const WeightLoader& loader, int64_t layer, halfbyte_moe_layer& handle) {
  const ModelConfig& config = loader.config();
  handle.router = {
      .experts = config.routed_experts,
      .top_k = config.experts_per_token,
      .score = RouterScore::kSqrtSoftplus,
      .renormalization = config.norm_topk_prob ? Renormalization::kSum : Renormalization::kNone,
      .routed_scaling_factor = static_cast<float>(config.routed_scaling_factor)};
  if (config.layers[static_cast<size_t>(layer)].hash_routed) {
    HB_ASSIGN_OR_RETURN(handle.table,
                        loader.RouterTable(ModuleKey::Layer(layer, Module::kRouterTable)));
  } else {
    HB_ASSIGN_OR_RETURN(handle.bias, loader.Vector(ModuleKey::Layer(layer, Module::kRouterBias),
                                                   config.routed_experts));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<halfbyte_moe_layer>> LayerFromCheckpoint(const char* directory,
                                                                int64_t layer,
                                                                const LayerOptions& options) {
  HB_ASSIGN_OR_RETURN(ModelCheckpoint opened, ModelCheckpoint::Open(directory));
  auto checkpoint = std::make_unique<ModelCheckpoint>(std::move(opened));
  const WeightLoader loader(*checkpoint);
  const ModelConfig& config = loader.config();
  if (layer < 0 || layer >= config.layer_count()) {
    return MakeError("{}: layer {} of a model whose layers are 0..{}", directory, layer,
                     config.layer_count() - 1);
  }
  const std::string name = "layer " + std::to_string(layer);
  HB_ASSIGN_OR_RETURN(ExpertPlacement placement, options.Placement(config.routed_experts));
  HB_ASSIGN_OR_RETURN(StoredExperts experts, LoadExperts(loader, layer, placement));
  MoeParams params{.hidden = config.hidden_size,
                   .intermediate = config.expert_size,
                   .arithmetic = options.arithmetic,
                   .round_activations = options.round_activations};
  if (config.swiglu_limit) params.swiglu.limit = static_cast<float>(*config.swiglu_limit);
  HB_RETURN_IF_ERROR(
      options.SetActivationScales(experts.gate_up_scales, experts.down_scales, name, params));
  ThreadPool pool(options.threads);
  // The stored bytes of an expert leave memory once it is packed: never two copies of a layer.
  const auto release = [&](LocalExpert e) {
    for (const StoredWeight& weight : experts.stored[static_cast<size_t>(Index(e))]) {
      weight.DropPages();
    }
  };
  HB_ASSIGN_OR_RETURN(MoeLayer moe,
                      MoeLayer::Create(params, std::move(placement), std::move(experts.local), name,
                                       {.pool = &pool, .release = release}));
  auto handle = std::make_unique<halfbyte_moe_layer>(std::move(moe), options.threads);
  HB_RETURN_IF_ERROR(LoadRouter(loader, layer, *handle));
  handle->checkpoint = std::move(checkpoint);
  return handle;
}

}  // namespace halfbyte
