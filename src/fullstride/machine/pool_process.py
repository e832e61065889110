"""What a process of a pool begins with: signals are for its parent, and it does not outlive it."""

import multiprocessing
import os
import signal
import threading

# Ctrl-C and many schedulers signal the whole process group; it is the parent that saves, then ends its pool.
_FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def begin() -> None:
    """The initializer of a ProcessPoolExecutor, or the first line of one."""
    for signum in _FOR_THE_PARENT:
        signal.signal(signum, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A process of a pool whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
