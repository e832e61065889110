"""Gradients that reach p.grad without autograd's engine: whose they may be, and how they are put there.

For parameters alone, leaves of the graph, and only where nobody watches the gradient arrive: hooks,
torch.autograd.grad, create_graph and torch.distributed get it from the engine as ever.
"""

import os
import threading
from typing import Any

import torch
from torch import Tensor

# Below this many elements the questions asked here cost more than an addition.
SMALL = 1 << 16
# Whose hooks only get p.grad ready for an addition, and do not look at the gradient.
_HARMLESS = __name__.partition(".")[0] + ".optim.main_gradients"

_lock = threading.Lock()  # several threads may run backward over the same parameters


def lock() -> threading.Lock:
    """To be held while p.grad is changed."""
    return _lock


def parameter_of(node: Any) -> Tensor | None:
    """The parameter whose gradient the node will add to p.grad in this backward, if nobody else wants to see it."""
    if type(node).__name__ != "AccumulateGrad":
        return None
    p: Tensor = node.variable
    if p._post_accumulate_grad_hooks:
        return None
    if any(getattr(hook, "__module__", "") != _HARMLESS for hook in (p._backward_hooks or {}).values()):
        return None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return None
    try:
        return p if torch._C._will_engine_execute_node(node) else None
    except RuntimeError:  # torch.autograd.grad with respect to p
        return None


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
