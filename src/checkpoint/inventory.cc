#include "checkpoint/inventory.h"

namespace halfbyte {
namespace {

// Channels of a compressor per head dimension: C4 keeps a previous and a current series.
int64_t SeriesOf(const LayerConfig& layer) { return layer.attention == AttentionKind::kC4 ? 2 : 1; }

std::optional<Shape> GlobalShape(const ModelConfig& c, Module module) {
  const int64_t n = c.hc_streams;
  switch (module) {
    case Module::kEmbed:
    case Module::kHead:
      return Shape{c.vocab_size, c.hidden_size};
    case Module::kNorm:
      return Shape{c.hidden_size};
    case Module::kHcHeadFn:
      return Shape{n, n * c.hidden_size};
    case Module::kHcHeadBase:
      return Shape{n};
    case Module::kHcHeadScale:
      return Shape{1};
    default:
      return std::nullopt;
  }
}

std::optional<Shape> AttentionShape(const ModelConfig& c, Module module) {
  switch (module) {
    case Module::kAttentionSink:
      return Shape{c.attention_heads};
    case Module::kQA:
      return Shape{c.q_lora_rank, c.hidden_size};
    case Module::kQNorm:
      return Shape{c.q_lora_rank};
    case Module::kQB:
      return Shape{c.attention_heads * c.head_dim, c.q_lora_rank};
    case Module::kKv:
      return Shape{c.head_dim, c.hidden_size};
    case Module::kKvNorm:
      return Shape{c.head_dim};
    case Module::kOA:
      return Shape{c.o_groups * c.o_lora_rank, c.group_heads() * c.head_dim};
    case Module::kOB:
      return Shape{c.hidden_size, c.o_groups * c.o_lora_rank};
    default:
      return std::nullopt;
  }
}

std::optional<Shape> CompressorShape(const ModelConfig& c, const LayerConfig& layer,
                                     Module module) {
  if (layer.attention == AttentionKind::kWindow) return std::nullopt;
  const int64_t channels = SeriesOf(layer) * c.head_dim;
  const int64_t index_channels = SeriesOf(layer) * c.index_head_dim;
  switch (module) {
    case Module::kCompressorApe:
      return Shape{layer.compress_rate, channels};
    case Module::kCompressorKv:
    case Module::kCompressorGate:
      return Shape{channels, c.hidden_size};
    case Module::kCompressorNorm:
      return Shape{c.head_dim};
    default:
      break;
  }
  if (layer.attention != AttentionKind::kC4) return std::nullopt;
  switch (module) {
    case Module::kIndexerQB:
      return Shape{c.index_heads * c.index_head_dim, c.q_lora_rank};
    case Module::kIndexerWeights:
      return Shape{c.index_heads, c.hidden_size};
    case Module::kIndexerApe:
      return Shape{layer.compress_rate, index_channels};
    case Module::kIndexerKv:
    case Module::kIndexerGate:
      return Shape{index_channels, c.hidden_size};
    case Module::kIndexerNorm:
      return Shape{c.index_head_dim};
    default:
      return std::nullopt;
  }
}

std::optional<Shape> ExpertShape(const ModelConfig& c, Module module, int32_t expert) {
  if (expert != kNoExpert && (expert < 0 || expert >= c.routed_experts)) return std::nullopt;
  const bool fused = expert == kNoExpert;
  switch (module) {
    case Module::kExpertGate:
    case Module::kExpertUp:
      if (fused) return std::nullopt;
      return Shape{c.expert_size, c.hidden_size};
    case Module::kExpertDown:
      if (fused) return Shape{c.routed_experts, c.hidden_size, c.expert_size};
      return Shape{c.hidden_size, c.expert_size};
    case Module::kExpertGateUp:
      if (!fused) return std::nullopt;
      return Shape{c.routed_experts, 2 * c.expert_size, c.hidden_size};
    default:
      return std::nullopt;
  }
}

std::optional<Shape> FfnShape(const ModelConfig& c, const LayerConfig& layer, Module module) {
  switch (module) {
    case Module::kRouter:
      return Shape{c.routed_experts, c.hidden_size};
    case Module::kRouterBias:
      if (layer.hash_routed) return std::nullopt;
      return Shape{c.routed_experts};
    case Module::kRouterTable:
      if (!layer.hash_routed) return std::nullopt;
      return Shape{c.vocab_size, c.experts_per_token};
    case Module::kSharedGate:
    case Module::kSharedUp:
      return Shape{c.shared_size(), c.hidden_size};
    case Module::kSharedDown:
      return Shape{c.hidden_size, c.shared_size()};
    default:
      return std::nullopt;
  }
}

std::optional<Shape> BlockShape(const ModelConfig& c, Module module) {
  const int64_t n = c.hc_streams;
  const int64_t mixes = (2 + n) * n;
  switch (module) {
    case Module::kAttentionNorm:
    case Module::kFfnNorm:
      return Shape{c.hidden_size};
    case Module::kHcAttentionFn:
    case Module::kHcFfnFn:
      return Shape{mixes, n * c.hidden_size};
    case Module::kHcAttentionBase:
    case Module::kHcFfnBase:
      return Shape{mixes};
    case Module::kHcAttentionScale:
    case Module::kHcFfnScale:
      return Shape{3};
    default:
      return std::nullopt;
  }
}

std::optional<Shape> MtpShape(const ModelConfig& c, Module module) {
  switch (module) {
    case Module::kMtpEmbedNorm:
    case Module::kMtpHiddenNorm:
    case Module::kMtpMainNorm:
    case Module::kNorm:
      return Shape{c.hidden_size};
    case Module::kMtpEmbedProj:
    case Module::kMtpHiddenProj:
      return Shape{c.hidden_size, c.hidden_size};
    case Module::kMtpMainProj:
      return Shape{c.hidden_size, c.dspark_targets * c.hidden_size};
    case Module::kMtpMarkov1:
    case Module::kMtpMarkov2:
      return Shape{c.vocab_size, c.dspark_markov_rank};
    case Module::kMtpConfidence:
      return Shape{1, c.hidden_size + c.dspark_markov_rank};
    default:
      return GlobalShape(c, module);
  }
}

constexpr Module kBlockModules[] = {
    Module::kAttentionNorm,
    Module::kFfnNorm,
    Module::kHcAttentionFn,
    Module::kHcAttentionBase,
    Module::kHcAttentionScale,
    Module::kHcFfnFn,
    Module::kHcFfnBase,
    Module::kHcFfnScale,
    Module::kAttentionSink,
    Module::kQA,
    Module::kQNorm,
    Module::kQB,
    Module::kKv,
    Module::kKvNorm,
    Module::kOA,
    Module::kOB,
    Module::kCompressorApe,
    Module::kCompressorKv,
    Module::kCompressorGate,
    Module::kCompressorNorm,
    Module::kIndexerQB,
    Module::kIndexerWeights,
    Module::kIndexerApe,
    Module::kIndexerKv,
    Module::kIndexerGate,
    Module::kIndexerNorm,
    Module::kRouter,
    Module::kRouterBias,
    Module::kRouterTable,
    Module::kSharedGate,
    Module::kSharedUp,
    Module::kSharedDown,
};

// All modules of one layer or draft stage that the config has.
void AppendBlock(const ModelConfig& config, Scope scope, int64_t layer,
                 std::vector<ModuleKey>& keys) {
  ModuleKey key{scope, static_cast<int32_t>(layer), Module::kAttentionNorm, kNoExpert};
  for (const Module module : kBlockModules) {
    key.module = module;
    if (ExpectedShape(config, key)) keys.push_back(key);
  }
  for (int64_t expert = 0; expert < config.routed_experts; ++expert) {
    key.expert = static_cast<int32_t>(expert);
    for (const Module module : {Module::kExpertGate, Module::kExpertUp, Module::kExpertDown}) {
      key.module = module;
      keys.push_back(key);
    }
  }
}

}  // namespace

std::optional<Shape> ExpectedShape(const ModelConfig& config, const ModuleKey& key) {
  if (IsRoutedExpert(key.module)) {
    if (key.scope == Scope::kGlobal || key.layer < 0) return std::nullopt;
    if (key.scope == Scope::kLayer && key.layer >= config.layer_count()) return std::nullopt;
    return ExpertShape(config, key.module, key.expert);
  }
  if (key.expert != kNoExpert) return std::nullopt;
  if (key.scope == Scope::kGlobal) return GlobalShape(config, key.module);
  LayerConfig layer;  // what a draft stage is: window attention, learned router
  if (key.scope == Scope::kLayer) {
    if (key.layer < 0 || key.layer >= config.layer_count()) return std::nullopt;
    layer = config.layers[static_cast<size_t>(key.layer)];
  }
  if (auto shape = BlockShape(config, key.module)) return shape;
  if (auto shape = AttentionShape(config, key.module)) return shape;
  if (auto shape = CompressorShape(config, layer, key.module)) return shape;
  if (auto shape = FfnShape(config, layer, key.module)) return shape;
  return key.scope == Scope::kMtp ? MtpShape(config, key.module) : std::nullopt;
}

bool IsMatrix(Module module) {
  switch (module) {
    case Module::kEmbed:
    case Module::kHead:
    case Module::kQA:
    case Module::kQB:
    case Module::kKv:
    case Module::kOA:
    case Module::kOB:
    case Module::kCompressorKv:
    case Module::kCompressorGate:
    case Module::kIndexerQB:
    case Module::kIndexerWeights:
    case Module::kIndexerKv:
    case Module::kIndexerGate:
    case Module::kRouter:
    case Module::kExpertGate:
    case Module::kExpertUp:
    case Module::kExpertDown:
    case Module::kSharedGate:
    case Module::kSharedUp:
    case Module::kSharedDown:
    case Module::kMtpEmbedProj:
    case Module::kMtpHiddenProj:
    case Module::kMtpMainProj:
    case Module::kMtpMarkov1:
    case Module::kMtpMarkov2:
    case Module::kMtpConfidence:
      return true;
    default:
      return false;
  }
}

std::vector<ModuleKey> RequiredModules(const ModelConfig& config) {
  std::vector<ModuleKey> keys;
  for (const Module module : {Module::kEmbed, Module::kHead, Module::kNorm, Module::kHcHeadFn,
                              Module::kHcHeadBase, Module::kHcHeadScale}) {
    keys.push_back(ModuleKey::Global(module));
  }
  for (int64_t layer = 0; layer < config.layer_count(); ++layer) {
    AppendBlock(config, Scope::kLayer, layer, keys);
  }
  return keys;
}

std::vector<ModuleKey> RequiredMtpModules(const ModelConfig& config, int64_t stage) {
  std::vector<ModuleKey> keys;
  AppendBlock(config, Scope::kMtp, stage, keys);
  const auto append = [&](std::initializer_list<Module> modules) {
    for (const Module module : modules) keys.push_back(ModuleKey::Mtp(stage, module));
  };
  const bool last = stage + 1 == config.mtp_stages;
  const bool dspark = config.is_dspark();
  if (!dspark) {
    append({Module::kMtpEmbedNorm, Module::kMtpHiddenNorm, Module::kMtpEmbedProj,
            Module::kMtpHiddenProj});
  } else if (stage == 0) {
    append({Module::kMtpMainNorm, Module::kMtpMainProj});
  }
  if (!dspark || last) {
    append({Module::kNorm, Module::kHcHeadFn, Module::kHcHeadBase, Module::kHcHeadScale});
  }
  if (dspark && last) {
    append({Module::kMtpMarkov1, Module::kMtpMarkov2, Module::kMtpConfidence});
  }
  return keys;
}

}  // namespace halfbyte
