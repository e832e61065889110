"""The product of two matrices, with what usually follows it done while the result is still in the cache.

    c = activation(a b + bias),   or   c = c + a b  when accumulating

a: (m, k), b: (k, n), fp32 or bf16 and of any strides: transposed views need no copy. Sums in fp32, rounded once.
"""

import ctypes

import torch
from torch import Tensor

from .. import _native
from ._activations import ACTIVATIONS, activate, check_activation
from ._tensors import contiguous, kernel_dtype, mark_written, pointer, takes_kernel


def gemm_reference(
    a: Tensor, b: Tensor, bias: Tensor | None = None, activation: str = "none", dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """(c, pre), pre being a b + bias; both in `dtype`, that of a unless said."""
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    z = a.to(wide) @ b.to(wide)
    if bias is not None:
        z = z + bias
    return activate(z, activation).to(dtype or a.dtype), z.to(dtype or a.dtype)


def gemm(
    a: Tensor,
    b: Tensor,
    out: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    activation: str = "none",
    pre: Tensor | None = None,
    accumulate: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """activation(a b + bias), written to `out` if given; a b is added to it if accumulating. Not differentiable.

    pre: a tensor like the result that receives a b + bias. dtype: of the result, that of a unless said.
    """
    _check(a, b, out, bias, activation, pre, accumulate)
    m, n = a.shape[0], b.shape[1]
    if out is None:
        out = a.new_empty(m, n, dtype=dtype or a.dtype)
    same_layout = pre is None or (pre.dtype is out.dtype and pre.stride(0) == out.stride(0))
    if not (takes_kernel(a) and takes_kernel(b) and takes_kernel(bias) and takes_kernel(out, pre) and same_layout):
        return _by_reference(a, b, out, bias, activation, pre, accumulate)
    multiply(a, b, out, bias, activation, pre, accumulate)
    mark_written([out] if pre is None else [out, pre])
    return out


def multiply(
    a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None = None, activation: str = "none", pre: Tensor | None = None,
    accumulate: bool = False, squares: ctypes.c_double | None = None,
) -> None:  # fmt: skip
    """gemm() for tensors that were checked already, to be written where autograd need not know.

    squares: receives the sum of the squares of what was written to `out`.
    """
    bias = contiguous(bias)
    (m, k), n = a.shape, b.shape[1]
    _native.kernels.gemm(
        a.data_ptr(), b.data_ptr(), pointer(bias), out.data_ptr(), pointer(pre),
        None if squares is None else ctypes.addressof(squares), m, n, k, *a.stride(), *b.stride(), out.stride(0),
        accumulate, ACTIVATIONS[activation], kernel_dtype(a), kernel_dtype(b), kernel_dtype(out),
        0 if bias is None else kernel_dtype(bias),
    )  # fmt: skip


def _by_reference(
    a: Tensor, b: Tensor, out: Tensor, bias: Tensor | None, activation: str, pre: Tensor | None, accumulate: bool
) -> Tensor:
    c, z = gemm_reference(a, b, bias, activation, torch.float64 if out.dtype == torch.float64 else torch.float32)
    out.copy_(out + c if accumulate else c)
    if pre is not None:
        pre.copy_(z)
    return out


def _check(
    a: Tensor, b: Tensor, out: Tensor | None, bias: Tensor | None, activation: str, pre: Tensor | None, accumulate: bool
) -> None:
    check_activation("gemm", activation, ACTIVATIONS)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"gemm: expected a of (m, k) and b of (k, n), got {tuple(a.shape)} and {tuple(b.shape)}")
    shape = (a.shape[0], b.shape[1])
    for name, tensor in (("out", out), ("pre", pre)):
        if tensor is not None and (tensor.shape != shape or (tensor.numel() and tensor.stride(1) != 1)):
            raise ValueError(
                f"gemm: expected {name} of shape {shape} with dense rows, got {tuple(tensor.shape)}"
                f" with strides {tensor.stride()}"
            )
    if bias is not None and bias.shape != shape[1:]:
        raise ValueError(f"gemm: expected bias of shape {shape[1:]}, the columns of b, got {tuple(bias.shape)}")
    if accumulate and (out is None or bias is not None or activation != "none" or pre is not None):
        raise ValueError("gemm: accumulate needs out, and takes no bias, activation or pre; leave them out")
