"""The gradient of the weight of a linear layer, dW = g^T x.

When p.grad is there already, from an earlier micro-batch, the product adds itself to it. That saves writing dW, and
reading it and p.grad again; and where p.grad is fp32 beside bf16 weights, dW is never rounded. _overlap.py computes it
beside the rest of backward, where that is on.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _gradient_norms
from ._kept_gradients import empty_gradient
from ._leaf_gradients import SMALL, call_hooks, is_watched, lock, parameter_of, receiver_of
from ._overlap import overlaps_weight_grads, pending
from ._tensors import mark_written
from .gemm import multiply
from .products import add_product, name_of, product, product_by


def weight_grad(node: Any, g: Tensor, x: Tensor, dtype: torch.dtype, meanwhile: Callable[[], Tensor | None]) -> Any:
    """(dW, result of meanwhile()). dW is None if it was added, or will be by the end of backward, to p.grad.

    node: what follows W in the graph, None to leave it to the engine. g: (rows, out). x: (rows, in). dtype: of dW.
    """
    overlaps = overlaps_weight_grads() and not is_watched()  # a bucket is sent before backward ends
    p = receiver_of(node) if overlaps or g.shape[1] * x.shape[1] >= SMALL else None
    beside = pending() if p is not None and overlaps else None
    if p is not None and beside is not None:
        beside.add(p, g, x, dtype)
        return None, meanwhile()
    result = meanwhile()
    if p is not None and p.grad is not None and parameter_of(node) is not None:
        with lock():
            call_hooks(p, g)
            if p.grad is not None and add_product(p.grad, g.t(), x):
                mark_written([p.grad])
                return None, result
    if p is None:
        return product(g.t(), x, dtype, sums_rows=True), result
    return _product_for(p, g.t(), x, dtype), result


def _product_for(p: Tensor, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a b, where the last gradient of p stood; its sum of squares is remembered for whoever clips."""
    name, shape = name_of(a, b, sums_rows=True), (a.shape[0], b.shape[1])
    if name == "native":
        gradient = empty_gradient(p, shape, dtype)
        squares = ctypes.c_double() if _gradient_norms.are_wanted() else None
        multiply(a, b, gradient, squares=squares)
        if squares is not None:
            _gradient_norms.remember(gradient, squares.value)
        return gradient
    if name == "torch" and dtype is a.dtype:
        return torch.mm(a, b, out=empty_gradient(p, shape, dtype))
    return product_by(name, a, b, dtype)
