"""Files that are on the disk when they are said to be, and their checksums.

Reading and writing go by large pieces, and Python's lock is free meanwhile. Each time a thread of low priority takes it
again, training may have to wait until that thread is given a core; on a machine with other work that can be long.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

try:
    from fcntl import F_FULLFSYNC, fcntl  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # only macOS has it: fsync there does not reach the disk
    F_FULLFSYNC = None

PIECE = 32 << 20

Poll = Callable[[], None]
"""Called before each piece, from where it may raise: what takes long can be given up."""


class Sum(NamedTuple):
    """What a file is known by."""

    bytes: int
    sha256: str


def no_poll() -> None:
    """Nobody wants it to be given up."""


def write(path: Path, pieces: Iterable[bytes | memoryview], poll: Poll = no_poll) -> Sum:
    """Writes a new file and returns when the disk has it."""
    digest, size = hashlib.sha256(), 0
    with open(path, "xb", buffering=0) as file:
        for piece in pieces:
            view = memoryview(piece)
            size += len(view)
            for start in range(0, len(view), PIECE):
                poll()
                part = view[start : start + PIECE]
                digest.update(part)
                while part:  # a disk that fills up takes a part of it, and refuses the next
                    part = part[file.write(part) :]
        _sync(file.fileno())
    return Sum(size, digest.hexdigest())


class Reader:
    """A file read from its start to its end, hashed on the way."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115, closed by __exit__
        self._digest = hashlib.sha256()
        self.left = os.fstat(self._file.fileno()).st_size  # bytes
        self._size = 0

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fill(self, view: memoryview) -> None:
        """The next bytes, as many as `view` takes."""
        while view:
            count = self._file.readinto(view[:PIECE])
            if not count:
                raise EOFError("the file ends too early")
            self._digest.update(view[:count])
            view = view[count:]
            self._size += count
            self.left -= count

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise EOFError(f"expected {size} bytes more, got {self.left}")
        data = bytearray(size)
        self.fill(memoryview(data))
        return bytes(data)

    def finish(self, poll: Poll = no_poll) -> Sum:
        """What was read and what is left."""
        buffer = memoryview(bytearray(min(PIECE, self.left)))
        while self.left > 0:
            poll()
            self.fill(buffer[: self.left])
        return Sum(self._size, self._digest.hexdigest())

    def forget_cached(self) -> None:
        """Lets the system read the file from the disk, not from the memory in which it was written."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # advice: some file systems have no use for it
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(path: Path, poll: Poll = no_poll) -> Sum:
    """The size and the checksum that a file has on the disk."""
    with Reader(path) as reader:
        reader.forget_cached()
        return reader.finish(poll)


def replace(path: Path, content: bytes, alone: bool = False) -> Path:
    """Writes a file whole or not at all, in place of what is there, and returns when the disk has it.

    alone: no other process writes it, so that what a killed one left is known by its name.
    """
    partial = path.with_name(f"{path.name}.partial" if alone else f".{path.name}.{os.getpid()}.partial")
    with naming(path):
        partial.unlink(missing_ok=True)
        try:
            write(partial, [content])
            os.replace(partial, path)
            sync(path.parent)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Says what could not be written: the system's error at a full disk does not."""
    try:
        yield
    except OSError as error:
        failure = type(error)(f"cannot write {path}: {error.strerror or error}")
        failure.errno = error.errno
        raise failure from error


def sync(path: Path) -> None:
    """Makes a file last, or the names in a folder: of files created in it, and renamed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """A folder with all in it, a file, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(descriptor: int) -> None:
    if F_FULLFSYNC is not None:
        with contextlib.suppress(OSError):  # not on every file system
            fcntl(descriptor, F_FULLFSYNC)
            return
    os.fsync(descriptor)
