"""Gradients that reach p.grad without autograd's engine: whose they may be, and how they are put there.

For parameters alone, leaves of the graph, and only where nobody watches the gradient arrive: hooks,
torch.autograd.grad and create_graph get it from the engine as ever. DistributedDataParallel looks at p.grad when
the node behind it was run, whoever wrote it, and wants it in the dtype of the parameter: so of several processes only
bf16 parameters are left to the engine, unless it was said that nobody looks (watched_by()).
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

# Below this many elements the questions asked here cost more than an addition.
SMALL = 1 << 16
# Whose hooks only get p.grad ready for an addition or a bucket, and do not look at the gradient before.
_PACKAGE = __name__.partition(".")[0]
_HARMLESS = (f"{_PACKAGE}.optim.main_gradients", f"{_PACKAGE}.distributed.gradients")

_lock = threading.Lock()  # several threads may run backward over the same parameters


def lock() -> threading.Lock:
    """To be held while p.grad is changed."""
    return _lock


def parameter_of(node: Any) -> Tensor | None:
    """The parameter whose gradient the node will add to p.grad in this backward, if whoever calls may do so instead."""
    p = receiver_of(node)
    return None if p is not None and p.dtype is not torch.float32 and is_watched() else p


def receiver_of(node: Any) -> Tensor | None:
    """The same parameter, if nobody but torch.distributed wants to see the gradient before."""
    if type(node).__name__ != "AccumulateGrad":
        return None
    p: Tensor = node.variable
    hooks = [*(p._backward_hooks or {}).values(), *(p._post_accumulate_grad_hooks or {}).values()]
    if any(getattr(hook, "__module__", "") not in _HARMLESS for hook in hooks):
        return None
    try:
        return p if torch._C._will_engine_execute_node(node) else None
    except RuntimeError:  # torch.autograd.grad with respect to p
        return None


_watcher: Literal["anybody", "ours", "nobody"] = "anybody"


def is_watched() -> bool:
    """Whether buckets of torch.distributed may be filled in this backward."""
    return _watcher != "nobody" and torch.distributed.is_available() and torch.distributed.is_initialized()


def is_watched_by_others() -> bool:
    """The same, by buckets that take a gradient in the dtype of its parameter alone: those of a script's own DDP."""
    return _watcher == "anybody" and is_watched()


@contextlib.contextmanager
def watched_by(watcher: Literal["ours", "nobody"]) -> Iterator[None]:
    """Of several processes: this micro-batch stays in this one, or goes into buckets of distributed/gradients.py."""
    global _watcher
    before, _watcher = _watcher, watcher
    try:
        yield
    finally:
        _watcher = before


def call_hooks(p: Tensor, gradient: Tensor) -> None:
    """Those that parameter_of() lets pass."""
    for hook in (p._backward_hooks or {}).values():
        hook(gradient)


@torch.no_grad()
def deliver(p: Tensor, gradient: Tensor) -> None:
    """As the engine does at a parameter."""
    with _lock:
        call_hooks(p, gradient)
        if p.grad is None:
            p.grad = gradient
        elif p.grad.layout is torch.strided:
            p.grad.add_(gradient)
        else:
            p.grad = gradient + p.grad


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # it may have been held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
