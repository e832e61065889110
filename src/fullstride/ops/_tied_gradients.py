"""The gradient of a head that is tied to an embedding, handed over instead of added twice.

The head gives its dW to p.grad at once, and the few rows that the embedding adds last are added there. The engine would
want a second table of that size, nearly all zeros, and add the two.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .. import runtime
from ._leaf_gradients import SMALL, call_hooks, deliver, lock, parameter_of

_given: Any = WeakIdKeyDictionary()
"""The last run of backward in which give() reached a parameter."""


def give(node: Any, gradient: Tensor) -> bool:
    """Adds the gradient to p.grad, or makes it p.grad. False, and nothing is done, if the engine has to do that."""
    p = _large_parameter(node, gradient.numel())
    if p is None:
        return False
    deliver(p, gradient)
    _given[p] = torch._C._current_graph_task_id()
    return True


def grad_to_add_to(node: Any, gradient: Tensor, size: int) -> Tensor | None:
    """p.grad of `size` elements, if it is there already and the caller may add to it what it would have returned."""
    p = _large_parameter(node, size)
    if p is None or p.grad is None:
        return None
    if _given.get(p) != torch._C._current_graph_task_id():  # from an earlier micro-batch
        with lock():
            call_hooks(p, gradient)
    return p.grad


def _large_parameter(node: Any, size: int) -> Tensor | None:
    wanted = runtime.current().ties_gradients and size >= SMALL and not torch.is_grad_enabled()
    return parameter_of(node) if wanted else None
