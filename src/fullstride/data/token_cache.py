"""Folders of what takes long to make, each made once: written aside, sealed by a manifest, renamed."""

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from .. import durable

logger = logging.getLogger(__name__)

_MANIFEST = "manifest.json"
_ABANDONED = 24 * 3600.0  # seconds, after which nobody is at work in a folder any more
_BLOCK = 1 << 20


def get(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, made if it is not there or not as it was made. Several processes may ask at once."""
    wrong = _what_is_wrong(folder)
    if wrong is None:
        return folder
    if folder.exists():
        logger.warning("%s: %s; it is made again", folder, wrong)
    with durable.naming(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder.parent)
        aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        make(aside)
        with durable.naming(folder):
            _seal(aside)
            _put(aside, folder)
    finally:
        durable.remove(aside)
    return folder


def write(path: Path, parts: Iterable[bytes]) -> None:
    with durable.naming(path):
        durable.write(path, parts)


def sha256_of(path: Path) -> bytes:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.digest()


def _what_is_wrong(folder: Path) -> str | None:
    try:
        files = json.loads((folder / _MANIFEST).read_bytes())["files"]
        for name, (size, sha256) in files.items():
            path = folder / name
            if path.stat().st_size != size or sha256_of(path).hex() != sha256:
                return f"{name} is not as it was written"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{_MANIFEST} is damaged"
    return None


def _seal(folder: Path) -> None:
    files = {path.name: (path.stat().st_size, sha256_of(path).hex()) for path in sorted(folder.iterdir())}
    durable.write(folder / _MANIFEST, [json.dumps({"files": files}).encode()])
    durable.sync(folder)


def _put(aside: Path, folder: Path) -> None:
    """What another process has put there meanwhile is as good, if it is whole."""
    for _ in range(10):
        with contextlib.suppress(OSError):
            os.rename(aside, folder)
            durable.sync(folder.parent)
            return
        if _what_is_wrong(folder) is None:
            return
        broken = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".partial", dir=folder.parent))
        with contextlib.suppress(FileNotFoundError):  # others may be at the same
            os.rename(folder, broken / "broken")
        durable.remove(broken)
    raise OSError(f"{folder} cannot be replaced: other processes are at it")


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob("*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED:
                durable.remove(path)
