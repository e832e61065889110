"""Finds figures in documents that no result holds. tests/test_readme.py asks.

A measured figure is a number with a unit of measurement: 2.37x, [2.32..2.42], 150 ms, 61 %, 1014 MiB, 12 minutes. In a
block that render.py wrote it must be one that it would write today, and be in a file of results, to the digits shown:
the renderer is not trusted alone. Elsewhere it must be one that a block of the same document shows: prose may repeat
what a table says, and nothing more. Text between `<!-- by hand -->` and
`<!-- end by hand -->` is left out; it has to name the command, the date and the commit instead. So are the claims that
block `claims` quotes: their figures are others'.
"""

import re
import statistics
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from .claim_tables import without_quotes
from .kernel_tables import parameters_per_second
from .render import BLOCK, rendered
from .result_files import File
from .step_rows import units_per_second

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
    "/s": r" ?(?:tokens|samples|images|frames|pairs)(?:/s\b| (?:a|per) second\b)",
    "parameters/s": r" ?G parameters/s",
    "nats": r" ?nats\b",
    "points": r" ?points\b",
}
_FIGURE = re.compile(f"({_NUMBER})(?:" + "|".join(f"({pattern})" for pattern in _UNITS.values()) + ")")
_IN = "in "  # before the unit that a figure names itself, among the names down to it
_RANGE = re.compile(r"\[-?(\d+(?:\.\d+)?)\.\.-?(\d+(?:\.\d+)?)\]")  # signs are not looked at
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
        for figure in find(without_quotes(match[3])):
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
                for names, value in _leaves((), part):
                    for unit, shown in _as_shown(names, value):
                        self._add(unit, shown)
                for unit, shown in _derived(part):
                    self._add(unit, shown)

    def holds(self, figure: Figure) -> bool:
        digits = len(figure.number.partition(".")[2])
        return any(f"{value:.{digits}f}" == figure.number for value in self._values[figure.unit])

    def _add(self, unit: str, value: float) -> None:
        self._values[unit].add(abs(value))
        self._values["range"].add(abs(value))


Names = tuple[str, ...]  # down to a number


def _leaves(names: Names, value: Any) -> Iterator[tuple[Names, float]]:
    """(names down to it, number); the median of a list stands for the list as well."""
    if isinstance(value, dict):
        unit = value.get("unit")
        own = (*names, f"{_IN}{unit}") if unit in _UNITS else names
        for name, item in value.items():
            yield from _leaves((*own, name), item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(names, item)
        if value and all(isinstance(item, float) for item in value):
            yield names, statistics.median(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield names, value


def _derived(value: Any) -> Iterator[tuple[str, float]]:
    """(unit, number) of what tables compute: speeds of steps, peaks that shares are of, rates of optimizers."""
    if isinstance(value, list):
        for item in value:
            yield from _derived(item)
    if not isinstance(value, dict):
        return
    if value.get("gflops") and value.get("share_of_peak"):
        yield "GFLOP/s", value["gflops"] / value["share_of_peak"]
    if isinstance(value.get("milliseconds"), list):
        yield from (("/s", speed) for speed in units_per_second(value) or () if speed is not None)
    if "op" in value:
        yield "parameters/s", (parameters_per_second(value) or 0.0) / 1e9
    for item in value.values():
        yield from _derived(item)


_SHARES = {"share", "share_of_peak", "share_of_bandwidth", "data_share", "overhead"}
# Whether the names down to a number tell its unit, and how it is shown; the first that fits counts.
_KINDS: tuple[tuple[Callable[[Names], bool], str, Callable[[float], float]], ...] = (
    (lambda names: bool({"ratio", "gain"} & {*names}) or names[-1] == "ratios", "x", float),
    (lambda names: any(name in ("milliseconds", "ms") or _is_ms(name) for name in names), "ms", float),
    (lambda names: bool(_SHARES & {*names}), "%", lambda value: 100 * value),
    (lambda names: names[-1].endswith("_bytes"), "MiB", lambda value: int(value) >> 20),
    (lambda names: names[-1].endswith("_mb"), "MiB", float),
    (lambda names: "gflops" in names, "GFLOP/s", float),
    (lambda names: bool({"gigabytes_per_second", "bandwidths"} & {*names}), "GB/s", float),
    (lambda names: bool({"units_per_second", "throughput"} & {*names}), "/s", float),
    (lambda names: names[-1] == "hours", "h", float),
    (lambda names: names[-1] == "seconds" or names[-1].endswith("_seconds"), "s", float),
)


def _is_ms(name: str) -> bool:
    return name.endswith("_ms") or "_ms_" in name


def _as_shown(names: Names, value: float) -> Iterator[tuple[str, float]]:
    own = [name.removeprefix(_IN) for name in names if name.startswith(_IN)]
    if own:  # it names its unit itself
        yield own[0], value
        return
    found = next(((unit, shown) for fits, unit, shown in _KINDS if fits(names)), None)
    if found is not None:
        yield found[0], found[1](value)
