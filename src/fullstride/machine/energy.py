"""Energy that the CPU packages took, by the counters (RAPL) that Linux shows in /sys/class/powercap.

    joules = sum over packages of (counter now - counter at start, modulo its range) / 1e6

The counters are those of whole packages: cores, caches and memory controllers, whoever uses them, on Intel and on AMD
since Zen (the driver's name, intel-rapl, is the same). Parts of a package (intel-rapl:0:0) are in its sum already;
"psys", the whole board, and intel-rapl-mmio, a second view of the same counters, would count twice. Since Linux 5.10
only root may read them unless the administrator says otherwise, and virtual machines mostly have none.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_FOLDER = "sys/class/powercap"


@dataclass
class _Package:
    counter: Path
    range_uj: int  # the counter starts again at 0 beyond it
    last_uj: int
    total_uj: int = 0


class Meter:
    """Joules since it was made; see label for whether there is anything to read.

    A counter that started again is made good once. It does so every few minutes on a large CPU (65 kJ at 280 W: four
    minutes), so read() must be called at least once a minute for the sum to be right.
    """

    def __init__(self, root: str | Path = "/") -> None:
        self.label = "measured"  # or "unavailable: why"
        self._packages: list[_Package] = []
        try:
            self._packages = _find_packages(Path(root))
        except _Unavailable as error:
            self.label = f"unavailable: {error}"

    def read(self) -> float | None:
        """Joules since the start. None where that is not known, which is not the same as 0."""
        for package in self._packages:
            try:
                now_uj = _number(package.counter)
            except _Unavailable as error:  # a sum without this package would be wrong from here on
                self.label = f"unavailable: {error}"
                self._packages = []
                return None
            passed = now_uj - package.last_uj
            package.total_uj += passed if passed >= 0 else passed + package.range_uj
            package.last_uj = now_uj
        if not self._packages:
            return None
        total_uj = sum(package.total_uj for package in self._packages)
        # Some virtual machines show counters that never move. Real ones do, about every millisecond.
        if total_uj == 0:
            self.label = "unavailable: the counters stand still"
            return None
        self.label = "measured"
        return total_uj / 1e6


class _Unavailable(Exception):
    """One line: why energy cannot be read."""


def _find_packages(root: Path) -> list[_Package]:
    folder = root / _FOLDER
    if not folder.is_dir():
        raise _Unavailable(f"this system has no {_shown(folder)}")
    zones = [zone for zone in sorted(folder.iterdir()) if re.fullmatch(r"intel-rapl:\d+", zone.name)]
    packages = [zone for zone in zones if _text(zone / "name").startswith("package")]
    if not packages:
        raise _Unavailable(f"no CPU package in {_shown(folder)}")
    return [
        _Package(zone / "energy_uj", _number(zone / "max_energy_range_uj"), _number(zone / "energy_uj"))
        for zone in packages
    ]


def _number(file: Path) -> int:
    text = _text(file)
    if not text.isdecimal():
        raise _Unavailable(f"{_shown(file)} holds {text[:20]!r}, not a number")
    return int(text)


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except PermissionError:
        raise _Unavailable(f"only root may read {_shown(file)} (sudo chmod a+r {_shown(file)})") from None
    except OSError as error:
        raise _Unavailable(f"cannot read {_shown(file)}: {error.strerror}") from None


def _shown(path: Path) -> str:
    """Without the root that tests give."""
    return "/" + path.as_posix()[path.as_posix().index(_FOLDER) :]
