"""Saving while training goes on: a copy of the tensors now, the files by a thread of the lowest priority.

submit() takes as long as copying takes; the buffers are kept, so that only the first time has to find memory. The
thread runs no torch operation on more than one core and holds Python's lock for moments only (durable.py).

Others on the machine may starve a thread of that priority: a saving of 0.6 GB did not end in four minutes beside ten
busy processes. That is no harm until somebody waits for it. wait() therefore raises its priority where the system
allows that, and else saves the copy itself after a moment.
"""

import copy
import os
import sys
import threading
from typing import Any

import torch
from torch import Tensor

from .store import Kind, Snapshot, Store
from .tensor_files import identity

# The lowest: Linux gives it 1.5 % of a core that training wants, too. Beside training of 50M parameters on 2 cores a
# saving of 0.6 GB to disk then takes 100 s and makes a step 4.9 % longer; at 14 it took 48 s and 9.0 %
# (benchmarks/checkpoint_overhead.py, 2 cores of an AMD EPYC).
_NICENESS = 19
_PATIENCE = 2.0  # seconds


class _TakenOver(Exception):
    """The thread's saving was given up, for somebody does it faster."""


class Saver:
    """Saves snapshots into a store, one at a time, in the background or (background=False) at once.

    In the background it holds a copy of all tensors of a snapshot, between savings also. What a saving raised is
    raised by the next submit(), wait() or close().
    """

    def __init__(self, store: Store, background: bool = True) -> None:
        self.store = store
        self._background = background
        self._buffers: dict[tuple[str, str], Tensor] = {}
        # A thread a saving: an interpreter that ends without close() waits for it, and for no longer.
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._job: tuple[Snapshot, Kind] | None = None
        self._is_low = False  # in priority
        self._take_over = threading.Event()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def submit(self, snapshot: Snapshot, kind: Kind = "step") -> None:
        """Saves the snapshot as it is now. Waits for the one before."""
        self.wait()
        if not self._background:
            self.store.save(snapshot, kind)
            return
        copied = Snapshot(snapshot.step, self._copy(snapshot.tensors), copy.deepcopy(snapshot.documents))
        self._job = copied, kind
        self._take_over.clear()
        self._thread = threading.Thread(target=self._save, args=self._job, name="fullstride-saver")
        self._thread.start()
        self._is_low = _set_niceness(self._thread, _NICENESS)

    def wait(self) -> None:
        """Returns when all is saved."""
        if self._thread is not None:
            if self._is_low and not _set_niceness(self._thread, os.getpriority(os.PRIO_PROCESS, 0)):
                self._thread.join(_PATIENCE)
                self._take_over.set()
            self._thread.join()
            self._thread = None
        job, self._job = self._job, None
        if isinstance(self._error, _TakenOver) and job is not None:
            self._error = None
            self.store.save(*job)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Waits, and gives the memory back."""
        try:
            self.wait()
        finally:
            self._buffers = {}

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @torch.no_grad()
    def _copy(self, tensors: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Copies into the buffers of the last time where they fit. One tensor under two names is copied once."""
        before, self._buffers = self._buffers, {}
        copies: dict[Any, Tensor] = {}
        result: dict[str, dict[str, Tensor]] = {}
        for part, named in tensors.items():
            result[part] = {}
            for name, tensor in named.items():
                key = identity(tensor) or (part, name)
                if key not in copies:
                    buffer = before.get((part, name))
                    if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                        buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                    copies[key] = self._buffers[part, name] = buffer.copy_(tensor.detach())
                result[part][name] = copies[key]
        return result

    def _save(self, snapshot: Snapshot, kind: Kind) -> None:
        try:
            self.store.save(snapshot, kind, self._poll)
        except BaseException as error:
            self._error = error

    def _poll(self) -> None:
        if self._take_over.is_set():
            raise _TakenOver


def _set_niceness(thread: threading.Thread, value: int) -> bool:
    """Of a thread alone, and whether that was possible. Elsewhere than on Linux its number would mean a process."""
    if sys.platform != "linux" or thread.native_id is None:
        return False
    try:
        os.setpriority(os.PRIO_PROCESS, thread.native_id, value)
    except OSError:  # anyone may lower it, few may raise it
        return False
    return True
