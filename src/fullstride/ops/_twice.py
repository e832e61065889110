"""Gradients that are differentiated once more: create_graph=True, for penalties on gradients and Hessian products.

The kernels have a first derivative only. Where autograd wants a graph of the gradient, and only there, the backward of
a Function goes by torch's own operations, and those know all their derivatives:

    @staticmethod
    @by_torch_for_graphs(_by_torch)
    def backward(ctx, dy): ...          # kernels; _by_torch(ctx, dy) computes the same with torch

It needs the inputs of the Function in the graph. Saved inputs are; so are saved outputs, through the Function's own
node. What was cast or overwritten before it was kept is not: then the Function has one output more, stand_in(x), which
holds no memory. Its gradient is a gradient of x, and backward adds it to dx.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def by_torch_for_graphs(by_torch: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For the backward of a Function; `by_torch` takes its place where autograd records what backward does."""

    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def wrapper(ctx: Any, *gradients: Tensor | None) -> Any:
            if not torch.is_grad_enabled():  # create_graph=False, nearly always
                return backward(ctx, *gradients)
            with torchs_own():
                return by_torch(ctx, *gradients)

        return wrapper

    return decorate


@contextmanager
def torchs_own() -> Iterator[None]:
    """No functions of ours and no casts, for models that differentiate inside of their forward."""
    with torch._C.DisableTorchFunction(), torch.autocast("cpu", enabled=False):
        yield


def gradients_of(
    function: Callable[..., Any], inputs: Sequence[Tensor | None], gradients: Any, needed: Sequence[bool]
) -> list[Any]:
    """The gradients of function(*inputs), a tensor or several, for the inputs that need one; all in the graph."""
    own = [x.view_as(x) if x is not None and need else x for x, need in zip(inputs, needed, strict=True)]  # one twice?
    outputs = function(*own)
    wanted = [x for x, need in zip(own, needed, strict=True) if x is not None and need]
    if not wanted:
        return [None] * len(own)
    found = iter(torch.autograd.grad(outputs, wanted, gradients, create_graph=True, materialize_grads=True))
    return [next(found) if x is not None and need else None for x, need in zip(own, needed, strict=True)]


class PlaceFunction(torch.autograd.Function):
    """value, at the place of another tensor in the graph."""

    @staticmethod
    def forward(ctx, place, value):  # type: ignore[no-untyped-def]
        ctx.shape, ctx.dtype = place.shape, place.dtype
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient.to(ctx.dtype).reshape(ctx.shape), None


def placed(place: Tensor | None, value: Tensor) -> Tensor:
    """value with the place of the other in the graph, whose shape and dtype may differ: it was cast, or flattened."""
    if place is None or not place.requires_grad:
        return value
    y: Tensor = PlaceFunction.apply(place, value.detach())
    return y


def stand_in(x: Tensor) -> Tensor:
    """Of the shape and dtype of x, without memory of its own: an output of a Function for the place of its input x."""
    return x.new_empty(()).expand(x.shape)


def add(gradient: Tensor | None, more: Tensor | None) -> Tensor | None:
    """The sum of those that are there."""
    return more if gradient is None else gradient if more is None else gradient + more
