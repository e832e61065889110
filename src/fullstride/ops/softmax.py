"""Softmax over the last dimension, with a factor on its input and an optional causal limit.

    y = softmax(scale * x)
    dx = scale * y * (dy - sum(dy * y))

With causal_offset = o, row q of the last but one dimension sees columns 0 .. q + o; the others are 0 in y and dx, and
x is not read there. Sums in fp32. A row of -infinity alone gives NaN, as in torch.
"""

import torch
from torch import Tensor

from .. import _native
from ._tensors import as_rows, kernel_dtype, needs_grad, takes_kernel
from ._twice import by_torch_for_graphs


def softmax_reference(x: Tensor, scale: float = 1.0, causal_offset: int | None = None) -> Tensor:
    """In the dtype of x."""
    z = (x if x.dtype == torch.float64 else x.float()) * scale
    if causal_offset is not None:
        query, key = torch.arange(x.shape[-2], device=x.device), torch.arange(x.shape[-1], device=x.device)
        z = z.masked_fill(key > query.unsqueeze(-1) + causal_offset, -torch.inf)
    return torch.softmax(z, dim=-1).to(x.dtype)


def _forward(x: Tensor, scale: float, causal_offset: int | None) -> Tensor:
    x, rows, cols = as_rows(x)
    y = torch.empty_like(x)
    block_rows, offset = _limit(x, causal_offset)
    _native.kernels.softmax_forward(
        x.data_ptr(), y.data_ptr(), rows, cols, scale, block_rows, offset, kernel_dtype(x)
    )  # fmt: skip
    return y


def _limit(x: Tensor, causal_offset: int | None) -> tuple[int, int]:
    """The causal limit in the words of the kernel: the rows of a block (0: no limit) and the offset."""
    return (0, 0) if causal_offset is None else (x.shape[-2], causal_offset)


def _by_torch(ctx, dy):  # type: ignore[no-untyped-def]
    """What the causal limit hides is 0 in y, and so in dx."""
    (y,) = ctx.saved_tensors
    wide, dwide = y.float(), dy.float()
    dx = ctx.scale * wide * (dwide - (dwide * wide).sum(dim=-1, keepdim=True))
    return dx.to(y.dtype), None, None


class SoftmaxFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, causal_offset):  # type: ignore[no-untyped-def]
        y = _forward(x, scale, causal_offset)
        ctx.save_for_backward(y)
        ctx.scale, ctx.causal_offset = scale, causal_offset
        return y

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        (y,) = ctx.saved_tensors
        dy, rows, cols = as_rows(dy)
        dx = torch.empty_like(y)
        block_rows, offset = _limit(y, ctx.causal_offset)
        _native.kernels.softmax_backward(
            dy.data_ptr(), y.data_ptr(), dx.data_ptr(), rows, cols, ctx.scale, block_rows, offset, kernel_dtype(y)
        )  # fmt: skip
        return dx, None, None


def softmax(x: Tensor, scale: float = 1.0, causal_offset: int | None = None) -> Tensor:
    """softmax(scale * x); with causal_offset only over columns 0 .. row + causal_offset, as attention needs it."""
    if causal_offset is None:
        if x.dim() < 1:
            raise ValueError(f"softmax: expected x [..., cols], got {tuple(x.shape)}")
    elif x.dim() < 2:
        raise ValueError(f"softmax: expected x [..., rows, cols] with causal_offset, got {tuple(x.shape)}")
    elif causal_offset < 0:
        raise ValueError(f"softmax: expected causal_offset >= 0, or the first row sees nothing, got {causal_offset}")
    if scale < 0 or not takes_kernel(x):
        return softmax_reference(x, scale, causal_offset)
    if needs_grad(x):
        return SoftmaxFunction.apply(x, scale, causal_offset)
    return _forward(x, scale, causal_offset)
