"""One 4-bit mixture-of-experts layer on the CPU or on an NVIDIA GPU of the Hopper family.

    layer = halfbyte.MoeLayer.open("models/tiny-v4-nvfp4", 0)
    ids, weights = layer.route(logits, token_ids)
    out = layer(hidden, ids, weights)

A token's result depends on its own row and choices only. Several threads may call one layer at the
same time. Arrays are numpy's or anything with DLPack on the CPU; halfbyte.torch_op has a PyTorch
operator.

With device="cuda" arrays are those of PyTorch, CuPy or anything else with DLPack or the CUDA array
interface, bfloat16 rows, and never copied. A call puts its work into their current stream and
returns. It can be captured (torch.cuda.graph); replays work in the layer's memory, so keep them in
one stream with each other and with calls.
"""
import os

import numpy as np

from . import _gpu, _moe

__all__ = ["MoeLayer"]

_SCALES = {"auto": 0, "static": 1, "per_token": 2}
_SCORES = {"sqrt_softplus": 0, "sigmoid": 1, "softmax": 2, "identity": 3}
_WEIGHTS = {"divide_by_sum": 0, "keep_scores": 1, "softmax_of_chosen": 2}


def _call(function, *arguments):
    """function of the arrays in `arguments`, each (name, array, dtypes it may have, dimensions). In
    place of the signatures that the extension lists, a sentence about the one that does not fit."""
    try:
        return function(*(array for _, array, _, _ in arguments))
    except TypeError:
        fits = [str(getattr(array, "dtype", "")).removeprefix("torch.") in dtypes
                and len(array.shape) == dimensions for _, array, dtypes, dimensions in arguments]
        name, array, dtypes, dimensions = arguments[fits.index(False) if False in fits else -1]
    given = (f"{array.dtype} with {len(array.shape)} dimensions" if hasattr(array, "dtype")
             else f"a {type(array).__name__}")
    raise TypeError(f"{name} must be an array of {' or '.join(dtypes)} with {dimensions} dimensions "
                    f"in the CPU's memory, without gaps, not {given}")


def _number(names, name, argument):
    if name not in names:
        raise ValueError(f"{argument}: {name!r} is none of {list(names)}")
    return names[name]


def _options(arithmetic="w4a16", threads=0, activation_scales="auto", activation_scales_file=None,
             headroom=5, ranks=1, rank=0, device="cpu"):
    if activation_scales_file is not None:
        activation_scales_file = os.fspath(activation_scales_file)
    return _moe.Options(arithmetic, threads,
                        _number(_SCALES, activation_scales, "activation_scales"),
                        activation_scales_file, headroom, ranks, rank, _gpu.ordinal(device))


def _router(score="sqrt_softplus", weights="divide_by_sum", scaling_factor=1.0, bias=None, groups=0,
            chosen_groups=0):
    def router(bias):
        return _moe.Router(_number(_SCORES, score, "score"), _number(_WEIGHTS, weights, "weights"),
                           scaling_factor, bias, groups, chosen_groups)

    return router(None) if bias is None else _call(router, ("bias", bias, ["float32"], 1))


def _experts(name, codes, scales, global_scales):
    return _call(_moe.Nvfp4Experts, (f"{name} codes", codes, ["uint8"], 3),
                 (f"{name} scales", scales, ["uint8"], 3),
                 (f"{name} global scales", global_scales, ["float32"], 1))


class MoeLayer:
    """The routed experts of one layer. Options, by keyword, for both ways to make one:

    arithmetic         "w4a16" (default), "w4a4" (activations quantized to NVFP4), "w4a8" (to int8),
                       "ref" (fp64 sums)
    threads            per call; 0: the processors there are
    activation_scales  "auto", "static", "per_token"; w4a4 only
    activation_scales_file
                       static scales that `halfbyte calibrate` measured on the model; open() only
    headroom           0..6: static scales are multiplied by 2**headroom
    ranks, rank        expert parallelism: this process's share, global ids, partial sums
    max_tokens         taken through the layer at once; more are done in pieces
    device             "cpu", "cuda" or "cuda:1": w4a16 and w4a4 of 4-bit weights, which come from
                       the host's memory in any case
    """

    def __init__(self, layer):
        self._layer = layer
        self.info = layer.info()  # experts, hidden, intermediate, top_k, weight_bytes, ...
        self._on_gpu = self.info["gpu"] is not None

    @classmethod
    def open(cls, directory, layer, *, max_tokens=512, **options):
        """Layer number `layer` of the checkpoint in `directory`."""
        return cls(_moe.open_layer(os.fspath(directory), layer, _options(**options), max_tokens))

    @classmethod
    def from_nvfp4(cls, gate, up, down, *, top_k, experts=None, swiglu_limit=0.0, router=None,
                   max_tokens=512, **options):
        """A layer from NVFP4 tensors: gate, up and down are each (codes, scales, global_scales) of
        uint8 [experts, rows, columns // 2], uint8 (E4M3) [experts, rows, columns // 16] and float32
        [experts]. The arrays are borrowed: do not change them. `experts`: of the whole layer, if
        these are one rank's. `router`: how route() chooses, as a dict:

        score          "sqrt_softplus" (default), "sigmoid", "softmax", "identity"
        weights        "divide_by_sum" (default), "keep_scores", "softmax_of_chosen"
        scaling_factor of the weights
        bias           float32 [experts], decides the selection only
        groups, chosen_groups
                       the experts in equal groups, of which the best take part (DeepSeek-V3: 8, 4)
        """
        count = len(gate[0]) if experts is None else experts
        gate, up, down = (_experts("gate", *gate), _experts("up", *up), _experts("down", *down))
        return cls(_moe.layer_from_nvfp4(gate, up, down, count, top_k, swiglu_limit,
                                         _router(**(router or {})), _options(**options),
                                         max_tokens))

    def route(self, logits, token_ids=None, ids=None, weights=None, stream=None):
        """float32 logits [tokens, experts] -> ids int32 and weights float32, [tokens, top_k], new
        ones or those given. Layers with info["routes_by_token_id"] need int32 token_ids [tokens].
        stream: on a GPU, the number of another stream than the arrays' current one."""
        shape = (len(logits), self.info["top_k"])
        if self._on_gpu:
            ids = _gpu.empty(logits, shape, "int32") if ids is None else ids
            weights = _gpu.empty(logits, shape, "float32") if weights is None else weights
            stream = _gpu.current_stream(logits) if stream is None else stream
            self._layer.route_in_stream(*map(_gpu.view, (logits, token_ids, ids, weights)), stream)
            return ids, weights
        ids = np.empty(shape, np.int32) if ids is None else ids
        weights = np.empty(shape, np.float32) if weights is None else weights
        given = [("logits", logits, ["float32"], 2), ("ids", ids, ["int32"], 2),
                 ("weights", weights, ["float32"], 2)]
        if token_ids is None:
            _call(lambda *arrays: self._layer.route(arrays[0], None, *arrays[1:]), *given)
        else:
            given.insert(1, ("token_ids", token_ids, ["int32"], 1))
            _call(self._layer.route, *given)
        return ids, weights

    def __call__(self, hidden, topk_ids, topk_weights, out=None, stream=None):
        """hidden [tokens, hidden], float32 or bfloat16; ids int32 and weights float32 [tokens,
        choices]; ids outside of 0..experts-1 mean no expert. Returns out, by default a new float32
        numpy array [tokens, hidden]; on a GPU one like hidden. stream: see route."""
        if self._on_gpu:
            out = _gpu.empty(hidden, tuple(hidden.shape)) if out is None else out
            stream = _gpu.current_stream(hidden) if stream is None else stream
            self._layer.run_in_stream(*map(_gpu.view, (hidden, topk_ids, topk_weights, out)),
                                      stream)
            return out
        if out is None:
            out = np.empty(np.shape(hidden), np.float32)
        _call(self._layer.run, ("hidden", hidden, ["float32", "bfloat16"], 2),
              ("topk_ids", topk_ids, ["int32"], 2), ("topk_weights", topk_weights, ["float32"], 2),
              ("out", out, ["float32", "bfloat16"], 2))
        return out

    def counters(self):
        """What the activation quantizers and the router saw, over all calls."""
        return self._layer.counters()
