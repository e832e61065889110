"""The probe of a model's products: each of its own sizes, run by the op that the prepared model runs it by, and timed.

    forward, backward = timed(call, torch.bfloat16)

On random numbers, some milliseconds each, in a process that prepare() has set up (setting()). `adds`: the gradient of
the weight is added to one that is there, as every micro-batch of a step but the first does. The rate of a product is
its operations by this time, so what was fused with it, and the Python around it, is in its rate.
"""

import contextlib
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import preparation
from ...ops import attention, conv1d, linear, linear_cross_entropy
from ...ops._activations import activate
from ...optim.main_gradients import keep_main_gradients
from ...rewriting.prepared_forward import Setting, fast
from .calls import Call, Form, nbytes

SECONDS = 0.08  # of each call, about
_FEWEST, _MOST = 8, 200
_WARM_UP = 2  # times: the place of a gradient is kept from the second on
# In a step every call meets other tensors than the one before it. Turns go through so many bytes of copies, if that
# takes no more of them than these: beyond the caches of most machines.
_TURNED_OVER, _MOST_COPIES = 64 << 20, 4
_PARAMETERS = ("weight", "bias")


@contextlib.contextmanager
def setting(precision: str, threads: int | None = None) -> Iterator[str]:
    """A process as prepare() sets it up, for as long as it lasts: who multiplies, threads. Gives the precision."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with quiet():
        preparation.prepare(model, optimizer, precision=precision, threads=threads)
    try:
        yield preparation.explain(model).precision
    finally:
        with quiet():
            preparation.restore(model)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """prepare() and restore() have nothing to say of what nobody asked them for."""
    logger, handler = preparation.logger, logging.NullHandler()
    before, logger.disabled = logger.disabled, True
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.disabled = before


def timed(
    call: Call, dtype: torch.dtype | None, adds: bool = False, seconds: float = SECONDS
) -> tuple[float, float] | None:
    """Seconds forward and backward, the lower quarter: calls of which others took the core are no rate of this machine.

    None for what cannot be run alone.
    """
    function = _FUNCTIONS.get(call.name)
    if function is None or (call.is_of_torch and call.name != "matmul"):
        return None
    size = nbytes(call.inputs.values()) + nbytes(call.outputs.values())
    copies = max(1, min(_MOST_COPIES, math.ceil(_TURNED_OVER / max(1, size))))
    runs = [_Run(call, function, Setting(dtype), adds) for _ in range(copies)]
    for run in runs * _WARM_UP:
        run.once()
    forward: list[float] = []
    backward: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(forward) < _FEWEST or (time.perf_counter() < deadline and len(forward) < _MOST):
        ahead, back = runs[len(forward) % copies].once()
        forward.append(ahead)
        backward.append(back)
    return _lower_quarter(forward), _lower_quarter(backward)


def _lower_quarter(values: list[float]) -> float:
    return statistics.quantiles(values, n=4)[0]


class _Run:
    """A call and its tensors."""

    def __init__(self, call: Call, function: Callable[..., Any], setting: Setting, adds: bool) -> None:
        self.call, self.function, self.setting = call, function, setting
        generator = torch.Generator("cpu").manual_seed(0)
        wants = call.wants or frozenset()
        self.tensors = {role: _made(form, role in wants, generator) for role, form in call.inputs.items()}
        keep_main_gradients(tensor for role, tensor in self.tensors.items() if role in _PARAMETERS)
        self.renewed = [x for role, x in self.tensors.items() if not (adds and role in _PARAMETERS)]
        self.dy: Tensor | None = None

    def once(self) -> tuple[float, float]:
        for tensor in self.renewed:
            tensor.grad = None
        with fast(self.setting):  # which a model enters once
            start = time.perf_counter()
            y = self.function(self.call, **self.tensors)
            middle = time.perf_counter()
        if not self.call.wants:
            return middle - start, 0.0
        if self.dy is None:
            self.dy = torch.ones_like(y) if y.dim() == 0 else torch.empty_like(y).uniform_(-1, 1)
            middle = time.perf_counter()
        y.backward(self.dy)
        return middle - start, time.perf_counter() - middle


def _made(form: Form, learns: bool, generator: torch.Generator) -> Tensor:
    tensor = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="cpu")
    if not form.dtype.is_floating_point:
        return tensor.fill_(1)  # a mask that hides nothing
    held = tensor.as_strided((max(1, tensor.untyped_storage().nbytes() // tensor.element_size()),), (1,))
    held.uniform_(-0.1, 0.1, generator=generator)
    return tensor.requires_grad_(learns)


def _linear(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return linear.linear(x, weight, bias, call.options["activation"])


def _convolution(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    options = {name: call.options[name] for name in ("stride", "padding", "dilation", "groups") if name in call.options}
    name, activation = call.options["operation"], call.options["activation"]
    if name == "conv1d" and activation != "none" and conv1d.pays(x, weight):
        padding = options.get("padding", 0)
        return conv1d.conv1d(x, weight, bias, padding[0] if isinstance(padding, list) else padding, activation)
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    y: Tensor = getattr(F, name)(x, weight, bias, **options)
    return activate(y, activation)


def _attention(call: Call, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    options = call.options
    return attention.attention(query, key, value, mask, options["causal"], None, options["gqa"], options["dropout"])


def _head(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    target = torch.arange(len(x), device="cpu") % len(weight)
    return linear_cross_entropy.linear_cross_entropy(x, weight, target, bias)


def _matmul(call: Call, **tensors: Tensor) -> Tensor:
    y: Tensor = getattr(torch, call.options["operation"])(*tensors.values())
    return y


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "linear": _linear, "convolution": _convolution, "attention": _attention, "linear_cross_entropy": _head,
    "matmul": _matmul,
}  # fmt: skip
