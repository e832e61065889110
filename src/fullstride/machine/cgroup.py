"""What the control groups of this process allow it: CPU time and memory.

A limit may sit on any group between the process's own and the top, in either version of the file system or in both
at once (a hybrid system), and counts in all of them: the smallest one holds.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

_NO_MEMORY_LIMIT = 1 << 60  # version 1 writes the largest multiple of a page instead of "max"


def cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time, such as 1.5, or None for no limit."""
    return _smallest(root, "cpu", _quota_v1, _quota_v2)


def memory_limit(root: Path) -> int | None:
    """Bytes, or None for no limit."""
    limit = _smallest(root, "memory", _memory_v1, _memory_v2)
    return None if limit is None else int(limit)


def memory_left(root: Path) -> int | None:
    """limit - (usage - file pages not used lately), in bytes, where that is least; None for no limit.

    Such pages are given up as soon as somebody needs the memory.
    """
    left = _smallest(root, "memory", _memory_left_v1, _memory_left_v2)
    return None if left is None else max(0, int(left))


Reader = Callable[[Path], float | None]


def _smallest(root: Path, controller: str, v1: Reader, v2: Reader) -> float | None:
    limits = [(v2 if version == 2 else v1)(folder) for version, folder in _groups(root, controller)]
    return min((limit for limit in limits if limit is not None), default=None)


def _groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, folder) of every group this process is in, from its own up to where the file system is mounted."""
    own: dict[str, PurePosixPath] = {}  # controller, "" for version 2 -> path of the group
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), PurePosixPath(group)))
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, system = line.partition(" - ")
        kind, _, options = (*system.split(" ", 2), "", "")[:3]
        if kind == "cgroup2" and "" in own:
            version, path = 2, own[""]
        elif kind == "cgroup" and controller in options.split(",") and controller in own:
            version, path = 1, own[controller]
        else:
            continue
        top, point = (PurePosixPath(_unescape(field)) for field in mount.split(" ")[3:5])
        # In a container the mount shows one group as its top, and the process's path may lie outside: then only
        # the mounted group itself can be read.
        inside = path.relative_to(top) if path.is_relative_to(top) and ".." not in path.parts else PurePosixPath()
        base = root / point.relative_to("/")
        for part in (inside, *inside.parents):
            yield version, base / part


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _quota_v2(folder: Path) -> float | None:
    for line in _lines(folder / "cpu.max"):
        quota, _, period = line.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100000)
    return None


def _memory_v1(folder: Path) -> float | None:
    limit = _number(folder / "memory.limit_in_bytes")
    return None if limit is None or limit >= _NO_MEMORY_LIMIT else limit


def _memory_v2(folder: Path) -> float | None:
    return _number(folder / "memory.max")  # "max" is no number


def _memory_left_v1(folder: Path) -> float | None:
    usage = _number(folder / "memory.usage_in_bytes")
    return _left(_memory_v1(folder), usage, folder, "total_inactive_file")  # groups below it among them, as in usage


def _memory_left_v2(folder: Path) -> float | None:
    return _left(_memory_v2(folder), _number(folder / "memory.current"), folder, "inactive_file")


def _left(limit: float | None, usage: int | None, folder: Path, key: str) -> float | None:
    if limit is None:
        return None
    idle = [int(line.split()[1]) for line in _lines(folder / "memory.stat") if line.startswith(f"{key} ")]
    return limit - max(0, (usage or 0) - sum(idle))


def _number(file: Path) -> int | None:
    text = "".join(_lines(file)).strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _unescape(field: str) -> str:
    r"""mountinfo writes a space as \040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
