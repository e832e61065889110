"""The lock of a run folder: one process trains in it at a time, and a killed one holds it no longer."""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path

logger = logging.getLogger(__name__)

_LOOK = 0.05  # seconds; a look at a lock takes far less

_held: set[int] = set()  # descriptors of locked files


def _forget_locks() -> None:
    """A lock lives as long as anybody has its file open: a data worker that outlives us must not hold the folder."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_locks)


class FolderInUse(ValueError):
    """Another live process trains in this folder."""


def take(path: Path) -> int | None:
    """An open, locked file; the kernel unlocks it when the process ends, however it ends. None: no locks here."""
    file = path / "run.lock"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise ValueError(f"cannot write in the run folder {path}: {error.strerror}; training needs to") from None
    try:
        _lock(descriptor)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            holder = os.read(descriptor, 200).decode(errors="replace").strip()
            os.close(descriptor)
            raise FolderInUse(
                f"{path} is in use by {holder or 'another process'}: wait for it, stop it, or give another folder"
            ) from None
        os.close(descriptor)
        if error.errno not in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK):
            raise ValueError(f"cannot lock {file}: {error.strerror}") from None
        logger.warning("%s cannot be locked here (%s): make sure that one process trains in it", path, error.strerror)
        return None
    _held.add(descriptor)
    with contextlib.suppress(OSError):  # a full disk: only the message to others would be poorer
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return descriptor


def _lock(descriptor: int) -> None:
    """Somebody who only looks, with is_held(), is gone at the second try."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    time.sleep(_LOOK)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """Whether a live process trains in this folder, as far as locks tell. The look takes microseconds."""
    try:
        descriptor = os.open(path / "run.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: those who look do not see each other
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


def release(descriptor: int) -> None:
    """The file stays: to remove it would let two processes lock two files."""
    _held.discard(descriptor)
    os.close(descriptor)
