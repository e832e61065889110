"""What prepare() has set in this process: one object, which everybody finds by current().

    runtime.current()     ops ask it who multiplies; before the first prepare() it says: torch, and nothing else is on
    runtime.start()       by prepare(): that of the prepared models, made for the first of them
    runtime.release(x)    by restore(): x is not prepared any more; the last one to go puts everything back

Each change of torch, of its threads or of our kernels is made through change(), which gets the way back at the same
time. The first value counts: a second prepare() that changes the threads again does not hide what there was before.
A model that dies without restore() leaves the process as it is; the next restore() of another still finds the way.
What is decided for a model and not for the process (its precision, which of its modules were replaced) stands in its
Preparation. The heap is kept from import on and cannot be given back (machine/memory.py).
"""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(eq=False)
class Runtime:
    """backends: who computes the products of linear layers, by dtype and kind of shape (ops/products.py); absent is
        torch. excluded: what was found to die or to be wrong here, by dtype and backend, and why.
    own_products: False if nobody but torch is to compute them.
    sums_squares: products sum the squares of the weight gradients that they write (ops/_gradient_norms.py).
    overlaps: weight gradients are computed beside the rest of backward (ops/_overlap.py).
    ties_gradients: a head tied to an embedding hands its gradient over (ops/_tied_gradients.py).
    failed_isa: the variant of our kernels that was tried here in vain.
    changes: what differs from a process without us, and what it was before.
    users: the Preparation of each model that relies on all this.
    """

    backends: dict[torch.dtype, list[str]] = field(default_factory=dict)
    excluded: dict[tuple[torch.dtype, str], str] = field(default_factory=dict)
    own_products: bool = True
    sums_squares: bool = False
    overlaps: bool = False
    ties_gradients: bool = True
    failed_isa: str = ""
    changes: dict[str, str] = field(default_factory=dict)
    users: "weakref.WeakSet[Any]" = field(default_factory=weakref.WeakSet)
    way_back: ExitStack = field(default_factory=ExitStack)

    def change(self, name: str, make: Callable[[], Callable[[], object]], was: str) -> None:
        """Calls make(), which returns what undoes it, unless the change of this name has been made already."""
        if name not in self.changes:
            self.way_back.callback(make())
            self.changes[name] = was


_idle = _current = Runtime()  # of a process in which nothing is prepared
_lock = threading.RLock()


def current() -> Runtime:
    return _current


def lock() -> Any:
    """To be held by prepare() and restore() from beginning to end."""
    return _lock


def start() -> Runtime:
    """For one more prepared model. If its preparation fails, release() it all the same."""
    global _current
    if _current is _idle:
        _current = Runtime(sums_squares=_idle.sums_squares)
    return _current


def release(user: object | None) -> Runtime:
    """`user`, a Preparation, or nobody, is done. If it was the last one, all is put back. Returns what it had used."""
    was = _current
    if user is not None:
        was.users.discard(user)
        if was.users:
            gc.collect()  # a model is a cycle: one that was dropped may still be there
    if not was.users:
        stop()
    return was


def stop() -> None:
    """Puts everything back, whoever is still prepared: those models go on, by torch's products."""
    global _current
    before, _current = _current, _idle
    _idle.sums_squares |= before.sums_squares  # optimizers go on after restore()
    if before is not _idle:
        before.way_back.close()


@contextmanager
def fresh() -> Iterator[None]:
    """A process in which nothing is prepared, for a while: what is changed inside ends with it. For tests."""
    global _idle, _current
    outside = _idle, _current
    _idle = _current = Runtime()
    try:
        yield
    finally:
        stop()
        _idle.way_back.close()
        _idle, _current = outside


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # it may have been held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
