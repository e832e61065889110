"""How busy the cores were that this process may use, and how much of that was its own.

Linux counts the ticks of each logical CPU by what it did (/proc/stat), whoever it was for, and the CPU time of each
process. Nobody counts both at once: what of one core's time was ours is not known, only what of all of them was.
A core that a hypervisor took away was not busy with anything of this machine, and counts as idle.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

_LEAST_TICKS = 10  # of 10 ms each, mostly: fewer would give a share in steps of more than a tenth


class Use(NamedTuple):
    """Of the time since the last reading."""

    cores: dict[int, float]
    """Share of it in which each logical CPU that the process may use was busy. Empty where the system does not tell."""
    own: float
    """Cores' worth of CPU time that the process took, with its children: 2.0 if it kept two of them busy."""


class CoreUse:
    """From its making on."""

    def __init__(self, root: str | Path = "/") -> None:
        self._root = Path(root)
        self._ticks = _ticks(self._root)
        self._own, self._wall = _own_seconds(self._root), time.perf_counter()

    def read(self) -> Use | None:
        """None if so little time has passed that there is nothing to tell; the next reading then has it."""
        ticks, own, wall = _ticks(self._root), _own_seconds(self._root), time.perf_counter()
        passed = {cpu: total - self._ticks[cpu][1] for cpu, (_, total) in ticks.items() if cpu in self._ticks}
        seconds = wall - self._wall
        if (passed and max(passed.values()) < _LEAST_TICKS) or seconds <= 0.0:
            return None
        shares = {cpu: (ticks[cpu][0] - self._ticks[cpu][0]) / count for cpu, count in passed.items() if count > 0}
        found = Use(
            {cpu: min(1.0, max(0.0, share)) for cpu, share in shares.items()},
            max(0.0, own - self._own) / seconds,
        )
        self._ticks, self._own, self._wall = ticks, own, wall
        return found


def _ticks(root: Path) -> dict[int, tuple[int, int]]:
    """Busy ones and all, of each logical CPU that this process may use."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    found = {}
    try:
        for line in (root / "proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name[3:].isdecimal() and (allowed is None or int(name[3:]) in allowed):
                user, nice, system, idle, iowait, irq, softirq, stolen = map(int, (fields + ["0"] * 8)[:8])
                busy = user + nice + system + irq + softirq
                found[int(name[3:])] = busy, busy + idle + iowait + stolen
    except (OSError, ValueError):
        return {}
    return found


def _own_seconds(root: Path) -> float:
    """CPU time of this process, of its children that are gone, and of those that live: workers that load data."""
    gone = os.times()
    return time.process_time() + gone.children_user + gone.children_system + _living_children(root)


def _living_children(root: Path) -> float:
    ticks = 0
    try:
        tasks = list((root / "proc/self/task").iterdir())
    except OSError:
        return 0.0
    for task in tasks:
        try:
            for child in (task / "children").read_text().split():
                after_name = (root / "proc" / child / "stat").read_text().rpartition(")")[2].split()
                ticks += int(after_name[11]) + int(after_name[12])  # utime and stime
        except (OSError, ValueError, IndexError):  # a thread or a child that has just ended
            continue
    return ticks / os.sysconf("SC_CLK_TCK")
