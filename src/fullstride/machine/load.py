"""What else the machine did while something was measured: rates of a busy minute are not those of the machine."""

import os
from pathlib import Path

_BUSY_SHARE = 0.75  # of all cores, by the load of the last minute
_STOLEN = 0.05  # of the time, by a hypervisor for other machines
_SPREAD = 0.35  # of the median call above the best; on a quiet virtual machine it is up to 0.2


class Watch:
    """From its making on."""

    def __init__(self, root: str | Path = "/") -> None:
        self._root = Path(root)
        self._load = load(self._root)
        self._before = _times(self._root)

    def busy(self, spread: float) -> str:
        """What disturbed, in words; nothing if nothing did. spread: of the timings that were taken meanwhile."""
        found = []
        if self._load > _BUSY_SHARE * _cores():
            found.append(f"load {self._load:.1f} on {_cores()} cores")
        now = _times(self._root)
        passed = now[0] - self._before[0]
        stolen = (now[1] - self._before[1]) / passed if passed > 0 else 0.0
        if stolen > _STOLEN:
            found.append(f"{stolen:.0%} of the time stolen by other virtual machines")
        if spread > _SPREAD:
            found.append(f"calls {spread:.0%} above the best")
        return ", ".join(found)


def load(root: str | Path = "/") -> float:
    """Processes that wanted a core in the last minute."""
    try:
        return float((Path(root) / "proc/loadavg").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def is_high() -> bool:
    return load() > _BUSY_SHARE * _cores()


def _cores() -> int:
    """Of the whole machine, as the load is: of a share of it nothing is known."""
    return os.cpu_count() or 1


def _times(root: Path) -> tuple[int, int]:
    """Ticks of all cores together, and those of them that were stolen."""
    try:
        fields = [int(field) for field in (root / "proc/stat").read_text().splitlines()[0].split()[1:]]
    except (OSError, ValueError, IndexError):
        return 0, 0
    return sum(fields[:8]), fields[7] if len(fields) > 7 else 0
