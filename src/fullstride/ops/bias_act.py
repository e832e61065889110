"""Bias and activation in one pass, with the bias gradient in the backward pass.

    y = activation(x + bias)

over the last dimension, for the activations "none", "relu", "gelu" (exact), "gelu_tanh" and "silu". Backward keeps
x and makes x + bias anew; ReLU keeps y, which the next product keeps anyway; "none" keeps nothing.
"""

import torch
from torch import Tensor

from .. import _native
from ._activations import ACTIVATIONS, activate, check_activation
from ._tensors import as_rows, contiguous, kernel_dtype, needs_grad, pointer, takes_kernel
from ._twice import by_torch_for_graphs, gradients_of


def bias_act_reference(x: Tensor, bias: Tensor | None = None, activation: str = "gelu") -> Tensor:
    """y in the dtype of x, computed in fp32 or wider."""
    z = x if x.dtype == torch.float64 else x.float()
    if bias is not None:
        z = z + bias
    return activate(z, activation).to(x.dtype)


def _forward(x: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """(y, x, bias), the inputs made dense."""
    x, rows, cols = as_rows(x)
    bias = contiguous(bias)
    y = torch.empty_like(x)
    dtype = kernel_dtype(x)
    _native.kernels.bias_act_forward(
        x.data_ptr(), pointer(bias), y.data_ptr(), rows, cols, ACTIVATIONS[activation], dtype,
        dtype if bias is None else kernel_dtype(bias),
    )  # fmt: skip
    return y, x, bias


def _by_torch(ctx, dy):  # type: ignore[no-untyped-def]
    x, bias = ctx.saved_tensors  # of ReLU y, which is positive where x + bias is
    _, wants_dbias, _ = ctx.needs_input_grad
    if ctx.activation == "none":
        dx = dy
    elif ctx.activation == "relu":
        dx = dy.masked_fill(x <= 0, 0)
    else:
        needed = ctx.needs_input_grad[:2]
        dx, dbias = gradients_of(lambda x, bias: bias_act_reference(x, bias, ctx.activation), [x, bias], dy, needed)
        return dx, dbias, None
    dbias = dx.flatten(0, -2).sum(0, dtype=torch.float32).to(ctx.bias_dtype) if wants_dbias else None
    return dx, dbias, None


class BiasActFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, activation):  # type: ignore[no-untyped-def]
        y, x, dense_bias = _forward(x, bias, activation)
        if activation == "relu":
            ctx.save_for_backward(y, None)
        elif activation == "none":
            ctx.save_for_backward(None, None)
        else:
            ctx.save_for_backward(x, dense_bias)
        ctx.activation, ctx.bias_dtype = activation, None if bias is None else bias.dtype
        return y

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        saved, bias = ctx.saved_tensors
        dy, rows, cols = as_rows(dy)
        dx = dy if ctx.activation == "none" else torch.empty_like(dy)
        dbias = dy.new_empty(cols, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        dtype = kernel_dtype(dy)
        _native.kernels.bias_act_backward(
            dy.data_ptr(), pointer(saved), pointer(bias), dx.data_ptr(), pointer(dbias), rows, cols,
            ACTIVATIONS[ctx.activation], dtype, dtype if bias is None else kernel_dtype(bias),
        )  # fmt: skip
        return dx, None if dbias is None else dbias.to(ctx.bias_dtype), None


def bias_act(x: Tensor, bias: Tensor | None = None, activation: str = "gelu") -> Tensor:
    """activation(x + bias). Tensors the kernel does not know go through the reference."""
    check_activation("bias_act", activation, ACTIVATIONS)
    if x.dim() == 0:
        raise ValueError("bias_act: expected x with at least one dimension, got a scalar; reshape it to (1,)")
    if bias is not None and bias.shape != x.shape[-1:]:
        raise ValueError(
            f"bias_act: expected bias of shape {tuple(x.shape[-1:])}, the last dimension of x, got {tuple(bias.shape)}"
        )
    if not (takes_kernel(x) and takes_kernel(bias)):
        return bias_act_reference(x, bias, activation)
    if needs_grad(x, bias):
        return BiasActFunction.apply(x.contiguous(), contiguous(bias), activation)  # an input that is saved stays one
    return _forward(x, bias, activation)[0]
