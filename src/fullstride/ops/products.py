"""The matrix product of linear layers, by whichever library is fastest on this machine for a dtype and a kind of shape.

    product(a, b) = a b,   a: (m, k), b: (k, n), either of them transposed in memory or not

"torch" is torch.mm: MKL in fp32, oneDNN in bf16. "onednn" is oneDNN in fp32, through the op that torch's compiler uses.
"native" is ops/gemm.py. backends/choosing.py measures them, for each of SHAPES: the three products of a layer share a
choice, as they share rows and weight. What it finds unusable is excluded, and is not called from then on, by nobody
here. Nothing is assumed but that torch's own is there. The choice stands in the runtime of the process (runtime.py).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from .. import _native, runtime
from ._tensors import KERNEL_DTYPES
from .gemm import multiply

BACKENDS = ("torch", "onednn", "native")
SHAPES = ("few rows", "many rows", "wide head")
_FEW, _MANY, _HEAD = range(3)
MOST_FEW_ROWS = 256  # up to which reading and packing the weight decides
LEAST_WIDE = 16384  # rows or columns of a weight from which on it is beyond the caches: the heads of language models
_TINY = 8  # rows


def shape_of(rows: int, ins: int, outs: int) -> str:
    """Which of SHAPES the products of a linear layer are."""
    return SHAPES[_shape(rows, ins, outs)]


def _shape(rows: int, ins: int, outs: int) -> int:
    if ins >= LEAST_WIDE or outs >= LEAST_WIDE:
        return _HEAD
    return _FEW if rows <= MOST_FEW_ROWS else _MANY


def backend(dtype: torch.dtype, shape: str = "many rows") -> str:
    """The name of what computes the products of linear layers in this dtype."""
    names = runtime.current().backends.get(dtype)
    return names[SHAPES.index(shape)] if names else "torch"


def set_backend(dtype: torch.dtype, name: str, shape: str | None = None) -> None:
    """Takes `name` for the products of linear layers in this dtype, of this shape or all, in the whole process."""
    if dtype not in KERNEL_DTYPES:
        raise ValueError(f"set_backend: expected torch.float32 or torch.bfloat16, got {dtype}; others are torch's")
    if name not in BACKENDS:
        raise ValueError(f"set_backend: expected one of {', '.join(BACKENDS)}; got {name!r}")
    if name not in backends(dtype):
        raise ValueError(f"set_backend: {name!r} cannot run here in {dtype}; take one of {', '.join(backends(dtype))}")
    if shape not in (None, *SHAPES):
        raise ValueError(f"set_backend: expected shape to be one of {', '.join(SHAPES)}; got {shape!r}")
    names = runtime.current().backends.setdefault(dtype, ["torch"] * len(SHAPES))
    for i, known in enumerate(SHAPES):
        if shape in (None, known):
            names[i] = name


def backends(dtype: torch.dtype) -> tuple[str, ...]:
    """The names that can run here in this dtype."""
    return tuple(name for name in built(dtype) if (dtype, name) not in runtime.current().excluded)


def built(dtype: torch.dtype) -> tuple[str, ...]:
    """The same with those that were excluded."""
    able = {"torch": True, "onednn": _has_onednn(dtype), "native": dtype in KERNEL_DTYPES and _has_gemm()}
    return tuple(name for name in BACKENDS if able[name])


def exclude(reasons: Mapping[tuple[torch.dtype, str], str]) -> None:
    """From now on these backends of these dtypes are not called, and no others but these are excluded."""
    excluded = runtime.current().excluded = dict(reasons)
    for dtype in KERNEL_DTYPES:
        instead = next(iter(backends(dtype)), "torch")
        names = runtime.current().backends.setdefault(dtype, ["torch"] * len(SHAPES))
        names[:] = [instead if (dtype, name) in excluded else name for name in names]


def leave_to_torch(dtype: torch.dtype) -> None:
    """Nobody else multiplies from now on, in any dtype. ValueError where torch must not in this one."""
    process = runtime.current()
    if (dtype, "torch") in process.excluded:
        raise ValueError(f"torch's product in {dtype} cannot be used here: {process.excluded[dtype, 'torch']}")
    process.own_products = False
    for names in process.backends.values():
        names[:] = ["torch"] * len(SHAPES)


def _has_gemm() -> bool:
    return _native.available() and hasattr(_native.kernels, "gemm")


def _has_onednn(dtype: torch.dtype) -> bool:
    """By what torch says of itself: a product here could be the one that ends the process."""
    if dtype not in KERNEL_DTYPES or not torch.backends.mkldnn.is_available():
        return False
    try:
        operation = torch.ops.mkldnn._linear_pointwise is not None
        return operation and (dtype is torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))
    except (AttributeError, RuntimeError):  # no such op in this torch
        return False


def _onednn(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    # Transposed views are taken as they are; a copy first made dx 0.45 of this speed at 128 x 4096 x 4096.
    # Its own ReLU stays unused: it turns NaN into 0, so that a run that has diverged would look healthy.
    return torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")


def product(a: Tensor, b: Tensor, dtype: torch.dtype | None = None, *, sums_rows: bool = False) -> Tensor:
    """a b in this dtype, that of a unless said. Both of the same dtype, fp32 or bf16.

    sums_rows: this is g^T x, the product that sums over the rows of a layer.
    """
    return product_by(name_of(a, b, sums_rows), a, b, dtype)


def product_by(name: str, a: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """product() by the backend of that name."""
    _refuse_excluded(a.dtype, name)
    dtype = dtype or a.dtype
    if name == "native":
        result = a.new_empty(a.shape[0], b.shape[1], dtype=dtype)
        multiply(a, b, result)
        return result
    result = _onednn(a, b, None) if name == "onednn" and a.numel() and b.numel() else torch.mm(a, b)
    return result if result.dtype is dtype else result.to(dtype)


def name_of(a: Tensor, b: Tensor, sums_rows: bool = False) -> str:
    """The backend of product(a, b)."""
    (m, k), n = a.shape, b.shape[1]
    process = runtime.current()
    names = process.backends.get(a.dtype)
    name = names[_shape(k, m, n) if sums_rows else _shape(m, k, n)] if names else "torch"
    # Packing a matrix for so few rows costs more than multiplying it: 304 us against 94 for one row of 1024 x 1024.
    if name == "native" and m < _TINY and a.dtype is torch.float32 and (torch.float32, "torch") not in process.excluded:
        return "torch"
    _refuse_excluded(a.dtype, name)
    return name


def _refuse_excluded(dtype: torch.dtype, name: str) -> None:
    """Only if every backend of the dtype was excluded can one of them be asked for; an error is better than a death."""
    excluded = runtime.current().excluded
    if excluded and (dtype, name) in excluded:
        raise RuntimeError(f"the product in {dtype} by {name!r} is not to be used here: {excluded[dtype, name]}")


def add_product(out: Tensor, a: Tensor, b: Tensor) -> bool:
    """out += a b in one pass, for g^T x. False, and nothing is done, where that cannot be."""
    plain = type(out) is Tensor and out.is_cpu and out.layout is torch.strided
    if not plain or out.dtype is not torch.float32 or out.stride(1) != 1:
        return False
    name = name_of(a, b, sums_rows=True)
    # Who cannot add in place loses more by the pass that adds than a product gains: 8 micro-batches of an MLP in bf16
    # took 1097 ms by torch, 6 % faster in the race, and 1003 by ours (Zen 4, `bench step`, two runs).
    adds, process = name == "torch" and a.dtype is torch.float32, runtime.current()
    may_be_ours = process.own_products and _has_gemm() and (a.dtype, "native") not in process.excluded
    if name == "native" or (not adds and may_be_ours):
        multiply(a, b, out, accumulate=True)
    elif adds:
        out.addmm_(a, b)
    else:
        return False
    return True


def fuses(a: Tensor, b: Tensor, activation: str, bias: Tensor | None) -> bool:
    """Whether biased_product can do it all and give what a backward pass needs."""
    return name_of(a, b) == "native" or (activation == "none" and (bias is None or bias.dtype is a.dtype))


def biased_product(a: Tensor, b: Tensor, bias: Tensor | None, activation: str, pre: Tensor | None = None) -> Tensor:
    """activation(a b + bias), for which fuses() said yes. pre, for "native": where to put a b + bias, too."""
    name = name_of(a, b)
    if name == "native":
        result = a.new_empty(a.shape[0], b.shape[1])
        multiply(a, b, result, bias, activation, pre)
        return result
    if name == "onednn" and a.numel() and b.numel():
        return _onednn(a, b, bias)
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
