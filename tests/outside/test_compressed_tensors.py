"""What nvfp4-ct announces and stores is what compressed-tensors decompresses, and the other way."""
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.entrypoints.convert import ModelOptNvfp4Converter
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.utils.match import match_name

from checkpoints import config_of, tensors_of, write

PARTS = ("weight", "weight_packed", "weight_scale", "weight_global_scale", "input_global_scale",
         "input_scale")


def modules_of(tensors):
    """Tensors by module and part; others are modules of one part "weight"."""
    modules = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part in PARTS:
            modules.setdefault(module, {})[part] = tensor
    return modules


def scheme_of(module, config):
    schemes = [scheme for scheme in config.config_groups.values()
               if any(match_name(module, target) for target in scheme.targets)]
    assert len(schemes) <= 1, module
    assert not schemes or not any(match_name(module, ignored) for ignored in config.ignore), module
    return schemes[0] if schemes else None


def announced(folder):
    return QuantizationConfig.model_validate(config_of(folder)["quantization_config"])


def decompressed(folder):
    """Every matrix as compressed-tensors reads it from config.json and the tensors."""
    config, values = announced(folder), {}
    for module, parts in modules_of(tensors_of(folder)).items():
        scheme = scheme_of(module, config)
        if scheme is None:
            assert set(parts) == {"weight"}, module  # what nothing is announced for is plain
            values[module] = parts["weight"]
            continue
        compressor = BaseCompressor.get_value_from_registry(scheme.format)
        assert set(compressor.compression_param_names(scheme)) <= set(parts), module
        values[module] = compressor.decompress(parts, scheme)["weight"]
        if scheme.format == "nvfp4-pack-quantized":
            exact = in_fp32(parts, scheme)
            # decompress() computes in bf16: two roundings of 2^-9 and that of the result.
            assert torch.allclose(values[module].float(), exact, rtol=2 ** -7, atol=0), module
            values[module] = exact
    return values


def rounds_to(exact, rounded):
    """Whether bf16 values are these fp32 ones, rounded; near a tie an ulp of fp32 decides."""
    near = [exact.float() * factor for factor in (1 - 2 ** -23, 1, 1 + 2 ** -22)]
    return torch.stack([x.to(rounded.dtype) == rounded for x in near]).any(0).all()


def in_fp32(parts, scheme):
    rows, half = parts["weight_packed"].shape
    codes = unpack_fp4_from_uint8(parts["weight_packed"], rows, 2 * half, dtype=torch.float32)
    return dequantize(codes, parts["weight_scale"].float(), args=scheme.weights,
                      global_scale=parts["weight_global_scale"], dtype=torch.float32)


@pytest.mark.parametrize("source", ["official", "released", "saved"])
def test_compressed_tensors_decodes_what_nvfp4_ct_announces(request, converted, source):
    folder = converted(request.getfixturevalue(source), "nvfp4-ct")
    theirs = decompressed(folder)
    ours = modules_of(tensors_of(converted(folder, "bf16")))
    quantized = 0
    for module, parts in ours.items():
        assert theirs[module].shape == parts["weight"].shape, module
        assert rounds_to(theirs[module], parts["weight"]), module
        quantized += scheme_of(module, announced(folder)) is not None
    assert quantized >= 48


def test_a_config_group_states_shape_and_type_of_fp8_scales(converted, released):
    tensors = tensors_of(converted(released, "nvfp4-ct"))
    scale = tensors["layers.0.attn.wq_b.weight_scale"]
    assert scale.dtype == torch.float32 and scale.shape == (1, 1)
    assert tensors["layers.0.attn.wq_b.weight"].dtype == torch.float8_e4m3fn
    assert not any(name.endswith(".scale") for name in tensors)


def test_their_converter_of_modelopt_files_agrees_with_ours(converted, official):
    modelopt = tensors_of(converted(official, "nvfp4"))
    theirs = ModelOptNvfp4Converter(targets=["re:.*experts\\.\\d+\\..*"]).process(dict(modelopt))
    ours = tensors_of(converted(official, "nvfp4-ct"))
    assert theirs.keys() == ours.keys()
    for name, tensor in ours.items():
        other = theirs[name].reshape(tensor.shape)  # [] and [1] are one number
        assert other.dtype == tensor.dtype, name
        assert torch.equal(other.view(torch.uint8), tensor.view(torch.uint8)), name


def test_what_they_compress_is_read(converted, official, tmp_path):
    """Their quantizer's codes and scales, with a configuration of theirs."""
    folder = converted(official, "nvfp4-ct")
    config, tensors = announced(folder), {}
    for name, tensor in tensors_of(official).items():
        module, _, part = name.rpartition(".")
        scheme = scheme_of(module, config) if part == "weight" else None
        if scheme is None:
            tensors[name] = tensor
            continue
        weight = tensor.float()
        scale = 2688 / weight.abs().max()
        blocks = weight.reshape(weight.shape[0], -1, 16).abs().amax(-1) / 6
        state = {"weight": weight, "weight_global_scale": scale.reshape(1),
                 "weight_scale": (blocks * scale).to(torch.float8_e4m3fn)}
        state["weight_scale"] = state["weight_scale"].float()
        compressor = BaseCompressor.get_value_from_registry(scheme.format)
        for key, value in compressor.compress(state, scheme).items():
            tensors[f"{module}.{key}"] = value
    theirs = write(tmp_path / "theirs", tensors, config_of(official) | {
        "quantization_config": config.model_dump(mode="json")})
    values = decompressed(theirs)
    for module, parts in modules_of(tensors_of(converted(theirs, "bf16"))).items():
        assert rounds_to(values[module], parts["weight"]), module
