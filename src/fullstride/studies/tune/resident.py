"""How much memory a process and those it has started hold, and how much they may. From /proc; elsewhere nobody tells
what is held or free, and the size of the machine is all that estimates can be compared with.

    held = resident pages of the process + what its descendants have alone

Data workers are forks: most of what they show is the memory of the process they come from.
"""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from ...machine import cgroup, memory

SHARE = 0.9  # of what is available when it begins
_LOOK, _LONGEST_END = 0.01, 10.0  # seconds
_PAGE = os.sysconf("SC_PAGE_SIZE")


def limit(root: str | Path = "/") -> int | None:
    """Bytes that the trials may hold; without /proc a share of the whole machine; None where not even that is known."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _read(Path(root) / "proc/meminfo"), re.MULTILINE)
    if found is None:
        size = _physical()
        return None if size is None else int(SHARE * size)
    most = memory.memory_bytes(root) - (memory.resident_bytes(root) or 0)
    left = cgroup.memory_left(Path(root))  # a control group may allow less, and others of it hold some of that
    return int(SHARE * min(int(found[1]) * 1024, most, most if left is None else left))


def is_told() -> bool:
    """Whether it can be known what a process holds."""
    return held(os.getpid()) > 0


def held(pid: int) -> int:
    """Bytes; 0 of a process that is gone."""
    return _resident(pid) + sum(_alone(child) for child in descendants(pid))


def wait_until_freed(pids: Sequence[int]) -> None:
    """Until processes that were killed hold nothing: a large one takes a while to give its memory back."""
    deadline = time.monotonic() + _LONGEST_END
    while any(_resident(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(_LOOK)


def descendants(pid: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, _read(file).split()):
            found += [child, *descendants(child)]
    return found


def _physical() -> int | None:
    try:
        num_pages = os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    return num_pages * _PAGE if num_pages > 0 else None


def _resident(pid: int) -> int:
    fields = _read(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * _PAGE if fields else 0


def _alone(pid: int) -> int:
    sizes = re.findall(r"^Private_\w+:\s*(\d+) kB", _read(Path(f"/proc/{pid}/smaps_rollup")), re.MULTILINE)
    return sum(map(int, sizes)) * 1024 if sizes else _resident(pid)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
