"""Arrays in GPU memory, of whatever package: seen without a copy, and made as that package does.

An array is anything with __dlpack__ (PyTorch, CuPy, JAX) or __cuda_array_interface__ (Numba). No
package is imported here: what an array needs of its own is there already.
"""
import re
import sys

from . import _moe

_TYPES = {"<f4": "float32", "<i4": "int32", "<V2": "bfloat16"}  # as the CUDA array interface says


def ordinal(device):
    """The number of the GPU: None for "cpu", 0 for "cuda", 1 for "cuda:1"."""
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", str(device))
    if not match:
        raise ValueError(f"device: {device!r} is neither 'cpu', 'cuda' nor 'cuda:NUMBER'")
    return None if match[0] == "cpu" else int(match[1] or 0)


def view(array):
    """The array as the compiled half takes it; None stays None."""
    if array is None:
        return None
    if hasattr(array, "__dlpack__"):
        # -1: no synchronization, the work goes into the caller's own stream.
        return _moe.DeviceArray.from_dlpack(array.__dlpack__(stream=-1))
    if hasattr(array, "__cuda_array_interface__"):
        interface = array.__cuda_array_interface__
        if interface.get("strides") is not None:
            raise ValueError("arrays on a GPU must be contiguous")
        kind = interface["typestr"]
        return _moe.DeviceArray(interface["data"][0], list(interface["shape"]),
                                _TYPES.get(kind, kind))
    raise ValueError(f"{type(array).__name__} has neither __dlpack__ nor __cuda_array_interface__")


def _package(array):
    """The imported package that the array is of, if it is one that is known here."""
    name = type(array).__module__.partition(".")[0]
    return name, sys.modules.get(name)


def current_stream(array):
    """The stream that the array's package computes in now, as a number; 0: the default stream."""
    name, package = _package(array)
    if name == "torch":
        return package.cuda.current_stream(array.device if array.is_cuda else None).cuda_stream
    if name == "cupy":
        return package.cuda.get_current_stream().ptr
    return getattr(array, "__cuda_array_interface__", {}).get("stream") or 0


def empty(like, shape, dtype=None):
    """A new array beside `like`; dtype: "int32" or "float32", by default that of `like`."""
    name, package = _package(like)
    if name == "torch":
        kind = like.dtype if dtype is None else getattr(package, dtype)
        return package.empty(shape, dtype=kind, device=like.device)
    if name == "cupy":
        return package.empty(shape, dtype=dtype or like.dtype)
    raise ValueError(f"pass the arrays to write: how to make a {type(like).__name__} is not known")
