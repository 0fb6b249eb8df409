// Tensor names <-> what they mean (checkpoints.md §1.6). One logical tensor of the model is a
// ModuleKey; it is stored as one or several tensors (parts: codes, scales, ...) under names of one
// of several styles. The tables are in tensor_name.cc.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace halfbyte {

enum class Scope : uint8_t { kGlobal, kLayer, kMtp };

enum class Module : uint8_t {
  // Global; the HC head and the norm also belong to the last draft stage.
  kEmbed,        // [V, D]
  kHead,         // [V, D]
  kNorm,         // [D]
  kHcHeadFn,     // [n, nD]
  kHcHeadBase,   // [n]
  kHcHeadScale,  // [1]
  // Every layer.
  kAttentionNorm,
  kFfnNorm,
  kHcAttentionFn,  // [(2+n)n, nD]
  kHcAttentionBase,
  kHcAttentionScale,
  kHcFfnFn,
  kHcFfnBase,
  kHcFfnScale,
  kAttentionSink,  // [H]
  kQA,             // wq_a
  kQNorm,
  kQB,  // wq_b
  kKv,  // wkv
  kKvNorm,
  kOA,  // wo_a, grouped
  kOB,  // wo_b
  // Compressing layers.
  kCompressorApe,
  kCompressorKv,
  kCompressorGate,
  kCompressorNorm,
  kIndexerQB,
  kIndexerWeights,
  kIndexerApe,  // ape, kv, gate, norm: of the indexer's own compressor
  kIndexerKv,
  kIndexerGate,
  kIndexerNorm,
  // Mixture of experts.
  kRouter,        // [E, D]
  kRouterBias,    // [E], learned routing
  kRouterTable,   // tid2eid [V, K], hash routing
  kExpertGate,    // w1 [I, D]
  kExpertUp,      // w3 [I, D]
  kExpertDown,    // w2 [D, I]
  kExpertGateUp,  // all experts fused, [E, 2I, D]: gate rows, then up rows; Hugging Face only
  kSharedGate,
  kSharedUp,
  kSharedDown,
  // Draft stages.
  kMtpEmbedNorm,
  kMtpHiddenNorm,
  kMtpEmbedProj,
  kMtpHiddenProj,
  kMtpMainNorm,
  kMtpMainProj,
  kMtpMarkov1,
  kMtpMarkov2,
  kMtpConfidence,
};
inline constexpr int kModules = static_cast<int>(Module::kMtpConfidence) + 1;

// Which stored tensor of a module. Bare tensors (hc_attn_fn, tid2eid, fused experts) are kWeight.
enum class Part : uint8_t {
  kWeight,
  kBias,
  kScale,         // DeepSeek
  kWeightScale,   // ModelOpt, compressed-tensors
  kWeightScale2,  // ModelOpt, a multiplier
  kWeightScaleInv,
  kInputScale,         // ModelOpt, a multiplier
  kWeightPacked,       // compressed-tensors
  kWeightGlobalScale,  // compressed-tensors, a divisor
  kInputGlobalScale,   // compressed-tensors, a divisor
};
inline constexpr int kParts = static_cast<int>(Part::kInputGlobalScale) + 1;

// A style is a prefix and one of two families of names below it. A checkpoint may mix them: what
// transformers saves by default has official names in its layers and Hugging Face ones around them.
enum class NamingStyle : uint8_t {
  kOfficial,                    // layers.0.ffn.experts.3.w1.weight
  kHuggingFace,                 // model.layers.0.mlp.experts.3.gate_proj.weight
  kOfficialBelowModel,          // model.layers.0.ffn.experts.3.w1.weight
  kHuggingFaceBare,             // layers.0.mlp.experts.3.gate_proj.weight
  kLanguageModelOuter,          // language_model.model.layers.0.mlp...
  kLanguageModelInner,          // model.language_model.layers.0.mlp...
  kOfficialLanguageModelOuter,  // language_model.model.layers.0.ffn...
  kOfficialLanguageModelInner,  // model.language_model.layers.0.ffn...
};
inline constexpr int kNamingStyles = static_cast<int>(NamingStyle::kOfficialLanguageModelInner) + 1;

inline constexpr int32_t kNoExpert = -1;

// expert: kNoExpert for everything but routed experts, and for a tensor that holds all of them
// (fused kExpertGateUp [E, 2I, D] and kExpertDown [E, D, I]).
struct ModuleKey {
  Scope scope = Scope::kGlobal;
  int32_t layer = 0;  // layer or draft stage; 0 for kGlobal
  Module module = Module::kEmbed;
  int32_t expert = kNoExpert;

  static ModuleKey Global(Module module) { return {Scope::kGlobal, 0, module, kNoExpert}; }
  static ModuleKey Layer(int64_t layer, Module module, int64_t expert = kNoExpert) {
    return {Scope::kLayer, static_cast<int32_t>(layer), module, static_cast<int32_t>(expert)};
  }
  static ModuleKey Mtp(int64_t stage, Module module, int64_t expert = kNoExpert) {
    return {Scope::kMtp, static_cast<int32_t>(stage), module, static_cast<int32_t>(expert)};
  }
  friend auto operator<=>(const ModuleKey&, const ModuleKey&) = default;
};

struct TensorName {
  ModuleKey key;
  Part part = Part::kWeight;
  NamingStyle style = NamingStyle::kOfficial;
  friend bool operator==(const TensorName&, const TensorName&) = default;
};

// Nothing if the name belongs to no table; callers report such names.
std::optional<TensorName> ParseTensorName(std::string_view name);

// The inverse. Nothing if the style has no such tensor (fused experts in kOfficial). Draft stages
// ("mtp.0.") have official names in every style.
std::optional<std::string> FormatTensorName(const ModuleKey& key, Part part, NamingStyle style);

// Names for reports: "wq_a", "weight_scale_2", "layer 3 expert 7 gate".
std::string_view ModuleName(Module module);
std::string_view PartName(Part part);
std::string_view NamingStyleName(NamingStyle style);
bool HasOfficialNames(NamingStyle style);  // attn.wq_a, not self_attn.q_a_proj
std::string Describe(const ModuleKey& key);

// Gate, up or down matrix of routed experts, fused or not.
bool IsRoutedExpert(Module module);
bool IsSharedExpert(Module module);

}  // namespace halfbyte

template <>
struct std::hash<halfbyte::ModuleKey> {
  size_t operator()(const halfbyte::ModuleKey& key) const noexcept {
    const uint64_t packed = (uint64_t{static_cast<uint32_t>(key.expert)} << 32) ^
                            (uint64_t{static_cast<uint32_t>(key.layer)} << 12) ^
                            (uint64_t{static_cast<uint8_t>(key.module)} << 2) ^
                            static_cast<uint64_t>(key.scope);
    return static_cast<size_t>((packed * 0x9e3779b97f4a7c15ull) >> 16);
  }
};
