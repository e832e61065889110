"""Processes that make micro-batches ahead and hand them over in order.

torch's DataLoader is not used, for what it does when a worker dies: a handler of SIGCHLD raises in the middle of what
the main thread does just then, an optimizer step or the writing of a checkpoint; other threads notice within five
seconds (torch 2.13: utils/data/_utils/signal_handling.py, MP_STATUS_CHECK_INTERVAL). Here next() raises, at once.

    this process --(number, slot)--> worker        a socket for each worker; `prefetch` requests are under way
                 <--shapes, or an error--
    tensors: through `prefetch` slots of memory that both have; too large ones as torch sends tensors

A worker ends when its socket is closed, so also when this process is killed. It has nothing to lose: close() kills it.
"""

import atexit
import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.multiprocessing  # teaches connections to send tensors
from torch import Tensor

from ..machine.pool_process import FOR_THE_PARENT
from .dataset import Dataset
from .order import BatchOrder

_ALIGNMENT = 64  # bytes


class WorkerDied(RuntimeError):
    """A worker ended that nobody had ended."""


class RaisedInWorker(Exception):
    """The cause of an error that a worker sent: where it was raised there."""


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    socket: connection.Connection
    slots: Tensor  # uint8 (prefetch, bytes)


@dataclass(frozen=True)
class _Failure:
    error: Exception
    traceback: str


class Workers:
    """Micro-batches first, first + 1, ... made by `num` processes. `like` is one of them, which tells their size."""

    def __init__(
        self, dataset: Dataset, order: BatchOrder, first: int, num: int, prefetch: int, like: Sequence[Tensor]
    ) -> None:
        self._first = self._next = first
        self._num, self._prefetch = num, prefetch
        self._workers: list[_Worker] = []
        self.close = weakref.finalize(self, _end, os.getpid(), self._workers)
        self.close.atexit = False
        atexit.register(self.close)  # the later is called the earlier: before multiprocessing waits for its processes
        context = _context()
        size = max(_ALIGNMENT, sum(_room(tensor) for tensor in like))
        with _signals_held(), _no_warning_of_fork():
            for _ in range(num):
                self._workers.append(_start(context, dataset, order, prefetch, size))
        for number in range(first, first + num * prefetch):
            self._ask(number)

    def next(self) -> tuple[Tensor, ...]:
        worker, slot = self._place(self._next)
        try:
            if worker.socket not in connection.wait([worker.socket, worker.process.sentinel]):
                raise EOFError
            answer = worker.socket.recv()
        except (EOFError, OSError):
            raise self._death_of(worker) from None
        if isinstance(answer, _Failure):
            raise answer.error from RaisedInWorker(answer.traceback)
        tensors = answer if isinstance(answer, tuple) else _take(worker.slots[slot], answer)
        self._ask(self._next + self._num * self._prefetch)  # the same worker, into the slot that is free now
        self._next += 1
        return tensors

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid or 0 for worker in self._workers]

    def _ask(self, number: int) -> None:
        worker, slot = self._place(number)
        with contextlib.suppress(OSError):  # it died; next() gives what it had made, then says so
            worker.socket.send((number, slot))

    def _place(self, number: int) -> tuple[_Worker, int]:
        turn, worker = divmod(number - self._first, self._num)
        return self._workers[worker], turn % self._prefetch

    def _death_of(self, worker: _Worker) -> WorkerDied:
        worker.process.join(5)  # it is dead, or about to be
        code = worker.process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            why = ": was memory short?" if code == -signal.SIGKILL else ""
        else:
            how, why = f"ended with exit code {code}", ""
        return WorkerDied(f"data worker {worker.process.pid} {how} before micro-batch {self._next} was made{why}")


def _start(context: BaseContext, dataset: Dataset, order: BatchOrder, prefetch: int, size: int) -> _Worker:
    ours, theirs = context.Pipe()
    memory = context.RawArray("B", prefetch * size)
    arguments = (dataset, order, theirs, ours, memory, prefetch)
    process = context.Process(target=_serve, args=arguments, daemon=True)  # type: ignore[attr-defined]
    process.start()
    theirs.close()  # so that its end is seen
    return _Worker(process, ours, _slots(memory, prefetch))


def _serve(
    dataset: Dataset,
    order: BatchOrder,
    socket: connection.Connection,
    of_parent: connection.Connection,
    memory: Any,
    prefetch: int,
) -> None:
    """What a worker does until its socket is closed."""
    of_parent.close()  # or the socket would never be closed
    torch.set_num_threads(1)  # OpenMP's others were not forked; to wait for them would take for ever
    slots = _slots(memory, prefetch)
    with contextlib.suppress(EOFError, OSError):  # the parent has gone
        while True:
            number, slot = socket.recv()
            answer: Any
            try:
                tensors = dataset.batch(*order.micro_batch(number))
                fits = sum(_room(tensor) for tensor in tensors) <= slots.shape[1]
                answer = _put(slots[slot], tensors) if fits else tuple(tensors)
            except Exception as error:
                answer = _Failure(_portable(error), traceback.format_exc())
            socket.send(answer)


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


def _slots(memory: Any, prefetch: int) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8).view(prefetch, -1)


def _put(slot: Tensor, tensors: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    start = 0
    for tensor in tensors:
        slot[start : start + tensor.nbytes].view(tensor.dtype).copy_(tensor.reshape(-1))
        start += _room(tensor)
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


def _take(slot: Tensor, kinds: Sequence[tuple[torch.Size, torch.dtype]]) -> tuple[Tensor, ...]:
    """Copies: the slot is written again soon, and a batch may be kept."""
    tensors, start = [], 0
    for shape, dtype in kinds:
        size = shape.numel() * dtype.itemsize
        tensors.append(slot[start : start + size].view(dtype).view(shape).clone())
        start += _room(tensors[-1])
    return tuple(tensors)


def _portable(error: Exception) -> Exception:
    """The error, or what it says if it cannot be sent."""
    try:
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    except Exception:
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


def _end(owner: int, workers: list[_Worker]) -> None:
    if os.getpid() != owner:  # forked from it: these are not its children
        return
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.join()
        worker.process.close()
        worker.socket.close()
    workers.clear()


def _context() -> BaseContext:
    """fork where it is safe: the data set is there at once, whatever its size. macOS's own libraries do not bear it."""
    return multiprocessing.get_context("fork" if sys.platform.startswith("linux") else None)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """What is started in here inherits that these signals are held, for good: no handler of this process runs in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _no_warning_of_fork() -> Iterator[None]:
    """Python 3.12 warns of fork in a process with threads; _serve() uses none of what they might have held."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        yield
