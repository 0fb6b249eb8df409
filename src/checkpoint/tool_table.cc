// tool_support.h: what other tools read of DeepSeek-V4 checkpoints. Change a row only with the
// source before you, and the version and the date with it.
#include <array>

#include "checkpoint/tool_support.h"

namespace halfbyte {
namespace {

constexpr std::array kToolVersions = {
    ToolVersion{"halfbyte", "", "", "this program"},
    ToolVersion{"transformers", "5.24.0", "fp8",
                "conversion_mapping.py (deepseek_v4), quantizers/auto.py, quantizer_nvfp4.py and "
                "quantizer_finegrained_fp8.py, utils/quantization_config.py; read 2026-12-01"},
    ToolVersion{"vllm", "0.33.0", "fp4",
                "vllm/models/deepseek_v4/quant_config.py and nvidia/model.py; read 2026-12-01"},
    ToolVersion{"sglang", "0.5.23", "",
                "sglang/srt/models/deepseek_v4.py, layers/quantization/modelopt_quant.py and "
                "configs/model_config.py; read 2026-12-01"},
};

constexpr std::string_view kToBf16 = "--format bf16";
constexpr std::string_view kToNvfp4 = "--format nvfp4";

constexpr std::array kToolRows = {
    // transformers: official names are renamed and experts merged; Hugging Face names are taken as
    // they are, with fused experts.
    ToolRow{"transformers", "prefixed", "", "", "", Loads::kNo,
            "its DeepSeek-V4 class has no language_model. in front of its names", ""},
    ToolRow{"transformers", "huggingface", "per-expert", "", "", Loads::kNo,
            "it does not merge single experts of these names: they stay random", kToBf16},
    ToolRow{"transformers", "", "", "unquantized", "none", Loads::kYes,
            "it reads unquantized weights under these names", ""},
    ToolRow{"transformers", "official", "", "mxfp4", "fp8", Loads::kYes,
            "its fp8 method reads FP8 blocks and, with expert_dtype fp4, MXFP4 experts", ""},
    ToolRow{"transformers", "official", "", "fp8", "fp8", Loads::kYes,
            "its fp8 method reads FP8 blocks", ""},
    ToolRow{"transformers", "", "", "", "modelopt", Loads::kNo, "it knows no quant_method modelopt",
            kToBf16},
    ToolRow{"transformers", "", "", "", "nvfp4", Loads::kNo,
            "its nvfp4 method quantizes while loading and refuses what is quantized already",
            kToBf16},
    ToolRow{"transformers", "", "", "nvfp4-modelopt", "", Loads::kNo,
            "it reads no NVFP4 of ModelOpt's", kToBf16},
    ToolRow{"transformers", "", "", "nvfp4-ct", "compressed-tensors", Loads::kNo,
            "it says nothing but leaves out weight_global_scale of the experts, so that their "
            "weights are too large by that factor",
            kToBf16},

    // vLLM: DeepseekV4ForCausalLM maps official names alone; quant_method fp8 becomes
    // DeepseekV4FP8Config, which chooses the experts' method by expert_dtype and moe_quant_algo.
    ToolRow{"vllm", "huggingface", "", "", "", Loads::kNo,
            "it reads official names only, such as layers.0.ffn.experts.0.w1", ""},
    ToolRow{"vllm", "prefixed", "", "", "", Loads::kNo,
            "it reads official names only, such as layers.0.ffn.experts.0.w1", ""},
    ToolRow{"vllm", "official", "", "mxfp4", "fp8", Loads::kYes,
            "FP8 blocks with MXFP4 experts, as in the official release", ""},
    ToolRow{"vllm", "official", "", "fp8", "fp8", Loads::kYes,
            "FP8 blocks throughout, with expert_dtype fp8", ""},
    ToolRow{"vllm", "official", "", "nvfp4-modelopt", "fp8+nvfp4", Loads::kYes,
            "FP8 blocks with NVFP4 experts of ModelOpt's convention (moe_quant_algo NVFP4)", ""},
    ToolRow{"vllm", "official", "", "nvfp4-ct", "", Loads::kUnknown,
            "only its fp8 method was followed, with experts in ModelOpt's convention", kToNvfp4},

    // SGLang: remap_weight_name_to_dpsk_hf_format takes official names; a config with quant_method
    // fp8 and moe_quant_algo NVFP4 gets the hybrid method.
    ToolRow{"sglang", "huggingface", "", "", "", Loads::kNo,
            "it reads official names only, such as layers.0.ffn.experts.0.w1", ""},
    ToolRow{"sglang", "prefixed", "", "", "", Loads::kNo,
            "it reads official names only, such as layers.0.ffn.experts.0.w1", ""},
    ToolRow{"sglang", "official", "", "mxfp4", "fp8", Loads::kYes,
            "FP8 blocks with MXFP4 experts, as in the official release", ""},
    ToolRow{"sglang", "official", "", "fp8", "fp8", Loads::kYes, "FP8 blocks throughout", ""},
    ToolRow{"sglang", "official", "", "nvfp4-modelopt", "fp8+nvfp4", Loads::kYes,
            "FP8 blocks with NVFP4 experts of ModelOpt's convention (moe_quant_algo NVFP4)", ""},
    ToolRow{"sglang", "official", "", "nvfp4-ct", "", Loads::kUnknown,
            "only experts in ModelOpt's convention were followed", kToNvfp4},
};

}  // namespace

std::span<const ToolVersion> KnownTools() { return kToolVersions; }
std::span<const ToolRow> ToolRows() { return kToolRows; }

}  // namespace halfbyte
