"""RMSNorm over the last dimension, with an optional residual addition in front.

    s = x + residual
    y = s / sqrt(mean(s^2) + eps) * weight

The mean of squares in fp32. With a residual the sum is an output too, so that the next block can use it.
"""

from typing import overload

import torch
from torch import Tensor

from .. import _native
from ._norms import check_norm_shapes
from ._tensors import as_rows, contiguous, kernel_dtype, needs_grad, pointer, takes_kernel
from ._twice import add, by_torch_for_graphs, gradients_of


def rms_norm_reference(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(y, s), each in the dtype of x."""
    s = x if residual is None else x + residual
    wide = s if s.dtype == torch.float64 else s.float()
    y = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight
    return y.to(x.dtype), s


def _forward(
    x: Tensor, weight: Tensor | None, eps: float, residual: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, s, rstd), the last [rows]."""
    x, rows, cols = as_rows(x)
    weight, residual = contiguous(weight), contiguous(residual)
    y = torch.empty_like(x)
    s = x if residual is None else torch.empty_like(x)
    rstd = x.new_empty(rows, dtype=torch.float32)
    _native.kernels.rms_norm_forward(
        x.data_ptr(), pointer(residual), pointer(weight), y.data_ptr(), s.data_ptr(), rstd.data_ptr(),
        rows, cols, eps, kernel_dtype(x), kernel_dtype(x if weight is None else weight),
    )  # fmt: skip
    return y, s, rstd


def _by_torch(ctx, dy, dsum):  # type: ignore[no-untyped-def]
    s, weight, _ = ctx.saved_tensors  # s is x, or the other output
    if dy is None:
        return dsum, None, None, dsum

    def function(s: Tensor, weight: Tensor | None) -> Tensor:
        return rms_norm_reference(s, weight, ctx.eps)[0]

    dx, dweight = gradients_of(function, [s, weight], dy, [s.requires_grad, ctx.needs_input_grad[1]])
    dx = add(dx, dsum)
    return dx, dweight, None, dx if ctx.has_residual else None


class RMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps, residual):  # type: ignore[no-untyped-def]
        y, s, rstd = _forward(x, weight, eps, residual)
        ctx.save_for_backward(s, weight, rstd)
        ctx.has_residual, ctx.eps = residual is not None, eps
        ctx.set_materialize_grads(False)
        return y, s if ctx.has_residual else None

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dy, dsum):  # type: ignore[no-untyped-def]
        s, weight, rstd = ctx.saved_tensors
        if dy is None:
            return dsum, None, None, dsum
        dy, rows, cols = as_rows(dy)
        weight, dsum = contiguous(weight), contiguous(dsum)
        dx = torch.empty_like(s)
        dweight = s.new_empty(cols, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        _native.kernels.rms_norm_backward(
            dy.data_ptr(), pointer(dsum), s.data_ptr(), pointer(weight), rstd.data_ptr(), dx.data_ptr(),
            pointer(dweight), rows, cols, kernel_dtype(s), kernel_dtype(s if weight is None else weight),
        )  # fmt: skip
        dweight = None if dweight is None else dweight.to(weight.dtype)
        return dx, dweight, None, dx if ctx.has_residual else None


@overload
def rms_norm(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, residual: None = None
) -> Tensor: ...
@overload
def rms_norm(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, *, residual: Tensor
) -> tuple[Tensor, Tensor]: ...
def rms_norm(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """y, or (y, s) when a residual is given. Tensors the kernel does not know go through the reference."""
    check_norm_shapes("rms_norm", x, residual, weight=weight)
    if not (takes_kernel(x, residual) and takes_kernel(weight)):
        y, s = rms_norm_reference(x, weight, eps, residual)
    elif needs_grad(x, weight, residual):
        y, s = RMSNormFunction.apply(x.contiguous(), weight, eps, residual)
    else:
        y, s, _ = _forward(x, weight, eps, residual)
    return y if residual is None else (y, s)
