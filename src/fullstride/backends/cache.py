"""What was found out about this machine, kept in a file: `fullstride cache` shows it, `fullstride cache clear` forgets.

    $FULLSTRIDE_CACHE/machine.json, else $XDG_CACHE_HOME/fullstride/machine.json, else ~/.cache/fullstride/machine.json

One entry for each set of conditions that findings hold for: CPU and its features, torch, what limits its libraries,
our build, threads. The file is replaced as a whole, so that a reader sees the old or the new one; a lock file beside it
lets processes that start together measure once. A file that is damaged or of another version is as good as none, and
one that cannot be written is made up for by memory, until the process ends.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from .. import __version__, durable
from ..machine import cpu
from .trials.parent import Rates

_VERSION = 2
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
_WAIT, _POLL = 60.0, 0.1  # seconds that another process is waited for: more than it needs


@dataclass(frozen=True)
class Findings:
    """What became of each candidate, and how fast the products are."""

    verdicts: dict[str, str] = field(default_factory=dict)  # by name: see trials/verdicts.py
    rates: Rates = field(default_factory=dict)
    taken: float = 0.0  # when, in seconds since 1970
    busy: str = ""  # what else the machine did meanwhile; nothing if it was quiet
    spread: float = 0.0
    trouble: str = ""  # why not all of it was tried


_here: dict[tuple[str, str], Findings] = {}
"""What only this process knows: what could not be written, or not be found out as a whole."""


def key(threads: int) -> str:
    """What findings hold for, as a line that people can read."""
    import torch  # here: looking at the cache need not wait for it

    from .. import _native

    machine = cpu.describe()
    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if os.environ.get(name)]
    parts = [
        f"{machine.model} (features {_digest(_flags().encode())})", f"{_native.isa()} kernels {_build()}",
        f"{threads} threads", f"torch {torch.__version__}", f"fullstride {__version__}", *limits,
    ]  # fmt: skip
    return ", ".join(parts)


def recall(threads: int) -> Findings | None:
    """What is kept for these conditions, if it makes sense."""
    place, name = file(), key(threads)
    return _here.get((str(place), name)) or _parse(_entries(place).get(name))


def keep(findings: Findings, threads: int) -> str:
    """Beside what is kept for other conditions. Says why, if nothing can be written.

    Of findings that had trouble, what they did find is written: the next process goes on from there.
    """
    place, name = file(), key(threads)
    trouble = ""
    if findings.verdicts:
        trouble = _write(place, _entries(place) | {name: asdict(findings) | {"trouble": ""}})
    if trouble or findings.trouble:
        _here[str(place), name] = findings
    return trouble


def clear() -> list[Path]:
    """Forgets everything. The files that were removed."""
    _here.clear()
    place = file()
    if place is None:
        return []
    removed = []
    for path in (place, place.with_name("products.json")):  # as earlier versions called it
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            removed.append(path)
    with contextlib.suppress(OSError):
        _lock_file(place).unlink()
    return removed


def entries() -> dict[str, Findings]:
    """All that is kept, by what it holds for."""
    parsed = {name: _parse(entry) for name, entry in _entries(file()).items()}
    return {name: findings for name, findings in parsed.items() if findings is not None}


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Waits while another process measures: it measures for this one, too. No lock to be had is no error."""
    place = file()
    try:
        import fcntl

        if place is None:
            raise OSError("no folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(_lock_file(place), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError):
        yield
        return
    try:
        deadline = time.monotonic() + _WAIT
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_POLL)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(handle)


def file() -> Path | None:
    """Where it is kept; None for a user without a home."""
    folder = os.environ.get("FULLSTRIDE_CACHE")
    if folder:
        return Path(folder) / "machine.json"
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "fullstride" / "machine.json"


def _lock_file(place: Path) -> Path:
    return place.with_name("machine.lock")


def _entries(place: Path | None) -> dict[str, Any]:
    try:
        content = json.loads(place.read_text()) if place else None
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        return {}
    found = content.get("entries")
    return found if isinstance(found, dict) else {}


def _parse(entry: object) -> Findings | None:
    """The findings, None if they are not of the form that asdict() gave them."""
    if not isinstance(entry, dict) or entry.keys() != Findings.__dataclass_fields__.keys():
        return None
    shapes = [by_shape for by_shape in _values(entry["rates"]) if isinstance(by_shape, dict)]
    numbers = [rate for by_shape in shapes for rates in _values(by_shape) for rate in _values(rates)]
    numbers += [entry["taken"], entry["spread"]]
    texts = [*_values(entry["verdicts"]), entry["busy"], entry["trouble"]]
    sound = all(isinstance(entry[name], dict) for name in ("rates", "verdicts")) and len(shapes) == len(entry["rates"])
    sound = sound and all(isinstance(rates, dict) for by_shape in shapes for rates in by_shape.values())
    sound = sound and all(isinstance(text, str) for text in texts)
    sound = sound and all(isinstance(x, int | float) and math.isfinite(x) and x >= 0 for x in numbers)
    return Findings(**entry) if sound else None


def _values(mapping: object) -> list[Any]:
    return list(mapping.values()) if isinstance(mapping, dict) else []


def _write(place: Path | None, content: dict[str, Any]) -> str:
    if place is None:
        return "there is no home folder; set FULLSTRIDE_CACHE to a folder that can be written"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        durable.replace(place, json.dumps({"version": _VERSION, "entries": content}, indent=2).encode())
    except OSError as error:
        return f"{place} cannot be written ({os.strerror(error.errno or 0)}); set FULLSTRIDE_CACHE to a folder that can"
    return ""


@cache
def _build() -> str:
    """A digest of the kernel library: one that was built anew is another candidate."""
    from .. import _native

    try:
        return _digest(Path(_native.library()._name).read_bytes()) if _native.available() else "none"
    except OSError:
        return "unknown"


@cache
def _flags() -> str:
    """All that the CPU shows, as the system names it: a microcode or a hypervisor can take some of it away."""
    with contextlib.suppress(OSError):
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return " ".join(name for name, present in cpu.describe().features.items() if present)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]
