#include "model/program/model_ops.h"

namespace halfbyte {

const char* NameOf(RowsName name) {
  static constexpr const char* kNames[] = {
      "streams",     "input",         "attention-out", "moe-out",     "window",
      "low-rank",    "queries",       "entry-kv",      "entry-score", "index-kv",
      "index-score", "index-queries", "index-weights", "selected",    "selected-count",
      "attended",    "grouped",       "router-logits", "choices",     "choice-weights",
      "head-input"};
  static_assert(std::size(kNames) == kRowsNames);
  return kNames[static_cast<size_t>(name)];
}

HyperConnectionKeys HyperConnectionOf(const Site& site) {
  const auto key = [&](Module module) { return ModuleKey::Layer(site.layer, module); };
  return site.block == Site::Block::kAttention
             ? HyperConnectionKeys{key(Module::kHcAttentionFn), key(Module::kHcAttentionBase),
                                   key(Module::kHcAttentionScale)}
             : HyperConnectionKeys{key(Module::kHcFfnFn), key(Module::kHcFfnBase),
                                   key(Module::kHcFfnScale)};
}

HyperConnectionKeys HeadHyperConnection() {
  return {ModuleKey::Global(Module::kHcHeadFn), ModuleKey::Global(Module::kHcHeadBase),
          ModuleKey::Global(Module::kHcHeadScale)};
}

bool IsHyperConnectionMatrix(Module module) {
  return module == Module::kHcHeadFn || module == Module::kHcAttentionFn ||
         module == Module::kHcFfnFn;
}

ModuleKey NormOf(const Site& site) {
  return ModuleKey::Layer(site.layer, site.block == Site::Block::kAttention ? Module::kAttentionNorm
                                                                            : Module::kFfnNorm);
}

}  // namespace halfbyte
