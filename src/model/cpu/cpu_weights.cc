#include "model/cpu/cpu_weights.h"

#include <utility>

#include "base/check.h"
#include "checkpoint/inventory.h"

namespace halfbyte {
namespace {

// What MoeBlock reads.
bool IsOfExperts(Module module) {
  return IsRoutedExpert(module) || IsSharedExpert(module) || module == Module::kRouterBias ||
         module == Module::kRouterTable;
}

template <class Weight>
const Weight& Find(const std::unordered_map<ModuleKey, Weight>& weights, const ModuleKey& key) {
  const auto found = weights.find(key);
  HB_CHECK(found != weights.end(), "a program wants {}, which its model does not have",
           Describe(key));
  return found->second;
}

}  // namespace

bool IsReadInPlace(Module module) {
  return module == Module::kEmbed || IsHyperConnectionMatrix(module);
}

Result<CpuWeights> CpuWeights::Load(const WeightSource& source, const CpuWeightOptions& options,
                                    const ExpertPlacement& placement, ThreadPool& pool,
                                    const std::function<void(int64_t layer)>& on_part) {
  const ModelConfig& config = source.config();
  CpuWeights weights;
  weights.config_ = &config;
  ThreadPool* const packing_pool = options.packed ? &pool : nullptr;
  std::vector<ModuleKey> global;
  std::vector<std::vector<ModuleKey>> of_layers(static_cast<size_t>(config.layer_count()));
  for (const ModuleKey& key : RequiredModules(config)) {
    if (IsOfExperts(key.module)) continue;
    (key.scope == Scope::kGlobal ? global : of_layers[static_cast<size_t>(key.layer)])
        .push_back(key);
  }
  for (const ModuleKey& key : global) {
    HB_RETURN_IF_ERROR(weights.Add(source, key, packing_pool));
  }
  on_part(-1);
  for (int64_t l = 0; l < config.layer_count(); ++l) {
    for (const ModuleKey& key : of_layers[static_cast<size_t>(l)]) {
      HB_RETURN_IF_ERROR(weights.Add(source, key, packing_pool));
    }
    HB_ASSIGN_OR_RETURN(MoeBlock moe, MoeBlock::Load(source, l, options.experts, placement, pool));
    weights.moe_.push_back(std::move(moe));
    on_part(l);
  }
  return weights;
}

Status CpuWeights::Add(const WeightSource& source, const ModuleKey& key, ThreadPool* packing_pool) {
  if (IsReadInPlace(key.module)) {
    HB_ASSIGN_OR_RETURN(const StoredWeight stored, source.Matrix(key));
    in_place_[key] = stored.matrix;
    return {};
  }
  if (!IsMatrix(key.module)) {
    HB_ASSIGN_OR_RETURN(vectors_[key], source.Vector(key));
    return {};
  }
  HB_ASSIGN_OR_RETURN(const StoredWeight stored, source.Matrix(key));
  const int64_t groups = key.module == Module::kOA ? config_->o_groups : 1;
  HB_ASSIGN_OR_RETURN(matrices_[key], Projection::Create(stored, groups, packing_pool));
  return {};
}

const Projection& CpuWeights::matrix(const ModuleKey& key) const { return Find(matrices_, key); }
const WeightMatrix& CpuWeights::in_place(const ModuleKey& key) const {
  return Find(in_place_, key);
}
const float* CpuWeights::vector(const ModuleKey& key) const { return Find(vectors_, key).data(); }

HyperConnection CpuWeights::hyper_connection(const HyperConnectionKeys& keys) const {
  return {.fn = in_place(keys.fn),
          .base = vector(keys.base),
          .scale = vector(keys.scale),
          .streams = static_cast<int>(config_->hc_streams),
          .sinkhorn_iterations = static_cast<int>(config_->hc_sinkhorn_iterations),
          .eps = static_cast<float>(config_->hc_eps),
          .norm_eps = static_cast<float>(config_->rms_norm_eps)};
}

}  // namespace halfbyte
