"""A small disk of its own: a file system in memory, mounted in a process that holds it and seen by no other.

Others reach it through /proc/<process>/root. Where a process may not mount, the test is skipped.
"""

import ctypes
import errno
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from ..train import children

# sys/mount.h of Linux
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096


class Disk:
    """`path` is where this process and its commands find the disk."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = children.start(_hold, folder, num_bytes, theirs)
        theirs.close()
        self._answer()
        self.path = Path(f"/proc/{self._process.pid}/root{folder}")

    def fill(self, leave: int) -> None:
        """Up to this many free bytes."""
        self._filler.touch()
        free = os.statvfs(self.path)
        with open(self._filler, "ab") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - leave))

    def empty(self) -> None:
        """Of what fill() wrote."""
        self._filler.unlink()

    @property
    def _filler(self) -> Path:
        return self.path / "filler"

    def make_read_only(self, folder: Path, read_only: bool = True) -> None:
        """A folder of the disk, while nobody has a file in it open. As root one can write whatever the permissions."""
        self._pipe.send((folder.relative_to(self.path), read_only))
        self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _answer(self) -> None:
        problem = self._pipe.recv()
        if problem:
            self.close()
            pytest.skip(problem)


def _hold(folder: Path, num_bytes: int, pipe: Any) -> None:
    try:
        children.mount_small_disk(folder, num_bytes)
        pipe.send(None)
        while True:
            inner, read_only = pipe.recv()
            _bind(folder / inner, read_only)
            pipe.send(None)
    except pytest.skip.Exception as skipped:
        pipe.send(str(skipped))
    except OSError as error:
        pipe.send(f"this system does not let a process change its mounts: {error.strerror}")
    except EOFError:
        pass


def _bind(folder: Path, read_only: bool) -> None:
    """A mount of the folder on itself, which can be read-only while the rest of the disk is not."""
    if not os.path.ismount(folder):
        _mount(folder, _MS_BIND)
    _mount(folder, _MS_BIND | _MS_REMOUNT | (_MS_RDONLY if read_only else 0))


def _mount(folder: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(bytes(folder), bytes(folder), None, ctypes.c_ulong(flags), None) != 0:
        number = ctypes.get_errno() or errno.EPERM
        raise OSError(number, os.strerror(number))
