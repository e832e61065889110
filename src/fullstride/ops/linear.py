"""A linear layer with its bias and activation.

    y = activation(x W^T + b)

x: (..., in), W: (out, in), b: (out). Forward is one product; backward is two, with g = dy * activation'(x W^T + b):

    dx = g W,   dW = g^T x,   db = sum of the rows of g

Which library computes them is a choice for each dtype and kind of shape: products.py. Kept for backward: x if W wants
its gradient, W if x does, and what the activation needs: nothing, y for ReLU, x W^T for the others. Under
torch.autocast("cpu") x and W are cast as in F.linear; the bias is added in fp32 and may stay in it.
"""

import time
import weakref

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _native
from ._activations import ACTIVATIONS, activate, check_activation
from ._overlap import overlap_weight_grads, overlaps_weight_grads
from ._tensors import KERNEL_DTYPES, as_own, contiguous, kernel_dtype, needs_grad, pointer, takes_kernel
from ._twice import add, by_torch_for_graphs, gradients_of, placed, stand_in
from ._weight_grads import weight_grad
from .bias_act import bias_act_reference
from .products import biased_product, fuses, product


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """y in the dtype of F.linear, which is that of autocast when it is on."""
    return activate(F.linear(x, weight, None if bias is None else bias.to(weight.dtype)), activation)


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(y, saved, bias) for x: (rows, in). `keep`: saved, and the bias still to be added to it, are wanted."""
    bends = activation not in ("none", "relu")
    transposed = weight.t()
    if fuses(x, transposed, activation, bias):
        pre = x.new_empty(x.shape[0], weight.shape[0]) if keep and bends else None
        return biased_product(x, transposed, bias, activation, pre), pre, None
    z = product(x, transposed)
    bias = contiguous(bias)
    y = torch.empty_like(z) if keep and bends else z
    dtype = kernel_dtype(z)
    _native.kernels.bias_act_forward(
        z.data_ptr(), pointer(bias), y.data_ptr(), *z.shape, ACTIVATIONS[activation], dtype,
        dtype if bias is None else kernel_dtype(bias),
    )  # fmt: skip
    return (y, z, bias) if keep and bends else (y, None, None)


def _through_activation(
    dy: Tensor, saved: Tensor | None, bias: Tensor | None, activation: str, wants_dbias: bool
) -> tuple[Tensor, Tensor | None]:
    """(g, db), db in fp32, from dy: (rows, out)."""
    if activation == "none" and not wants_dbias:
        return dy, None
    dy = dy.contiguous()
    g = dy if activation == "none" else torch.empty_like(dy)
    dbias = dy.new_empty(dy.shape[1], dtype=torch.float32) if wants_dbias else None
    dtype = kernel_dtype(dy)
    _native.kernels.bias_act_backward(
        dy.data_ptr(), pointer(saved), pointer(bias), g.data_ptr(), pointer(dbias), *dy.shape,
        ACTIVATIONS[activation], dtype, dtype if bias is None else kernel_dtype(bias),
    )  # fmt: skip
    return g, dbias


def _by_torch(ctx, dy, dz, dx, dweight):  # type: ignore[no-untyped-def]
    """As backward; x, weight and z are taken from the graph, be it by their stand-ins."""
    rows, weight, saved, bias, x_place, weight_place = ctx.saved_tensors
    rows = None if rows is None else placed(x_place, _rows(rows, rows.dtype))
    weight = None if weight is None else placed(weight_place, weight)
    g = None if dy is None else _rows(dy, dy.dtype)
    if g is not None and ctx.activation == "relu":
        g = g.masked_fill(_rows(saved, saved.dtype) <= 0, 0)
    elif g is not None and ctx.activation != "none":
        bias = None if bias is None else bias.detach()  # dz goes on to it
        (g,) = gradients_of(lambda z: bias_act_reference(z, bias, ctx.activation), [saved], g, [True])
    g = add(g, dz)
    if g is None:
        return dx, dweight, None, None, None
    if weight is not None:
        dx = add((g @ weight).to(ctx.x_dtype).view(ctx.shape), dx)
    if rows is not None:
        dweight = add((g.t() @ rows).to(ctx.weight_dtype), dweight)
    dbias = g.sum(0, dtype=torch.float32).to(ctx.bias_dtype) if ctx.wants_dbias else None
    return dx, dweight, dbias, None, None


class LinearFunction(torch.autograd.Function):
    """y and, for second derivatives alone, z = x W^T that the activation takes, and stand-ins of what was cast."""

    @staticmethod
    def forward(ctx, x, weight, bias, activation, dtype):  # type: ignore[no-untyped-def]
        rows, cast_weight = _cast_rows(x, dtype), weight.to(dtype)
        y, saved, saved_bias = _forward(rows, cast_weight, bias, activation, keep=True)
        y = as_own(y.view(*x.shape[:-1], weight.shape[0]))
        wants_dx, wants_dweight, ctx.wants_dbias = ctx.needs_input_grad[:3]
        is_x = rows.dtype is x.dtype and rows.data_ptr() == x.data_ptr()  # and neither a cast nor a copy
        x_place = stand_in(x) if wants_dx and wants_dweight and not is_x else None
        weight_place = stand_in(weight) if wants_dx and wants_dweight and cast_weight is not weight else None
        ctx.save_for_backward(
            (x if is_x else rows) if wants_dweight else None,
            cast_weight if wants_dx else None,
            y if activation == "relu" else saved,
            saved_bias,
            x_place,
            weight_place,
        )
        ctx.activation, ctx.shape = activation, x.shape
        ctx.x_dtype, ctx.weight_dtype, ctx.bias_dtype = x.dtype, weight.dtype, None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        return y, saved, x_place, weight_place

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dy, dz, dx, dweight):  # type: ignore[no-untyped-def]
        if torch.is_autocast_enabled("cpu"):  # backward inside of the context, which would cast once more
            with torch.autocast("cpu", enabled=False):
                return _backward(ctx, dy, dz, dx, dweight)
        return _backward(ctx, dy, dz, dx, dweight)


def _backward(ctx, dy, dz, more_dx, more_dweight):  # type: ignore[no-untyped-def]
    rows, weight, saved, bias, _, _ = ctx.saved_tensors
    if dy is None and dz is None:
        return more_dx, more_dweight, None, None, None
    if dy is None:
        g, dbias = _through_activation(dz, None, None, "none", ctx.wants_dbias)
    else:
        g, dbias = _through_activation(_rows(dy, dy.dtype), saved, bias, ctx.activation, ctx.wants_dbias)
        if dz is not None:
            g, dbias = g + dz, None if dbias is None else dbias + dz.sum(0, dtype=torch.float32)

    def input_grad() -> Tensor | None:
        return None if weight is None else product(g, weight, ctx.x_dtype).view(ctx.shape)

    if rows is None:
        dx, dweight = input_grad(), None
    else:
        rows = _rows(rows, rows.dtype)
        dweight, dx = weight_grad(ctx.next_functions[1][0], g, rows, ctx.weight_dtype, meanwhile=input_grad)
    dbias = None if dbias is None else dbias.to(ctx.bias_dtype)
    return add(dx, more_dx), add(dweight, more_dweight), dbias, None, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """activation(x W^T + b). Tensors the kernels do not know go through the reference."""
    check_activation("linear", activation, ACTIVATIONS)
    if weight.dim() != 2 or x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"linear: expected x of (..., in) and weight of (out, in), got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"linear: expected bias of shape {tuple(weight.shape[:1])}, the rows of weight, got {tuple(bias.shape)}"
        )
    if not (takes_kernel(x) and takes_kernel(weight) and takes_kernel(bias)):
        return linear_reference(x, weight, bias, activation)
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
    if dtype not in KERNEL_DTYPES or not (autocast or weight.dtype is dtype):
        return linear_reference(x, weight, bias, activation)
    if needs_grad(x, weight, bias):
        y: Tensor = LinearFunction.apply(x, weight, bias, activation, dtype)[0]
        return y
    result, _, _ = _forward(_rows(x, dtype), weight.to(dtype), bias, activation, keep=False)
    return result.view(*x.shape[:-1], weight.shape[0])


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as (rows, in) in this dtype."""
    rows = x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])
    return rows if rows.dtype is dtype else rows.to(dtype)


_Cast = tuple["weakref.ref[Tensor]", int, "weakref.ref[Tensor]"]
_last_cast: _Cast | None = None  # x, its version, its rows


def _cast_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """_rows(x, dtype); what queries, keys and values share, or gate and up, is cast and kept for backward only once."""
    global _last_cast
    if x.dtype is dtype or x.is_inference():
        return _rows(x, dtype)
    if _last_cast is not None:
        before, version, reference = _last_cast
        rows = reference()
        if before() is x and version == x._version and rows is not None and rows.dtype is dtype:
            return rows
    rows = _rows(x, dtype)
    _last_cast = weakref.ref(x), x._version, weakref.ref(rows)
    return rows


def measure_overlap(rounds: int = 15) -> float:
    """How many times as fast backward is with overlap_weight_grads, on layers too small to fill many cores.

    The best of several runs of each, in turns, of 6 layers of 512 with 64 rows: about 0.2 s. Changes no setting.
    """
    before, best = overlaps_weight_grads(), {False: float("inf"), True: float("inf")}
    x = torch.linspace(-1, 1, 64 * 512, device="cpu", dtype=torch.float32).view(64, 512)
    weights = [torch.eye(512, device="cpu", dtype=torch.float32).requires_grad_() for _ in range(6)]
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            for turn in range(2 * rounds + 2):
                y = x
                for weight in weights:
                    y = linear(y, weight, activation="relu")
                    weight.grad = None
                overlap_weight_grads(turn % 2 == 1)
                start = time.perf_counter()
                y.backward(y.detach())
                if turn > 1:  # the first of each warm up
                    best[turn % 2 == 1] = min(best[turn % 2 == 1], time.perf_counter() - start)
    finally:
        overlap_weight_grads(before)
    return best[False] / best[True]
