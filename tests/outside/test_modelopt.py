"""The tensors of nvfp4 are those of ModelOpt, and the other way.

ModelOpt itself has no loader of exported checkpoints for this architecture: its export is read by
inference engines. So its own tensor class decodes what is stored."""
import torch
from modelopt.torch.quantization.qtensor import NVFP4QTensor

from checkpoints import config_of, tensors_of, write


def experts_of(tensors):
    return [name.removesuffix(".weight") for name in tensors
            if ".experts." in name and name.endswith(".weight")]


def decoded(tensors, module):
    codes = tensors[module + ".weight"]
    shape = (codes.shape[0], codes.shape[1] * 2)
    return NVFP4QTensor(shape, torch.float32, codes).dequantize(
        dtype=torch.float32, scale=tensors[module + ".weight_scale"],
        double_scale=tensors[module + ".weight_scale_2"], block_sizes={-1: 16})


def test_modelopt_decodes_what_nvfp4_stores(converted, official):
    folder = converted(official, "nvfp4")
    tensors, ours = tensors_of(folder), tensors_of(converted(folder, "bf16"))
    modules = experts_of(tensors)
    assert len(modules) == 48
    for module in modules:
        assert tensors[module + ".weight_scale_2"].shape == ()
        value = decoded(tensors, module).to(torch.bfloat16)
        assert torch.equal(value, ours[module + ".weight"]), module


def test_what_modelopt_quantizes_is_read(converted, official, tmp_path):
    tensors = tensors_of(official)
    for module in experts_of(tensors):
        packed, scale, scale_2 = NVFP4QTensor.quantize(tensors[module + ".weight"], 16)
        tensors[module + ".weight"] = packed._quantized_data
        tensors[module + ".weight_scale"] = scale
        tensors[module + ".weight_scale_2"] = scale_2
    section = config_of(converted(official, "nvfp4"))["quantization_config"]
    theirs = write(tmp_path / "theirs", tensors,
                   config_of(official) | {"quantization_config": section})
    ours = tensors_of(converted(theirs, "bf16"))
    for module in experts_of(ours):
        value = decoded(tensors, module).to(torch.bfloat16)
        assert torch.equal(value, ours[module + ".weight"]), module
