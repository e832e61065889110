"""The matrix product of linear layers, by whichever library is fastest on this machine for a dtype.

    product(a, b) = a b,   a: (m, k), b: (k, n), either of them transposed in memory or not

"torch" is torch.mm: MKL in fp32, oneDNN in bf16. "onednn" is oneDNN in fp32, through the op that torch's compiler uses.
"native" is ops/gemm.py. machine/products.py measures them; nothing is assumed here but that torch's own is there.
"""

from functools import cache

import torch
from torch import Tensor

from .. import _native
from ._tensors import KERNEL_DTYPES
from .gemm import multiply

BACKENDS = ("torch", "onednn", "native")
_FEW_ROWS = 8
_backends = dict.fromkeys(KERNEL_DTYPES, "torch")


def backend(dtype: torch.dtype) -> str:
    """The name of what computes the products of linear layers in this dtype."""
    return _backends.get(dtype, "torch")


def set_backend(dtype: torch.dtype, name: str) -> None:
    """Takes `name` for the products of linear layers in this dtype from now on, in the whole process."""
    if dtype not in KERNEL_DTYPES:
        raise ValueError(f"set_backend: expected torch.float32 or torch.bfloat16, got {dtype}; others are torch's")
    if name not in BACKENDS:
        raise ValueError(f"set_backend: expected one of {', '.join(BACKENDS)}; got {name!r}")
    if name not in backends(dtype):
        raise ValueError(f"set_backend: {name!r} cannot run here in {dtype}; take one of {', '.join(backends(dtype))}")
    _backends[dtype] = name


def backends(dtype: torch.dtype) -> tuple[str, ...]:
    """The names that can run here in this dtype."""
    able = {"torch": True, "onednn": _has_onednn(dtype), "native": dtype in KERNEL_DTYPES and _has_gemm()}
    return tuple(name for name in BACKENDS if able[name])


def _has_gemm() -> bool:
    return _native.available() and hasattr(_native.kernels, "gemm")


@cache
def _has_onednn(dtype: torch.dtype) -> bool:
    if dtype not in KERNEL_DTYPES or not torch.backends.mkldnn.is_available():
        return False
    try:
        _onednn(torch.ones(2, 2, dtype=dtype), torch.ones(2, 2, dtype=dtype), None)
    except (AttributeError, RuntimeError):  # no such op in this torch; no bf16 on a CPU without its instructions
        return False
    return True


def _onednn(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    # Transposed views are taken as they are; a copy first made dx 0.45 of this speed at 128 x 4096 x 4096.
    # Its own ReLU stays unused: it turns NaN into 0, so that a run that has diverged would look healthy.
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")


def product(a: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """a b in this dtype, that of a unless said. Both of the same dtype, fp32 or bf16."""
    return product_by(_name(a), a, b, dtype)


def product_by(name: str, a: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """product() by the backend of that name."""
    dtype = dtype or a.dtype
    if name == "native":
        result = a.new_empty(a.shape[0], b.shape[1], dtype=dtype)
        multiply(a, b, result)
        return result
    result = _onednn(a, b, None) if name == "onednn" and a.numel() and b.numel() else torch.mm(a, b)
    return result if result.dtype is dtype else result.to(dtype)


def _name(a: Tensor) -> str:
    """The backend that multiplies a by a matrix."""
    name = _backends[a.dtype]
    # Packing a matrix for so few rows costs more than multiplying it: 304 us against 94 for one row of 1024 x 1024.
    return "torch" if name == "native" and a.shape[0] < _FEW_ROWS and a.dtype is torch.float32 else name


def add_product(out: Tensor, a: Tensor, b: Tensor) -> bool:
    """out += a b in one pass. False, and nothing is done, where that cannot be."""
    plain = type(out) is Tensor and out.is_cpu and out.layout is torch.strided
    if not plain or out.dtype is not torch.float32 or out.stride(1) != 1:
        return False
    name = _backends[a.dtype]
    if name == "native":
        multiply(a, b, out, accumulate=True)
    elif name == "torch" and a.dtype is torch.float32:
        out.addmm_(a, b)
    else:
        return False
    return True


def fuses(a: Tensor, activation: str, bias: Tensor | None) -> bool:
    """Whether biased_product can do it all and give what a backward pass needs."""
    return _name(a) == "native" or (activation == "none" and (bias is None or bias.dtype is a.dtype))


def biased_product(a: Tensor, b: Tensor, bias: Tensor | None, activation: str, pre: Tensor | None = None) -> Tensor:
    """activation(a b + bias), for which fuses() said yes. pre, for "native": where to put a b + bias, too."""
    name = _name(a)
    if name == "native":
        result = a.new_empty(a.shape[0], b.shape[1])
        multiply(a, b, result, bias, activation, pre)
        return result
    if name == "onednn" and a.numel() and b.numel():
        return _onednn(a, b, bias)
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
