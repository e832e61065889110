"""Weight gradients of linear layers, computed beside the rest of backward.

A worker thread with half of the threads computes dW = g^T x, while backward goes on with the other half. Nothing in
backward waits for dW, so products too small to fill all cores fill them two at a time. All is joined, and added to
p.grad, before backward returns.
"""

import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from .. import runtime
from ._leaf_gradients import deliver
from .products import product

# Products waiting for the worker: each holds on to its x and g.
_MOST_WAITING = 4


def overlap_weight_grads(enabled: bool) -> None:
    """Whether weight gradients of linear layers are computed beside the rest of backward, from now on."""
    runtime.current().overlaps = enabled


def overlaps_weight_grads() -> bool:
    return runtime.current().overlaps


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
                deliver(p, here[i] if i in here else future.result())
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


def pending() -> "_Pending | None":
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


def end_worker() -> None:
    """Its thread ends; the next product beside starts another."""
    global _executor
    if _executor is not None:
        _executor.shutdown(wait=True)
        _executor = None


def _after_fork() -> None:
    global _executor
    _executor = None  # threads do not survive a fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
