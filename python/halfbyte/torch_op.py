"""The layer as a PyTorch operator, for tensors on its device and without a gradient:

    experts = halfbyte.torch_op.register(layer)
    out = torch.ops.halfbyte.moe(hidden, topk_ids, topk_weights, experts)

hidden and out are float32 or bfloat16, on a GPU bfloat16. Importing this module needs torch.
"""
import torch

_layers = []


def register(layer):
    """The number that stands for a MoeLayer in calls of the operator; the layer stays loaded."""
    _layers.append(layer)
    return len(_layers) - 1


@torch.library.custom_op("halfbyte::moe", mutates_args=(), device_types=("cpu", "cuda"))
def moe(hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor,
        layer: int) -> torch.Tensor:
    out = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
    ids = topk_ids.to(torch.int32).contiguous()
    weights = topk_weights.to(torch.float32).contiguous()
    return _layers[layer](hidden.contiguous(), ids, weights, out)


@moe.register_fake
def _(hidden, topk_ids, topk_weights, layer):
    return torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
