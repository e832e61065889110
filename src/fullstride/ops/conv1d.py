"""A convolution in time with its bias and activation.

    y[b, n, t] = activation(sum over c, j of x[b, c, t + j - left] W[n, c, j] + b[n]),   x being 0 outside of itself

x: (batch, C, T), W: (N, C, k), b: (N). Of x with its channels innermost in memory, as Transformers call it,
conv(x.transpose(1, 2)).transpose(1, 2), it is one product U W over a view U of the padded x (_unfolding.py), and so
are both gradients, with g = dy * activation'(...):

    dW = g^T U,   dx = unfold(g) W flipped in time

Of three taps in fp32, the same with fewer multiplications (_winograd.py), where there is enough to multiply.
y and dx have the layout of x: chains of layers with innermost channels never transpose. Stride, dilation and groups
of 1; other convolutions are torch's. Kept for backward: x if W wants its gradient, W if x does, and what the activation
needs: nothing, y for ReLU, what it takes for the others. Sums are fp32, also where weights are bf16. A NaN in x may
reach more taps of dW than the sum has it in: windows between two sequences are multiplied, too, by zeros.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _native
from . import _winograd
from ._activations import ACTIVATIONS, activate, check_activation
from ._kept_gradients import empty_gradient
from ._leaf_gradients import SMALL, deliver, parameter_of
from ._tensors import KERNEL_DTYPES, as_own, kernel_dtype, needs_grad, takes_kernel
from ._twice import add, by_torch_for_graphs, gradients_of, placed, stand_in
from ._unfolding import Unfolding
from .gemm import multiply
from .linear import _through_activation
from .products import backends, built

LEAST_WORK = 1 << 20  # multiplications a call from which on it pays: below, calls of Python cost more than is won
_LEAST_COLUMNS = 12  # of the windows; with 9 taps of one channel torch is twice as fast, with 3 of four it is slower


def conv1d_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, padding: int | str = 0, activation: str = "none"
) -> Tensor:
    """y in the dtype of F.conv1d, which is that of autocast when it is on."""
    bias = None if bias is None else bias.to(weight.dtype)
    return activate(F.conv1d(x, weight, bias, padding=padding), activation)


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, shape: Unfolding, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(y, z, rows), y and z (batch, time_out, N), from x: (batch, time, C). rows: x padded, if that was needed.

    keep: z, which the activation takes, is wanted if it bends."""
    filters, keep = weight.shape[0], keep and activation not in ("none", "relu")
    if _winograd.pays(shape, weight.shape, x.dtype, weight.dtype):
        taken = _winograd.forward(x, weight, bias, shape)
        return _activated(taken, activation, in_place=not keep), taken if keep else None, None
    rows = shape.padded(x, weight.dtype)
    columns = weight.permute(2, 1, 0).reshape(-1, filters) if shape.is_plain else _taps_first(weight).t()
    out, y = shape.empty(rows, filters)
    pre, z = shape.empty(rows, filters) if keep else (None, None)
    multiply(shape.windows(rows), columns, out, bias, activation, pre)
    return y.contiguous(), None if z is None else z.contiguous(), rows


def _activated(z: Tensor, activation: str, in_place: bool) -> Tensor:
    if activation == "none":
        return z
    y, dtype = z if in_place else torch.empty_like(z), kernel_dtype(z)
    rows, cols = z.numel() // z.shape[2], z.shape[2]
    _native.kernels.bias_act_forward(
        z.data_ptr(), None, y.data_ptr(), rows, cols, ACTIVATIONS[activation], dtype, dtype
    )
    return y


def _taps_first(weight: Tensor) -> Tensor:
    """(N, k * C)"""
    return weight.transpose(1, 2).reshape(weight.shape[0], -1)


def _input_grad(rows: Tensor, weight: Tensor, dtype: torch.dtype, shape: Unfolding) -> Tensor:
    """dx (batch, time, C) from the padded gradient, whose unfolding is `shape`."""
    channels = weight.shape[1]
    flipped = (weight if shape.is_plain else weight.flip(2)).permute(2, 0, 1).reshape(-1, channels)
    out, dx = shape.empty(rows.new_empty(0, dtype=dtype), channels)
    multiply(shape.windows(rows), flipped, out)
    return dx.contiguous()


def _weight_grad(g: Tensor, windows: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """dW (N, k, C): the product gives the taps before the channels. g: (rows, N)."""
    filters, channels, taps = shape
    dweight = g.new_empty(filters, taps, channels, dtype=dtype)
    multiply(g.t(), windows, dweight.view(filters, -1))
    return dweight


def _deliver(p: Tensor | None, dweight: Tensor, dtype: torch.dtype) -> Tensor | None:
    """dW (N, C, k) from (N, k, C), or None if it was added to p.grad as linear layers do. One pass puts it in its
    place, and that may as well add."""
    dweight = dweight.transpose(1, 2)
    if p is None:
        return dweight.contiguous()
    if p.grad is not None:
        deliver(p, dweight)
        return None
    return empty_gradient(p, tuple(dweight.shape), dtype).copy_(dweight)


def _by_torch(ctx, dy, dz, more_dx, more_dweight):  # type: ignore[no-untyped-def]
    """As backward; x, weight and z are taken from the graph, be it by their stand-ins."""
    x, weight, saved, x_place, weight_place = ctx.saved_tensors
    g = dy
    if g is not None and ctx.activation == "relu":
        g = g.masked_fill(saved <= 0, 0)
    elif g is not None and ctx.activation != "none":
        (g,) = gradients_of(lambda z: activate(z, ctx.activation), [saved.transpose(1, 2)], g, [True])
    g = add(g, None if dz is None else dz.transpose(1, 2))
    if g is None:
        return more_dx, more_dweight, None, None, None, None
    shape, needed = ctx.unfolding, ctx.needs_input_grad[:2]
    # A gradient does not depend on the value of what it is for, so that was not kept if the other has none.
    anything = g.new_zeros((), requires_grad=True)
    x = anything.expand(ctx.shape) if x is None else placed(x_place, _input(ctx, x).transpose(1, 2))
    weight = anything.expand(ctx.weight_shape) if weight is None else placed(weight_place, weight)
    dx, dweight = gradients_of(lambda x, w: F.conv1d(F.pad(x, (shape.left, shape.right)), w), [x, weight], g, needed)
    dx = None if dx is None else dx.to(ctx.x_dtype)
    dweight = None if dweight is None else dweight.to(ctx.weight_dtype)
    dbias = g.sum((0, 2), dtype=torch.float32).to(ctx.bias_dtype) if ctx.needs_input_grad[2] else None
    return add(dx, more_dx), add(dweight, more_dweight), dbias, None, None, None


def _input(ctx: Any, kept: Tensor) -> Tensor:
    """(batch, time, C) of what was kept of x: itself, or padded rows."""
    return kept.transpose(1, 2) if kept.dim() == 3 else ctx.unfolding.cut(kept)


class Conv1dFunction(torch.autograd.Function):
    """y and, for second derivatives alone, z that the activation takes, and stand-ins of what was cast."""

    @staticmethod
    def forward(ctx, x, weight, bias, activation, unfolding, dtype):  # type: ignore[no-untyped-def]
        cast_weight = weight.to(dtype)
        y, z, rows = _forward(x.transpose(1, 2), cast_weight, bias, activation, unfolding, keep=True)
        y = as_own(_as_laid_out(y, x))
        wants_dx, wants_dweight, _ = ctx.needs_input_grad[:3]
        both = wants_dx and wants_dweight
        x_place = stand_in(x) if both and x.dtype is not dtype else None
        weight_place = stand_in(weight) if both and weight.dtype is not dtype else None
        ctx.save_for_backward(
            (x if x.dtype is dtype else rows) if wants_dweight else None,  # padding it once more costs no memory
            cast_weight if wants_dx else None,
            y if activation == "relu" else z,
            x_place,
            weight_place,
        )
        ctx.activation, ctx.unfolding = activation, unfolding
        ctx.shape, ctx.weight_shape, ctx.like = x.shape, weight.shape, _has_inner_channels(x)
        ctx.dtype, ctx.x_dtype, ctx.weight_dtype = dtype, x.dtype, weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        return y, z, x_place, weight_place

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dy, dz, dx, dweight):  # type: ignore[no-untyped-def]
        if torch.is_autocast_enabled("cpu"):  # backward inside of the context, which would cast once more
            with torch.autocast("cpu", enabled=False):
                return _backward(ctx, dy, dz, dx, dweight)
        return _backward(ctx, dy, dz, dx, dweight)


def _backward(ctx, dy, dz, more_dx, more_dweight):  # type: ignore[no-untyped-def]
    kept, weight, saved, _, _ = ctx.saved_tensors
    if dy is None and dz is None:
        return more_dx, more_dweight, None, None, None, None
    shape, filters, wants_dbias = ctx.unfolding, ctx.weight_shape[0], ctx.needs_input_grad[2]
    if dy is None:
        g, dbias = _through_activation(dz.reshape(-1, filters), None, None, "none", wants_dbias)
    else:
        saved = saved.transpose(1, 2) if ctx.activation == "relu" else saved
        # Of one sequence with time innermost reshape() gives a view, and the kernel reads dense rows.
        saved = None if saved is None else saved.reshape(-1, filters).contiguous()
        dy = dy.transpose(1, 2).reshape(-1, filters)
        g, dbias = _through_activation(dy, saved, None, ctx.activation, wants_dbias)
        if dz is not None:
            dz = dz.reshape(-1, filters)
            g, dbias = g + dz, None if dbias is None else dbias + dz.sum(0, dtype=torch.float32)
    g = g.view(shape.batch, shape.time_out, filters)
    p = parameter_of(ctx.next_functions[1][0]) if kept is not None and ctx.weight_shape.numel() >= SMALL else None
    # What is added to an fp32 gradient comes in fp32; else the product rounds: a pass over bf16 takes half of one that
    # reads fp32 and rounds.
    dtype = torch.float32 if p is not None and p.grad is not None else ctx.weight_dtype
    dx, dweight = _products(ctx, g, kept, weight, dtype)
    if dx is not None:
        dx = dx.transpose(1, 2)
        dx = dx if ctx.like else dx.contiguous()
    if dweight is not None:
        dweight = _deliver(p, dweight, ctx.weight_dtype)
    dbias = None if dbias is None else dbias.to(ctx.bias_dtype)
    return add(dx, more_dx), add(dweight, more_dweight), dbias, None, None, None


def _products(
    ctx: Any, g: Tensor, kept: Tensor | None, weight: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """(dx (batch, time, C) if there is a weight, dW (N, k, C) in this dtype if x was kept)."""
    shape = ctx.unfolding
    if _winograd.pays(shape, ctx.weight_shape, ctx.x_dtype, ctx.dtype):
        return _winograd.backward(g, None if kept is None else kept.transpose(1, 2), weight, shape)
    dx = dweight = None
    if kept is not None or weight is not None:
        g = shape.backward.padded(g, ctx.dtype)
    if weight is not None:
        dx = _input_grad(g, weight, ctx.x_dtype, shape.backward)
    if kept is not None:
        rows = kept if kept.dim() == 2 else shape.padded(kept.transpose(1, 2), ctx.dtype)
        dweight = _weight_grad(shape.backward.between(g), shape.windows(rows), ctx.weight_shape, dtype)
    return dx, dweight


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, padding: int | str = 0, activation: str = "none"
) -> Tensor:
    """activation(conv of x + b). padding: zeros on both sides, or "same", or "valid". What the kernels do not know, and
    what is empty, goes through the reference."""
    check_activation("conv1d", activation, ACTIVATIONS)
    if x.dim() not in (2, 3) or weight.dim() != 3 or x.shape[-2] != weight.shape[1]:
        raise ValueError(
            "conv1d: expected x of (batch, in, time) and weight of (out, in, taps),"
            f" got {tuple(x.shape)} and {tuple(weight.shape)}; groups are torch's"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"conv1d: expected bias of shape {tuple(weight.shape[:1])}, the filters of weight, got {tuple(bias.shape)}"
        )
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
    unfolding = _unfolding(x, weight, padding) if _takes(x, weight, bias, dtype, autocast) else None
    if unfolding is None:
        return conv1d_reference(x, weight, bias, padding, activation)
    if needs_grad(x, weight, bias):
        y: Tensor = Conv1dFunction.apply(x, weight, bias, activation, unfolding, dtype)[0]
        return y
    y, _, _ = _forward(x.transpose(1, 2), weight.to(dtype), bias, activation, unfolding, keep=False)
    return _as_laid_out(y, x)


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether conv1d() is faster than torch's own, for a layer that can choose.

    Forward and backward with ReLU took torch 1.16 times as long in bf16 and 1.04 in fp32 for 256 -> 1024 channels,
    k = 9 and 16 x 400 frames, 1.95 and 2.6 for 1024 -> 256, k = 1, and 1.05 to 1.47 on the avx2 path in fp32 (one core
    of Zen 5, seconds of CPU under load). Of x with time innermost, which has to be transposed, it took 0.64 to 0.94.
    So it is where another library wins the race of products, too: its products would need a real copy of the windows,
    k times x, and it is that library's convolution that was measured.
    """
    if x.dim() != 3 or weight.dim() != 3 or not takes_kernel(x):
        return False
    _, channels, taps = weight.shape
    if channels * taps < _LEAST_COLUMNS or x.shape[0] * x.shape[2] * weight.numel() < LEAST_WORK:
        return False
    if _has_inner_channels(x):
        return True
    # Without AVX-512 torch has no bf16 convolution worth the name: 3.8 s against 0.12 for the first of those above.
    bf16 = torch.bfloat16
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    return dtype is bf16 and "onednn" not in built(bf16)


def _takes(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, autocast: bool) -> bool:
    if not (takes_kernel(x) and takes_kernel(weight) and takes_kernel(bias)):
        return False
    return dtype in KERNEL_DTYPES and (autocast or weight.dtype is dtype) and "native" in backends(dtype)


def _unfolding(x: Tensor, weight: Tensor, padding: int | str) -> Unfolding | None:
    """None where there is none: an empty tensor, a sequence shorter than the kernel, more zeros than taps."""
    taps = weight.shape[2]
    if padding == "same":
        left = (taps - 1) // 2
        right = taps - 1 - left
    else:
        left = right = 0 if isinstance(padding, str) else padding
    if isinstance(padding, str) and padding not in ("same", "valid"):
        return None  # torch has its own word for that
    if x.dim() != 3 or not x.numel() or not weight.numel() or not 0 <= left < taps:
        return None
    unfolding = Unfolding(x.shape[0], x.shape[2], taps, left, right)
    return unfolding if unfolding.time_out > 0 else None


def _has_inner_channels(x: Tensor) -> bool:
    return x.stride(1) == 1 and not x.is_contiguous()


def _as_laid_out(y: Tensor, x: Tensor) -> Tensor:
    """(batch, N, time) from (batch, time, N), in memory as x: whoever gave a dense one may call view()."""
    y = y.transpose(1, 2)
    return y if _has_inner_channels(x) else y.contiguous()
