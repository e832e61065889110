"""LayerNorm over the last dimension, with an optional residual addition in front.

    s = x + residual
    y = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias

Statistics in fp32. With a residual the sum is an output too, so that the next block can use it.
"""

from typing import overload

import torch
from torch import Tensor

from .. import _native
from ._norms import check_norm_shapes
from ._tensors import as_rows, contiguous, kernel_dtype, needs_grad, pointer, takes_kernel
from ._twice import add, by_torch_for_graphs, gradients_of


def layer_norm_reference(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(y, s), each in the dtype of x."""
    s = x if residual is None else x + residual
    wide = s if s.dtype == torch.float64 else s.float()
    centred = wide - wide.mean(dim=-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.to(x.dtype), s


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, residual: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, s, statistics), the last [2, rows]: mean and 1 / sqrt(var + eps)."""
    x, rows, cols = as_rows(x)
    weight, bias, residual = contiguous(weight), contiguous(bias), contiguous(residual)
    y = torch.empty_like(x)
    s = x if residual is None else torch.empty_like(x)
    statistics = x.new_empty(2, rows, dtype=torch.float32)
    mean = statistics.data_ptr()
    weight_dtype = weight if weight is not None else bias if bias is not None else x
    _native.kernels.layer_norm_forward(
        x.data_ptr(), pointer(residual), pointer(weight), pointer(bias), y.data_ptr(), s.data_ptr(),
        mean, mean + 4 * rows, rows, cols, eps, kernel_dtype(x), kernel_dtype(weight_dtype),
    )  # fmt: skip
    return y, s, statistics


def _by_torch(ctx, dy, dsum):  # type: ignore[no-untyped-def]
    s, weight, _ = ctx.saved_tensors  # s is x, or the other output
    if dy is None:
        return dsum, None, None, None, dsum
    _, wants_dweight, wants_dbias, _, _ = ctx.needs_input_grad

    def function(s: Tensor, weight: Tensor | None) -> Tensor:
        return layer_norm_reference(s, weight, None, ctx.eps)[0]

    dx, dweight = gradients_of(function, [s, weight], dy, [s.requires_grad, wants_dweight])
    dx = add(dx, dsum)
    dbias = dy.flatten(0, -2).sum(0, dtype=torch.float32).to(ctx.bias_dtype) if wants_dbias else None
    return dx, dweight, dbias, None, dx if ctx.has_residual else None


class LayerNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps, residual):  # type: ignore[no-untyped-def]
        y, s, statistics = _forward(x, weight, bias, eps, residual)
        ctx.save_for_backward(s, weight, statistics)
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.has_residual, ctx.eps = residual is not None, eps
        ctx.set_materialize_grads(False)
        return y, s if ctx.has_residual else None

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dy, dsum):  # type: ignore[no-untyped-def]
        s, weight, statistics = ctx.saved_tensors
        if dy is None:
            return dsum, None, None, None, dsum
        dy, rows, cols = as_rows(dy)
        weight, dsum = contiguous(weight), contiguous(dsum)
        mean = statistics.data_ptr()
        dx = torch.empty_like(s)
        dweight = dbias = None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            dweight, dbias = s.new_empty(2, cols, dtype=torch.float32).unbind()
        _native.kernels.layer_norm_backward(
            dy.data_ptr(), pointer(dsum), s.data_ptr(), pointer(weight), mean, mean + 4 * rows,
            dx.data_ptr(), pointer(dweight), pointer(dbias), rows, cols, kernel_dtype(s),
            0 if weight is None else kernel_dtype(weight),
        )  # fmt: skip
        return (
            dx,
            dweight.to(weight.dtype) if dweight is not None and ctx.needs_input_grad[1] else None,
            dbias.to(ctx.bias_dtype) if dbias is not None and ctx.needs_input_grad[2] else None,
            None,
            dx if ctx.has_residual else None,
        )


@overload
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, residual: None = None
) -> Tensor: ...
@overload
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *, residual: Tensor
) -> tuple[Tensor, Tensor]: ...
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """y, or (y, s) when a residual is given. Tensors the kernel does not know go through the reference."""
    check_norm_shapes("layer_norm", x, residual, weight=weight, bias=bias)
    if not (takes_kernel(x, residual) and takes_kernel(weight, bias)):
        y, s = layer_norm_reference(x, weight, bias, eps, residual)
    elif needs_grad(x, weight, bias, residual):
        y, s = LayerNormFunction.apply(x.contiguous(), weight, bias, eps, residual)
    else:
        y, s, _ = _forward(x, weight, bias, eps, residual)
    return y if residual is None else (y, s)
