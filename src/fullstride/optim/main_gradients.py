"""Gradients of bf16 parameters, summed in fp32.

torch sums micro-batches in the dtype of the parameter. In bf16 a gradient that is 1/256 of the sum so far is lost. Here
the first micro-batch stays as it came, which costs nothing, and p.grad becomes fp32 before a second one is added. It
stays in p.grad, where clip_grad_norm_, hooks and users find it. Under a script's own DistributedDataParallel, whose
buckets are bf16 as the parameters are, sums are torch's.
"""

import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import unserializable_hook
from torch.utils.weak import WeakIdKeyDictionary

from ..ops._leaf_gradients import is_watched_by_others

_handles: Any = WeakIdKeyDictionary()
"""Of the hooks, by parameter: not an attribute of it, which would be pickled with the model."""


def keep_main_gradients(params: Iterable[Tensor]) -> None:
    """From now on p.grad of the bf16 ones among these is fp32 as soon as two gradients are summed."""
    for p in params:
        if p.dtype is not torch.bfloat16 or not p.requires_grad or not p.is_leaf or p in _handles:
            continue
        if not hasattr(p, "grad_dtype"):  # an older torch
            warnings.warn("fullstride: this torch sums gradients of bf16 parameters in bf16; update it", stacklevel=2)
            return
        p.grad_dtype = None  # any
        _handles[p] = p.register_hook(_widen(weakref.ref(p)))


def drop_main_gradients(params: Iterable[Tensor]) -> None:
    """Undoes it: gradients have the dtype of their parameter again."""
    for p in params:
        handle = _handles.pop(p, None)
        if handle is not None:
            handle.remove()
            if p.grad is not None:
                p.grad = p.grad.to(p.dtype)
            p.grad_dtype = p.dtype


def _widen(reference: "weakref.ref[Tensor]") -> Callable[[Tensor], None]:
    """Runs before autograd adds to p.grad. Holds p weakly: p holds this."""

    @unserializable_hook  # a model that is sent to another process has no optimizer there
    def hook(_: Tensor) -> None:
        p = reference()
        if p is not None and p.grad is not None and p.grad.dtype is torch.bfloat16 and not is_watched_by_others():
            p.grad = p.grad.float()

    return hook
