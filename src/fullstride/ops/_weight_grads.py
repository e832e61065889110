"""Ways for the gradient of a weight, dW = g^T x, to reach p.grad without a detour through autograd's engine.

In place: when p.grad is there already, from an earlier micro-batch, the product adds itself to it. That saves writing
dW, and reading it and p.grad again; and where p.grad is fp32 beside bf16 weights, dW is never rounded.

Beside: overlap_weight_grads(True) gives the product to a worker thread with half of the threads, while backward goes on
with the other half. Nothing in backward waits for dW, so products too small to fill all cores fill them two at a time.
All is joined, and added to p.grad, before backward returns.

Ahead: a head that is tied to an embedding gives its dW to p.grad at once, and the few rows that the embedding adds last
are added there. The engine would want a second table of that size, nearly all zeros, and add the two.

All are for parameters alone, leaves of the graph, and only where nobody watches the gradient arrive: hooks,
torch.autograd.grad, create_graph and torch.distributed get it from the engine as ever.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from . import _gradient_norms
from ._kept_gradients import empty_gradient
from ._products import add_product, name_of, product, product_by
from ._tensors import mark_written
from .gemm import multiply

# Below this many elements the questions asked here cost more than an addition.
_SMALL = 1 << 16
# Products waiting for the worker: each holds on to its x and g.
_MOST_WAITING = 4
# Whose hooks only get p.grad ready for an addition, and do not look at the gradient.
_HARMLESS = __name__.partition(".")[0] + ".optim.main_gradients"

_overlap = False
_lock = threading.Lock()  # several threads may run backward over the same parameters


def overlap_weight_grads(enabled: bool) -> None:
    """Whether weight gradients of linear layers are computed beside the rest of backward, from now on."""
    global _overlap
    _overlap = enabled


def overlaps_weight_grads() -> bool:
    return _overlap


def weight_grad(node: Any, g: Tensor, x: Tensor, dtype: torch.dtype, meanwhile: Callable[[], Tensor | None]) -> Any:
    """(dW, result of meanwhile()). dW is None if it was added, or will be by the end of backward, to p.grad.

    node: what follows W in the graph, None to leave it to the engine. g: (rows, out). x: (rows, in). dtype: of dW.
    """
    p = _parameter(node) if _overlap or g.shape[1] * x.shape[1] >= _SMALL else None
    pending = _pending() if p is not None and _overlap else None
    if p is not None and pending is not None:
        pending.add(p, g, x, dtype)
        return None, meanwhile()
    result = meanwhile()
    if p is not None and p.grad is not None:
        with _lock:
            _call_hooks(p, g)
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


def give(node: Any, gradient: Tensor) -> bool:
    """Adds the gradient to p.grad, or makes it p.grad. False, and nothing is done, if the engine has to do that."""
    p = _parameter(node) if gradient.numel() >= _SMALL and not torch.is_grad_enabled() else None
    if p is None:
        return False
    _deliver(p, gradient)
    _given[p] = torch._C._current_graph_task_id()
    return True


def grad_to_add_to(node: Any, gradient: Tensor, size: int) -> Tensor | None:
    """p.grad of `size` elements, if it is there already and the caller may add to it what it would have returned."""
    p = _parameter(node) if size >= _SMALL and not torch.is_grad_enabled() else None
    if p is None or p.grad is None:
        return None
    if _given.get(p) != torch._C._current_graph_task_id():  # from an earlier micro-batch
        with _lock:
            _call_hooks(p, gradient)
    return p.grad


_given: Any = WeakIdKeyDictionary()
"""The last run of backward in which give() reached a parameter."""


def _parameter(node: Any) -> Tensor | None:
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


def _call_hooks(p: Tensor, gradient: Tensor) -> None:
    """Those that _parameter() lets pass."""
    for hook in (p._backward_hooks or {}).values():
        hook(gradient)


@torch.no_grad()
def _deliver(p: Tensor, gradient: Tensor) -> None:
    """As the engine does at a parameter."""
    with _lock:
        _call_hooks(p, gradient)
        if p.grad is None:
            p.grad = gradient
        elif p.grad.layout is torch.strided:
            p.grad.add_(gradient)
        else:
            p.grad = gradient + p.grad


# ---- the worker ---------------------------------------------------------------------------------------------


class _Pending:
    """The weight gradients of one run of backward that are computed beside it."""

    def __init__(self) -> None:
        self.threads = torch.get_num_threads()
        self.beside = self.threads // 2
        self.jobs: list[tuple[Tensor, Callable[[], Tensor], Future[Tensor]]] = []
        torch.set_num_threads(self.threads - self.beside)

    def add(self, p: Tensor, g: Tensor, x: Tensor, dtype: torch.dtype) -> None:
        if len(self.jobs) >= _MOST_WAITING:
            self.jobs[-_MOST_WAITING][2].result()

        job = partial(_product_beside, self.beside, g, x, dtype)
        self.jobs.append((p, job, _worker().submit(job)))

    def join(self) -> None:
        """Adds all gradients to their parameters, in the order of backward."""
        try:
            here = {}
            for i in reversed(range(len(self.jobs))):  # help with what the worker has not begun
                if self.jobs[i][2].cancel():
                    here[i] = self.jobs[i][1]()  # with the worker's number of threads: the same bits
            for i, (p, _, future) in enumerate(self.jobs):
                _deliver(p, here[i] if i in here else future.result())
        finally:
            self.close()

    def close(self) -> None:
        self.jobs.clear()
        if self.threads:
            torch.set_num_threads(self.threads)
        self.threads = 0

    def __del__(self) -> None:  # backward has raised, and join was not called
        self.close()


@torch.no_grad()
def _product_beside(threads: int, g: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return product(g.t(), x, dtype, sums_rows=True)


_pendings: "weakref.WeakValueDictionary[int, _Pending]" = weakref.WeakValueDictionary()
"""By run of backward. The engine holds them through its callback, as long as the run lasts."""


def _pending() -> _Pending | None:
    """That of this run of backward; None if there is no thread to spare."""
    run = torch._C._current_graph_task_id()
    pending = _pendings.get(run)
    if pending is None and torch.get_num_threads() > 1:
        pending = _pendings[run] = _Pending()
        torch.autograd.Variable._execution_engine.queue_callback(pending.join)
    return pending


_executor: ThreadPoolExecutor | None = None


def _worker() -> ThreadPoolExecutor:
    global _executor
    if _executor is None:
        _executor = ThreadPoolExecutor(1, thread_name_prefix="weight-gradients")
    return _executor


def _after_fork() -> None:
    global _executor, _lock
    _executor, _lock = None, threading.Lock()  # threads do not survive a fork, and the lock may have been held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
