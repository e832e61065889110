"""Finds figures in documents that no result holds. tests/test_readme.py asks.

A measured figure is a number with a unit of measurement: 2.37x, [2.32..2.42], 150 ms, 61 %, 1014 MiB, 12 minutes. In a
block that render.py wrote it must be one that it would write today, and be in a file of results, to the digits shown:
the renderer is not trusted alone. Elsewhere it must be one that a block of the same document shows: prose may repeat
what a table says, and nothing more. Text between `<!-- by hand -->` and
`<!-- end by hand -->` is left out; it has to name the command, the date and the commit instead.
"""

import re
import statistics
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from .render import BLOCK, rendered
from .result_files import File

_NUMBER = r"(?<![\w.,])\d[\d,]*(?:\.\d+)?"
_UNITS = {
    "x": r"x(?!\w)| ?(?:times|-fold)\b",
    "ms": r" ?(?:ms|milliseconds?)\b",
    "s": r" ?(?:s|sec|seconds?)\b",
    "min": r" ?(?:min|minutes?)\b",
    "h": r" ?(?:h|hours?)\b",
    "GFLOP/s": r" ?[GT]FLOP/?s\b",
    "GB/s": r" ?GB/s",
    "MiB": r" ?[KMG]i?B\b(?!/s)",
    "%": r" ?(?:%|percent\b|per cent\b)",
    "/s": r" ?(?:tokens|samples|images)(?:/s\b| (?:a|per) second\b)",
}
_FIGURE = re.compile(f"({_NUMBER})(?:" + "|".join(f"({pattern})" for pattern in _UNITS.values()) + ")")
_RANGE = re.compile(r"\[(\d+(?:\.\d+)?)\.\.(\d+(?:\.\d+)?)\]")
_BY_HAND = re.compile(r"<!-- by hand -->(.*?)<!-- end by hand -->", re.DOTALL)
_SOURCE = re.compile(r"(?=.*`[^`]+`)(?=.*\d{4}-\d\d-\d\d)(?=.*commit [0-9a-f]{7})", re.DOTALL)


class Figure(NamedTuple):
    text: str  # as written
    number: str
    unit: str  # "range": an end of a spread, in the unit of what stands before it


def find(text: str) -> list[Figure]:
    found = []
    for match in _FIGURE.finditer(text):
        unit = next(name for name, group in zip(_UNITS, match.groups()[1:], strict=True) if group is not None)
        found.append(Figure(match[0].strip(), match[1].replace(",", ""), unit))
    for match in _RANGE.finditer(text):
        found += [Figure(match[0], number, "range") for number in match.groups()]
    return found


def problems(text: str, files: list[File], rules: Collection[str] = ()) -> list[str]:
    """A sentence for each figure without a source. rules: figures of the prose that nobody measured, such as goals."""
    pool = Pool(files)
    found, shown = [], set()
    for match, today in zip(BLOCK.finditer(text), BLOCK.finditer(rendered(text, files)), strict=True):
        figures_today = find(today[3])
        for figure in find(match[3]):
            shown.add((float(figure.number), figure.unit))
            if figure not in figures_today or not pool.holds(figure):
                found.append(f"{figure.text}, in block {match[2]!r}: no result file holds it; run make performance")
    for match in _BY_HAND.finditer(text):
        if not _SOURCE.search(match[1]):
            start = match[1].strip()[:40]
            found.append(f"by hand, {start!r}: expected a `command`, a date such as 2026-11-17 and 'commit 0123abc'")
    for figure in find(_BY_HAND.sub("", BLOCK.sub("", text))):
        if (float(figure.number), figure.unit) not in shown and figure.text not in rules:
            found.append(f"{figure.text}: no table of this document shows it; leave it out, or take it and render it")
    return found


class Pool:
    """Every number of the results by the unit in which it would be shown."""

    def __init__(self, files: list[File]) -> None:
        self._values: dict[str, set[float]] = {unit: set() for unit in (*_UNITS, "range")}
        for file in files:
            for part in file.parts:
                for key, value in _leaves("", part):
                    self._add(key, value)

    def holds(self, figure: Figure) -> bool:
        digits = len(figure.number.partition(".")[2])
        return any(f"{value:.{digits}f}" == figure.number for value in self._values[figure.unit])

    def _add(self, key: str, value: float) -> None:
        for unit, shown in _as_shown(key, value):
            self._values[unit].add(shown)
            self._values["range"].add(shown)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, float]]:
    """(names down to it, number); the median of a list stands for the list as well."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(f"{key}/{name}", item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(key, item)
        if value and all(isinstance(item, float) for item in value):
            yield key, statistics.median(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield key, value


def _as_shown(key: str, value: float) -> Iterator[tuple[str, float]]:
    names = key.split("/")
    if "ratio" in names or "gain" in names or names[-1] == "ratios":
        yield "x", value
    elif names[-1] in ("milliseconds", "ms") or any(name.endswith("_ms") or "_ms_" in name for name in names):
        yield "ms", value
    elif any(name in ("share", "share_of_peak", "share_of_bandwidth", "data_share", "overhead") for name in names):
        yield "%", 100 * value
    elif names[-1].endswith("_bytes"):
        yield "MiB", int(value) >> 20
    elif names[-1] == "gflops":
        yield "GFLOP/s", value
    elif names[-1] == "gigabytes_per_second":
        yield "GB/s", value
    elif names[-1] == "units_per_second":
        yield "/s", value
    elif names[-1] == "hours":
        yield "h", value
    elif names[-1] == "seconds" or names[-1].endswith("_seconds"):
        yield "s", value
