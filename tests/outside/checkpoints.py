"""Small DeepSeek-V4 checkpoints: as transformers saves them, and as DeepSeek releases them."""
import json
import re

import torch
import transformers
from safetensors.torch import load_file, save_file


def small_model(seed=0):
    """A model of every kind of layer, with random weights, in bf16."""
    torch.manual_seed(seed)
    config = transformers.DeepseekV4Config(
        vocab_size=96, hidden_size=128, head_dim=32, num_attention_heads=4, q_lora_rank=64,
        o_lora_rank=64, o_groups=2, partial_rotary_factor=0.25, num_hidden_layers=4,
        layer_types=["sliding_attention", "sliding_attention", "compressed_sparse_attention",
                     "heavily_compressed_attention"],
        mlp_layer_types=["hash_moe", "moe", "moe", "moe"], n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=64, index_n_heads=4, index_head_dim=16,
        index_topk=8, sliding_window=8, max_position_embeddings=512, num_nextn_predict_layers=0,
        initializer_range=0.2)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    state = model.state_dict()
    for name, tensor in state.items():
        if name.endswith("tid2eid"):
            ids = torch.arange(tensor.numel()).reshape(tensor.shape)
            tensor.copy_((ids + ids // 2) % config.n_routed_experts)
        elif name.endswith(("sinks", "base", "position_bias", "e_score_correction_bias")):
            tensor.normal_(0, 0.1)
    return model.eval()


def tensors_of(folder):
    """All tensors of a checkpoint by name."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def write(folder, tensors, config):
    folder.mkdir(parents=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def with_official_names(saved, folder):
    """A checkpoint that transformers saved by default -> the names of DeepSeek's releases."""
    tensors = {}
    for name, tensor in tensors_of(saved).items():
        name = name.removeprefix("model.").replace("embed_tokens", "embed")
        name = re.sub(r"^hc_head\.hc_", "hc_head_", name)
        tensors[name.replace(".attn.norm.", ".attn.kv_norm.")] = tensor
    return write(folder, tensors, config_of(saved))


def as_released(official, folder):
    """Official names -> MXFP4 experts, FP8 attention and shared experts, scales in E8M0."""
    random = torch.Generator().manual_seed(1)
    tensors = {}
    for name, tensor in tensors_of(official).items():
        if ".experts." in name:
            rows, columns = tensor.shape
            codes = torch.randint(0, 256, (rows, columns // 2), generator=random, dtype=torch.uint8)
            scales = torch.randint(118, 124, (rows, columns // 32), generator=random,
                                   dtype=torch.uint8)
            tensors[name] = codes.view(torch.int8)
            tensors[name.replace(".weight", ".scale")] = scales.view(torch.float8_e8m0fnu)
        elif re.search(r"\.attn\.w|shared_experts|indexer\.wq_b", name):
            blocks = [-(-size // 128) for size in tensor.shape]
            scales = torch.randint(118, 124, blocks, generator=random, dtype=torch.uint8)
            tensors[name] = torch.randn(tensor.shape, generator=random).to(torch.float8_e4m3fn)
            tensors[name.replace(".weight", ".scale")] = scales.view(torch.float8_e8m0fnu)
        else:
            tensors[name] = tensor
    config = config_of(official) | {"expert_dtype": "fp4", "quantization_config": {
        "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
        "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}}
    return write(folder, tensors, config)
