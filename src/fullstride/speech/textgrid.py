"""Praat's TextGrid files, as the Montreal Forced Aligner writes them: what is said when.

The long form and the short one differ in what Praat itself passes over: only numbers, strings in quotes and <flags>
that stand free count. A damaged file is one line that names it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .spoken import SILENCE

_SILENT = frozenset(("", "sil", "sp", "spn", "<eps>", SILENCE))
_TOKEN = re.compile(r'"((?:[^"]|"")*)"|(?<!\S)(-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?!\S)|(?<!\S)<(\w+)>(?!\S)')
_SLACK = 1e-4  # seconds by which neighbours may miss each other: times are written rounded


@dataclass(frozen=True)
class Interval:
    """What is said from `start` to `end`, in seconds."""

    start: float
    end: float
    text: str


def read(path: Path) -> dict[str, list[Interval]]:
    """The intervals of every tier, by its name. Tiers of points are passed over."""
    tokens = _Tokens(path, _decode(path))
    if tokens.string() != "ooTextFile" or tokens.string() != "TextGrid":
        raise ValueError(f"{path}: expected a TextGrid of Praat, got another of its files; save it as TextGrid")
    tokens.number(), tokens.number()  # where all of it begins and ends
    tiers: dict[str, list[Interval]] = {}
    for _ in range(tokens.count() if tokens.flag() == "exists" else 0):
        kind, name = tokens.string(), tokens.string()
        tokens.number(), tokens.number()
        intervals = []
        for _ in range(tokens.count()):
            if kind == "IntervalTier":
                intervals.append(Interval(tokens.number(), tokens.number(), tokens.string().strip()))
            else:
                tokens.number(), tokens.string()
        if kind == "IntervalTier":
            _check(path, name, intervals)
            tiers[name] = intervals
    return tiers


def phonemes(path: Path) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """The tier `phones`: every phoneme and its end in seconds. Gaps are silence, and neighbouring silences are one."""
    names: list[str] = []
    ends: list[float] = []
    for interval in _tier(path, read(path), "phones"):
        if interval.start > (ends[-1] if ends else 0.0) + _SLACK:
            _append(names, ends, SILENCE, interval.start)
        name = SILENCE if interval.text.lower() in _SILENT else interval.text
        _append(names, ends, name, interval.end)
    if all(name == SILENCE for name in names):
        raise ValueError(f"{path}: expected phonemes in the tier phones, got silence alone; align this file again")
    return tuple(names), np.array(ends)


def pronunciations(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Every word of the tier `words`, in lower case, with the phonemes that lie in it."""
    tiers = read(path)
    phones = [phone for phone in _tier(path, tiers, "phones") if phone.text.lower() not in _SILENT]
    said = []
    for word in _tier(path, tiers, "words"):
        if word.text.lower() not in _SILENT | {"<unk>"}:
            inside = [phone.text for phone in phones if word.start <= (phone.start + phone.end) / 2 < word.end]
            if inside:
                said.append((word.text.lower(), tuple(inside)))
    return said


class _Tokens:
    def __init__(self, path: Path, text: str) -> None:
        self._path, self._found = path, _TOKEN.finditer(text)

    def string(self) -> str:
        return self._next(1, "a text in quotes").replace('""', '"')

    def number(self) -> float:
        return float(self._next(2, "a number"))

    def flag(self) -> str:
        return self._next(3, "<exists>")

    def count(self) -> int:
        number = self.number()
        if number < 0 or number != int(number):
            raise ValueError(f"{self._path}: expected how many there are, got {number}; the file is damaged")
        return int(number)

    def _next(self, group: int, expected: str) -> str:
        found = next(self._found, None)
        if found is None or found[group] is None:
            got = "the end of the file" if found is None else found[0][:40]
            raise ValueError(f"{self._path}: expected {expected}, got {got}; it is no TextGrid, or damaged")
        return found[group]


def _decode(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        return content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8 or UTF-16, got other bytes at {error.start}") from error


def _check(path: Path, name: str, intervals: list[Interval]) -> None:
    before = 0.0
    for interval in intervals:
        if not before - _SLACK <= interval.start <= interval.end:
            raise ValueError(
                f"{path}: expected intervals in order in the tier {name}, got {interval.start} to {interval.end} after "
                f"{before}; align this file again"
            )
        before = interval.end


def _tier(path: Path, tiers: dict[str, list[Interval]], name: str) -> list[Interval]:
    """By its name, or as `speaker - phones` if there is one speaker."""
    found = [key for key in tiers if key == name] or [key for key in tiers if key.endswith(f" - {name}")]
    if len(found) != 1:
        raise ValueError(f"{path}: expected one tier {name}, got {', '.join(tiers) or 'none'}; align it with MFA")
    return tiers[found[0]]


def _append(names: list[str], ends: list[float], name: str, end: float) -> None:
    if name == SILENCE and names and names[-1] == SILENCE:
        ends[-1] = end
    else:
        names.append(name)
        ends.append(end)
