"""The operations that are tried in the child process, each in its smallest form, with a check of its numbers.

CHECKS[name]() runs one and returns how far its result is off, as a pair (error, tolerance), relative to the result.
RACERS[precision, backend](shape) gives the call that race.py times: the three products of a linear layer, as
ops/linear.py computes them. tests/backends/bad_candidates.py is a module of the same form.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops import linear, products
from . import verdicts
from .race import Shape

Products = tuple[Tensor, Tensor, Tensor]  # y, dx, dW
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Sums are in fp32 everywhere, so a result is rounded once; dW of the largest shape sums 1024 terms.
TOLERANCES = {"fp32": 1e-3, "bf16": 0.03, "fp16": 0.03}
_SMALL: tuple[Shape, ...] = ((1, 16, 8), (7, 33, 65), (64, 96, 48), (129, 64, 257))
_OPERATION_TOLERANCE = 0.1  # of the norm: several roundings to 8 bits, and a softmax or two


@lru_cache(maxsize=4)
def random(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator("cpu").manual_seed(sum(sizes)), device="cpu")


@lru_cache(maxsize=1)  # of the racers of a precision, which come one after the other; drawing takes as long as racing
def layer(precision: str, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """x, W and dy."""
    rows, ins, outs = shape
    dtype = DTYPES[precision]
    x, weight, dy = (random(*sizes).to(dtype, copy=True) for sizes in ((rows, ins), (outs, ins), (rows, outs)))
    return x.requires_grad_(), weight.requires_grad_(), dy


def layer_products(precision: str, backend: str, shape: Shape) -> Callable[[], Products]:
    """Computes y, dx and dW of a linear layer whenever it is called."""
    x, weight, dy = layer(precision, shape)
    dtype = DTYPES[precision]

    def run() -> Products:
        if dtype is not torch.float16:  # which is torch's own
            products.set_backend(dtype, backend)
        y = linear.linear(x, weight)
        dx, dweight = torch.autograd.grad(y, (x, weight), dy)
        return y, dx, dweight

    return run


def check_product(precision: str, run_of: Callable[[Shape], Callable[[], Products]]) -> tuple[float, float]:
    """Small shapes, odd ones among them, against fp64."""
    worst = 0.0
    for shape in _SMALL:
        x, weight, dy = (tensor.detach().double() for tensor in layer(precision, shape))
        for result, expected in zip(run_of(shape)(), (x @ weight.t(), dy @ weight, dy.t() @ x), strict=True):
            error = float((result.detach().double() - expected).abs().max() / expected.abs().max())
            worst = max(worst, error) if error == error else float("nan")
    return worst, TOLERANCES[precision]


def check_large(precision: str, shape: Shape, results: Products) -> tuple[float, float]:
    """A shape too large to be computed again: A B v = A (B v) for a random v, which a wrong tile would not give."""
    x, weight, dy = (tensor.detach().float() for tensor in layer(precision, shape))
    worst = 0.0
    for result, a, b in zip(results, (x, dy, dy.t()), (weight.t(), weight, x), strict=True):
        v = random(b.shape[1])
        expected = (a * (b * v).sum(1)).sum(1)
        error = float(((result.detach().float() * v).sum(1) - expected).abs().max() / expected.square().mean().sqrt())
        worst = max(worst, error) if error == error else float("nan")
    return worst, TOLERANCES[precision]


def check_int8() -> tuple[float, float]:
    a, b = ((random(64, 64) * 40).clamp(-127, 127).round() for _ in range(2))
    result = torch._int_mm(a.to(torch.int8), b.to(torch.int8))
    return float((result.double() - a.double() @ b.double()).abs().max()), 0.0


def check_operation(operation: str, dtype: torch.dtype) -> tuple[float, float]:
    """torch's own, forward and backward under autocast and without gradients, against fp32."""
    call, inputs = _OPERATIONS[operation]()
    worst = 0.0
    for grad in (True, False):
        expected, found = (_outcomes(call, inputs, dtype, lower, grad) for lower in (False, True))
        for a, b in zip(found, expected, strict=True):
            error = float((a.float() - b.float()).norm() / b.float().norm())
            worst = max(worst, error) if error == error else float("nan")
    return worst, _OPERATION_TOLERANCE


def _outcomes(
    call: Callable[..., Tensor], inputs: list[Tensor], dtype: torch.dtype, lower: bool, grad: bool
) -> list[Tensor]:
    own = [tensor.detach().clone().requires_grad_(grad) for tensor in inputs]
    with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype, enabled=lower):
        y = call(*own)
    return [y, *torch.autograd.grad(y.float().square().sum(), own)] if grad else [y]


def _matmul() -> tuple[Callable[..., Tensor], list[Tensor]]:
    def call(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return F.linear(torch.matmul(x, y), weight)

    return call, [random(3, 40, 32), random(3, 32, 48), random(64, 48)]


def _convolution() -> tuple[Callable[..., Tensor], list[Tensor]]:
    def call(x: Tensor, weight: Tensor, series: Tensor, filters: Tensor) -> Tensor:
        return torch.cat([F.conv2d(x, weight, padding=1).flatten(), F.conv1d(series, filters, padding=2).flatten()])

    return call, [random(2, 16, 12, 12), random(32, 16, 3, 3), random(2, 16, 40), random(32, 16, 5)]


def _attention() -> tuple[Callable[..., Tensor], list[Tensor]]:
    q, k, v = random(3, 2, 4, 40, 32).unbind()
    return partial(F.scaled_dot_product_attention, is_causal=True), [q, k, v]


def _lstm() -> tuple[Callable[..., Tensor], list[Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.LSTM(32, 64)

    def call(x: Tensor) -> Tensor:
        y: Tensor = module(x)[0]
        return y

    return call, [random(12, 4, 32)]


_OPERATIONS = dict(zip(verdicts.OPERATIONS, (_matmul, _convolution, _attention, _lstm), strict=True))

RACERS: dict[tuple[str, str], Callable[[Shape], Callable[[], Products]]] = {
    (precision, backend): partial(layer_products, precision, backend)
    for precision, dtype in DTYPES.items()
    for backend in (products.BACKENDS if dtype is not torch.float16 else ("torch",))
}
CHECKS: dict[str, Callable[[], tuple[float, float]]] = {
    **{verdicts.product_name(*racer): partial(check_product, racer[0], run) for racer, run in RACERS.items()},
    **{
        verdicts.operation_name("bf16", operation): partial(check_operation, operation, torch.bfloat16)
        for operation in verdicts.OPERATIONS
    },
    verdicts.operation_name("int8", "product"): check_int8,
}
