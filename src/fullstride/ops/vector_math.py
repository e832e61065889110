"""exp, log, sqrt, rsqrt, tanh, sigmoid, sin, cos and erf of every element; sums, products and multiples of elements.

    y = f(x),    y = a + b,    y = a * b,    y = factor * x

fp32 results are within BOUNDS units in the last place of the exact value over the whole range, at infinities, at NaN
and with the sign of zero; tests/ops/test_vector_math.py and csrc/tests/test_vector_math.cc hold them to it. bf16
results are those, rounded to nearest. Kernels flush denormals by default: they are then read, and given, as zeros of
their sign. sin and cos are slow, though exact to the bound, beyond |x| = 100000. add, mul and scale compute in fp32
and round once: what torch gives, bit for bit, but for the denormals.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .. import _native
from ._tensors import is_dense, kernel_dtype, needs_grad, takes_kernel
from ._twice import by_torch_for_graphs, gradients_of

BOUNDS = {
    "exp": 1.1, "log": 1.0, "sqrt": 0.5, "rsqrt": 1.5, "tanh": 1.5, "sigmoid": 2.5, "sin": 1.6, "cos": 1.6, "erf": 1.4,
}  # fmt: skip
"""Largest error of each function in ulp of fp32, in any variant."""

_CODES = {name: code for code, name in enumerate(BOUNDS)}  # fs_function of csrc/fullstride.h
_SAVES_RESULT = ("exp", "sqrt", "rsqrt", "tanh", "sigmoid")  # their derivatives follow from y; the others' from x


def vector_function_reference(x: Tensor, name: str) -> Tensor:
    """The function of torch of that name, in fp32 or fp64, in the dtype of x."""
    wide = x if x.dtype == torch.float64 else x.float()
    y: Tensor = getattr(torch, name)(wide)
    return y.to(x.dtype)


def _forward(x: Tensor, name: str) -> Tensor:
    x = x if is_dense(x) else x.contiguous()
    y = torch.empty_like(x)  # of the same strides
    _native.kernels.vector_function_forward(x.data_ptr(), y.data_ptr(), x.numel(), _CODES[name], kernel_dtype(x))
    return y


_DERIVATIVES: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda y: y,
    "sqrt": lambda y: 0.5 / y,
    "rsqrt": lambda y: -0.5 * y**3,
    "tanh": lambda y: 1 - y * y,
    "sigmoid": lambda y: y * (1 - y),
}
"""By y, of those that save it."""


def _by_torch(ctx, dy):  # type: ignore[no-untyped-def]
    (saved,) = ctx.saved_tensors
    if ctx.name in _SAVES_RESULT:
        return (dy.float() * _DERIVATIVES[ctx.name](saved.float())).to(dy.dtype), None
    return *gradients_of(lambda x: vector_function_reference(x, ctx.name), [saved], dy, [True]), None


class VectorFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, name):  # type: ignore[no-untyped-def]
        y = _forward(x, name)
        ctx.save_for_backward(y if name in _SAVES_RESULT else x)
        ctx.name = name
        return y

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        (saved,) = ctx.saved_tensors
        if dy.stride() != saved.stride() or not is_dense(dy):
            dy, saved = dy.contiguous(), saved.contiguous()
        dx = torch.empty_like(dy)
        _native.kernels.vector_function_backward(
            dy.data_ptr(), saved.data_ptr(), dx.data_ptr(), dx.numel(), _CODES[ctx.name], kernel_dtype(dx)
        )
        return dx, None


def _apply(x: Tensor, name: str) -> Tensor:
    if not x.is_floating_point():
        raise ValueError(f"{name}: expected a floating-point tensor, got {x.dtype}; convert it with x.float()")
    if not takes_kernel(x):
        return vector_function_reference(x, name)
    if needs_grad(x):
        y: Tensor = VectorFunction.apply(x, name)
        return y
    return _forward(x, name)


def _seen(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """By a TorchFunctionMode, as torch's own are: rewriting/kept_activations.py must not round what these keep."""
    if has_torch_function_unary(x):
        y: Tensor = handle_torch_function(function, (x,), x)
        return y
    return _apply(x, function.__name__)


def exp(x: Tensor) -> Tensor:
    return _apply(x, "exp")


def log(x: Tensor) -> Tensor:
    """The natural logarithm: -inf at zero, NaN below."""
    return _apply(x, "log")


def sqrt(x: Tensor) -> Tensor:
    return _apply(x, "sqrt")


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x): an infinity of its sign at zero, NaN below."""
    return _apply(x, "rsqrt")


def tanh(x: Tensor) -> Tensor:
    return _apply(x, "tanh")


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x)."""
    return _apply(x, "sigmoid")


def sin(x: Tensor) -> Tensor:
    return _seen(sin, x)


def cos(x: Tensor) -> Tensor:
    return _seen(cos, x)


def erf(x: Tensor) -> Tensor:
    return _apply(x, "erf")


# ---- sums, products, multiples -------------------------------------------------------------------------------------


def add_reference(a: Tensor, b: Tensor) -> Tensor:
    return a + b


def mul_reference(a: Tensor, b: Tensor) -> Tensor:
    return a * b


def scale_reference(x: Tensor, factor: float) -> Tensor:
    return x * factor


def _combined(kernel: str, a: Tensor, b: Tensor) -> Tensor:
    if a.stride() != b.stride() or not is_dense(a):
        a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    getattr(_native.kernels, kernel)(a.data_ptr(), b.data_ptr(), y.data_ptr(), y.numel(), kernel_dtype(y))
    return y


def _scaled(x: Tensor, factor: float) -> Tensor:
    x = x if is_dense(x) else x.contiguous()
    y = torch.empty_like(x)
    _native.kernels.vector_scale(x.data_ptr(), factor, y.data_ptr(), y.numel(), kernel_dtype(y))
    return y


# Their derivatives are made of themselves, so that these can be differentiated as often as one likes.


class AddFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):  # type: ignore[no-untyped-def]
        return _combined("vector_add", a, b)

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        return dy, dy


class MulFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(a, b)
        return _combined("vector_mul", a, b)

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        a, b = ctx.saved_tensors
        wants_da, wants_db = ctx.needs_input_grad
        return mul(dy, b) if wants_da else None, mul(dy, a) if wants_db else None


class ScaleFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):  # type: ignore[no-untyped-def]
        ctx.factor = factor
        return _scaled(x, factor)

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        return scale(dy, ctx.factor), None


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b, of one shape."""
    _check_shapes("add", a, b)
    if not takes_kernel(a, b):
        return add_reference(a, b)
    if needs_grad(a, b):
        y: Tensor = AddFunction.apply(a, b)
        return y
    return _combined("vector_add", a, b)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """a * b, of one shape."""
    _check_shapes("mul", a, b)
    if not takes_kernel(a, b):
        return mul_reference(a, b)
    if needs_grad(a, b):
        y: Tensor = MulFunction.apply(a, b)
        return y
    return _combined("vector_mul", a, b)


def scale(x: Tensor, factor: float) -> Tensor:
    """factor * x."""
    if not takes_kernel(x):
        return scale_reference(x, factor)
    if needs_grad(x):
        y: Tensor = ScaleFunction.apply(x, factor)
        return y
    return _scaled(x, factor)


def _check_shapes(name: str, a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"{name}: expected two tensors of one shape, got {shapes}; expand one, or take torch.{name}")
