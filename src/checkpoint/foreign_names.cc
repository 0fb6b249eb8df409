#include "checkpoint/foreign_names.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace halfbyte {
namespace {

constexpr std::string_view kUnwrap = "save the model itself, not what wraps it";
constexpr std::string_view kOriginal = "use the safetensors checkpoint that it was made of";
constexpr std::string_view kOtherModel =
    "halfbyte runs DeepSeek-V4, official or as Hugging Face transformers names it";

// The first sign that fits counts. As of 2026-12.
constexpr ForeignNames kForeignNames[] = {
    {"^_orig_mod.", "a model wrapped by torch.compile", kUnwrap},
    {"._orig_mod.", "a model wrapped by torch.compile", kUnwrap},
    {"_fsdp_wrapped_module.", "a model wrapped by FSDP", kUnwrap},
    {"^module.", "a model wrapped by DataParallel or DeepSpeed", kUnwrap},
    {".lora_A.", "a LoRA adapter (PEFT)", "merge it into its base model first"},
    {".lora_B.", "a LoRA adapter (PEFT)", "merge it into its base model first"},
    {"^base_model.model.", "a model wrapped by PEFT", "merge the adapter first"},
    {"^blk.", "GGUF (llama.cpp)", kOriginal},
    {".switch_mlp.", "MLX", kOriginal},
    {"^decoder.layers.", "Megatron-Core", "export it to Hugging Face names first"},
    {"^backbone.layers.", "Nemotron-H or Mamba", kOtherModel},
    {".block_sparse_moe.", "Mixtral, MiniMax or Kimi-K3", kOtherModel},
    {".kv_a_proj_with_mqa.", "DeepSeek-V2, DeepSeek-V3 or Kimi-K2", kOtherModel},
    {".mlp.router.", "gpt-oss or Llama 4", kOtherModel},
    {".linear_attn.", "Qwen3-Next", kOtherModel},
    {".self_attn.qkv_proj.", "a model with fused q, k and v", kOtherModel},
    {".self_attn.k_proj.", "Llama, Qwen, GLM and their kin", kOtherModel},
    {"^transformer.h.", "GPT-2 and its kin", kOtherModel},
    {".fused_wqa_wkv.", "vLLM's own state", kOriginal},
};

}  // namespace

const ForeignNames* WhoseName(std::string_view name) {
  for (const ForeignNames& foreign : kForeignNames) {
    const bool fits = foreign.sign.starts_with('^') ? name.starts_with(foreign.sign.substr(1))
                                                    : name.find(foreign.sign) != name.npos;
    if (fits) return &foreign;
  }
  return nullptr;
}

Finding ExplainForeignNames(const std::vector<CheckpointTensor>& unknown, size_t tensors) {
  std::map<const ForeignNames*, std::pair<size_t, std::string>> votes;  // count, example
  for (const CheckpointTensor& tensor : unknown) {
    const ForeignNames* whose = WhoseName(tensor.name());
    auto& [count, example] = votes[whose];
    if (count++ == 0) example = tensor.name();
  }
  // Names that nobody's sign fits (norms, embeddings) say nothing against those that one does.
  if (votes.size() > 1) votes.erase(nullptr);
  const auto most = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) {
    return a.second.first < b.second.first;
  });
  std::string text =
      fmt::format("{} of {} tensor names are known; ", tensors - unknown.size(), tensors);
  if (most->first == nullptr) {
    text += fmt::format("names such as {} are in no table; {}", most->second.second, kOtherModel);
  } else {
    text += fmt::format("{} others, such as {}, look like {}: {}", most->second.first,
                        most->second.second, most->first->whose, most->first->remedy);
  }
  return {Severity::kError, "names", std::move(text)};
}

bool HoldsPackedExperts(const CheckpointTensor& tensor) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t found = tensor.name().find(kExperts);
  if (found == std::string::npos) return false;
  const std::string_view part = std::string_view(tensor.name()).substr(found + kExperts.size());
  if (part.empty() || part.starts_with('.') || std::isdigit(static_cast<unsigned char>(part[0]))) {
    return false;
  }
  return !IsFloat(tensor.info->dtype) || part.find("_scale") != part.npos;
}

Finding ExplainPackedExperts(const CheckpointTensor& first) {
  return {Severity::kError, first.name(),
          fmt::format("holds all experts of a layer together and quantized ({} {}); halfbyte reads "
                      "quantized experts one by one (experts.0.w1, experts.0.gate_proj) and joined "
                      "ones unquantized: save the model in one of these ways",
                      first.info->dtype_name(), ShapeString(first.info->shape))};
}

}  // namespace halfbyte
