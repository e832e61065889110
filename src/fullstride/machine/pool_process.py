"""Processes of a pool: new ones, not forks, for which signals are their parent's, and which do not outlive it.

New ones, because threads of torch, and locks that they hold, are not copied by a fork. Python would run the user's
script once more in each of them, unless it has a main guard; what is sent here is found by import, so these do not.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any

# Ctrl-C and many schedulers signal the whole process group; it is the parent that saves, then ends its pool.
FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

_lock = threading.Lock()


def executor(count: int, initializer: Callable[[], object] | None = None) -> ProcessPoolExecutor:
    """A pool of `count` such processes. initializer: called once in each."""
    return ProcessPoolExecutor(count, mp_context=_Context(), initializer=_begin, initargs=(initializer,))


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _without_script():
            return SpawnProcess._Popen(process_obj)


class _Context(SpawnContext):
    Process = _Process


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """While a process is started, which is told what to run as __main__."""
    with _lock:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script


def _begin(initializer: Callable[[], object] | None) -> None:
    for signum in FOR_THE_PARENT:
        signal.signal(signum, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer()


def _end_with_parent() -> None:
    """A process of a pool whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
