"""Gated linear units.

    y = activation(gate) * up

SwiGLU with "silu", GEGLU with "gelu" (exact) or "gelu_tanh". gate and up are two tensors or, given as one, the two
halves of its last dimension; nothing is copied apart, and the gradient of the one tensor is written into its halves.
Backward keeps gate and up.
"""

import torch
from torch import Tensor

from .. import _native
from ._activations import ACTIVATIONS, activate, check_activation
from ._tensors import as_rows, kernel_dtype, needs_grad, takes_kernel
from ._twice import by_torch_for_graphs, gradients_of

GATES = ("silu", "gelu", "gelu_tanh")


def glu_reference(gate: Tensor, up: Tensor, activation: str = "silu") -> Tensor:
    """y in the dtype of gate, computed in fp32 or wider."""
    wide = gate if gate.dtype == torch.float64 else gate.float()
    return (activate(wide, activation) * up).to(gate.dtype)


def _reference_of_halves(x: Tensor, activation: str, gate_first: bool) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return glu_reference(first, second, activation) if gate_first else glu_reference(second, first, activation)


def _forward(gate: Tensor, up: Tensor, activation: str) -> tuple[Tensor, Tensor, Tensor]:
    """(y, gate, up), the inputs with evenly spaced rows."""
    (gate, rows, gate_stride), (up, _, up_stride) = _even_rows(gate), _even_rows(up)
    y = gate.new_empty(gate.shape)
    _native.kernels.glu_forward(
        gate.data_ptr(), gate_stride, up.data_ptr(), up_stride, y.data_ptr(), rows, gate.shape[-1],
        ACTIVATIONS[activation], kernel_dtype(gate),
    )  # fmt: skip
    return y, gate, up


def _by_torch(ctx, dy):  # type: ignore[no-untyped-def]
    def function(gate: Tensor, up: Tensor) -> Tensor:
        return glu_reference(gate, up, ctx.activation)

    return *gradients_of(function, ctx.saved_tensors, dy, ctx.needs_input_grad[:2]), None


class GluFunction(torch.autograd.Function):
    """Of two tensors."""

    @staticmethod
    def forward(ctx, gate, up, activation):  # type: ignore[no-untyped-def]
        y, gate, up = _forward(gate, up, activation)
        ctx.save_for_backward(gate, up)
        ctx.activation = activation
        return y

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        (gate, rows, gate_stride), (up, _, up_stride) = map(_even_rows, ctx.saved_tensors)
        dy = dy.contiguous()
        dgate, dup = torch.empty_like(dy), torch.empty_like(dy)
        cols = dy.shape[-1]
        _native.kernels.glu_backward(
            dy.data_ptr(), gate.data_ptr(), gate_stride, up.data_ptr(), up_stride, dgate.data_ptr(), cols,
            dup.data_ptr(), cols, rows, cols, ACTIVATIONS[ctx.activation], kernel_dtype(dy),
        )  # fmt: skip
        return dgate, dup, None


def _forward_halves(x: Tensor, activation: str, gate_first: bool) -> tuple[Tensor, Tensor]:
    """(y, x), x made dense."""
    x, rows, width = as_rows(x)
    y = x.new_empty(*x.shape[:-1], width // 2)
    gate, up = _halves(x, gate_first)
    _native.kernels.glu_forward(
        gate, width, up, width, y.data_ptr(), rows, width // 2, ACTIVATIONS[activation], kernel_dtype(x)
    )
    return y, x


def _halves_by_torch(ctx, dy):  # type: ignore[no-untyped-def]
    def function(x: Tensor) -> Tensor:
        return _reference_of_halves(x, ctx.activation, ctx.gate_first)

    return *gradients_of(function, ctx.saved_tensors, dy, [True]), None, None


class HalvesGluFunction(torch.autograd.Function):
    """Of one tensor that holds gate and up side by side."""

    @staticmethod
    def forward(ctx, x, activation, gate_first):  # type: ignore[no-untyped-def]
        y, x = _forward_halves(x, activation, gate_first)
        ctx.save_for_backward(x)
        ctx.activation, ctx.gate_first = activation, gate_first
        return y

    @staticmethod
    @by_torch_for_graphs(_halves_by_torch)
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        dy, rows, cols = as_rows(dy)
        dx = torch.empty_like(x)
        gate, up = _halves(x, ctx.gate_first)
        dgate, dup = _halves(dx, ctx.gate_first)
        width = 2 * cols
        _native.kernels.glu_backward(
            dy.data_ptr(), gate, width, up, width, dgate, width, dup, width, rows, cols,
            ACTIVATIONS[ctx.activation], kernel_dtype(dy),
        )  # fmt: skip
        return dx, None, None


def glu(gate: Tensor, up: Tensor | None = None, activation: str = "silu", gate_first: bool = True) -> Tensor:
    """activation(gate) * up. Without `up`, `gate` holds both: gate in the first half, or in the second.

    Tensors the kernel does not know go through the reference.
    """
    check_activation("glu", activation, GATES)
    if up is None:
        if gate.dim() == 0 or gate.shape[-1] % 2:
            raise ValueError(f"glu: expected an even last dimension to halve, got shape {tuple(gate.shape)}; pass up")
        if takes_kernel(gate):
            if needs_grad(gate):
                return HalvesGluFunction.apply(gate.contiguous(), activation, gate_first)
            return _forward_halves(gate, activation, gate_first)[0]
        return _reference_of_halves(gate, activation, gate_first)
    if up.shape != gate.shape:
        raise ValueError(f"glu: expected up of shape {tuple(gate.shape)} like gate, got {tuple(up.shape)}")
    if gate.dim() == 0 or not takes_kernel(gate, up):
        return glu_reference(gate, up, activation)
    if needs_grad(gate, up):
        return GluFunction.apply(_even_rows(gate)[0], _even_rows(up)[0], activation)
    return _forward(gate, up, activation)[0]


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """silu(gate) * up."""
    return glu(gate, up, "silu")


def _even_rows(x: Tensor) -> tuple[Tensor, int, int]:
    """x with its number of rows and the elements from one to the next. A copy is made only of unevenly spaced rows."""
    if x.is_contiguous() or x.dim() < 2 or x.stride(-1) != 1 or x.stride(-2) < x.shape[-1]:
        return as_rows(x)
    if any(x.stride(d) != x.stride(d + 1) * x.shape[d + 1] for d in range(x.dim() - 2)):
        return as_rows(x)
    return x, x.shape[:-1].numel(), x.stride(-2)


def _halves(x: Tensor, gate_first: bool) -> tuple[int, int]:
    """Addresses of gate and up in the first row of x."""
    first = x.data_ptr()
    second = first + x.shape[-1] // 2 * x.element_size()
    return (first, second) if gate_first else (second, first)
