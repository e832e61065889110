"""Ratios of two takes side by side: which fell, which are on one side alone. Without torch.

A ratio fell if its median is more than a tenth below the committed one and no round of now reaches the lowest round
of then: 10 % beyond its spread. Ours against its own portable variant is left out: that falls where the variant alone
has become faster.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .cells import ratio
from .result_files import File, Spread, newest, rows, spread
from .step_rows import OURS, STOCK_DEFAULT, newest_steps

FELL_BY = 0.1
KERNEL_SUITES = ("kernels", "kernels_heap_kept")
_PORTABLE = "portable"  # as fullstride.bench.kernels.row calls this peer, which needs torch


class Key(NamedTuple):
    """One ratio: ours against a peer."""

    suite: str
    what: str  # an op, or a step as suites.name_of_step() calls it
    case: str
    peer: str

    def __str__(self) -> str:
        kept = ", heap kept" if self.suite == "kernels_heap_kept" else ""
        return f"{' '.join(filter(None, (self.what, self.case)))} against {self.peer}{kept}"


class Outcome(NamedTuple):
    """fell: those that were looked at a second time, too. failed: what of ours could not be measured, and why."""

    lines: list[str]
    fell: list[Key]
    failed: Sequence[str] = ()


Ratios = dict[Key, Spread]


def committed(files: Iterable[File], machine: str, cores: int, torch: str) -> tuple[Ratios, dict[Key, str]]:
    """(the newest ratios of this kind of machine, what of it cannot be compared and why). torch: its version."""
    here = {"usable_cores": cores, "torch": torch}
    own = {file.suite: file for file in files if file.machine == machine}
    found: Ratios = {}
    notes: dict[Key, str] = {}
    for suite in KERNEL_SUITES:
        pairs: dict[Key, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
        for part, row in rows(own.get(suite)):
            for key in kernel_ratios(suite, [row]):
                pairs.setdefault(key, []).append((part, row))
        for key, takes in pairs.items():
            part, row = newest(takes)
            _put(found, notes, key, kernel_ratios(suite, [row])[key], part, here)
    for name, (part, row) in newest_steps(own.get("steps")).items():
        key = Key("steps", name, "", STOCK_DEFAULT)
        value = step_ratio(row)
        if value is None:
            notes[key] = "one of the two died when it was taken"
        else:
            _put(found, notes, key, value, part, here)
    return found, notes


def _put(
    found: Ratios, notes: dict[Key, str], key: Key, value: Spread, part: Mapping[str, Any], here: Mapping[str, Any]
) -> None:
    had = part["conditions"]
    if had["usable_cores"] != here["usable_cores"]:
        notes[key] = f"committed with {had['usable_cores']} cores, here are {here['usable_cores']}"
    elif had["torch"] != here["torch"]:
        notes[key] = f"committed with torch {had['torch']}, here is {here['torch']}"
    else:
        found[key] = value


def kernel_ratios(suite: str, results: Iterable[Mapping[str, Any]]) -> Ratios:
    """Of what `fullstride bench kernels` writes, without the portable variant."""
    return {
        Key(suite, row["op"], row["case"], peer["name"]): spread(peer["ratio"])
        for row in results for peer in row["peers"] if peer["name"] != _PORTABLE
    }  # fmt: skip


def step_ratio(row: Mapping[str, Any]) -> Spread | None:
    """Ours as it comes against stock default; None where one of them died."""
    wanted = (OURS, STOCK_DEFAULT)
    return next((spread(own["ratio"]) for own in row["ratios"] if (own["ours"], own["peer"]) == wanted), None)


def fell(old: Spread, new: Spread) -> bool:
    lowest = old.median if old.lowest is None else old.lowest
    highest = new.median if new.highest is None else new.highest
    return new.median < (1 - FELL_BY) * old.median and highest < lowest


def compare(old: Ratios, new: Ratios, again: Ratios, notes: Sequence[str] = (), failed: Sequence[str] = ()) -> Outcome:
    """again: of those that seemed to have fallen, measured with more rounds, which count."""
    lines, fallen = [], []
    width = max((len(str(key)) for key in old if key in new), default=0)
    for key, value in old.items():
        if key not in new:
            continue
        now = again.get(key, new[key])
        if fell(value, now):
            fallen.append(key)
        how = "FELL" if key in fallen else "fell at first, not again" if fell(value, new[key]) else ""
        lines.append(f"  {key!s:<{width}}  committed {ratio(value)}  now {ratio(now)}  {how}".rstrip())
    alone = [f"  {key}: committed {ratio(old[key])}, not measured now" for key in old if key not in new]
    alone += [f"  {key}: now {ratio(new[key])}, not committed yet" for key in new if key not in old]
    alone += [f"  {note}" for note in notes]
    return Outcome([*lines, *(["not compared:", *alone] if alone else [])], fallen, failed)


def verdict(outcome: Outcome, old: Ratios, new: Ratios, again: Ratios) -> list[str]:
    """The last lines: what fell, or that nothing did, and what of ours failed."""
    compared = sum(key in new for key in old)
    failed = [f"FAILED: {what}" for what in outcome.failed]
    if not outcome.fell:
        told = f"nothing fell by more than {FELL_BY:.0%} beyond its spread: {compared} ratios were compared"
        return [told, *failed]
    fallen = [f"  {key}: {ratio(old[key])} -> {ratio(again.get(key, new[key]))}" for key in outcome.fell]
    return [f"fell by more than {FELL_BY:.0%} beyond their spread, {len(fallen)} of {compared}:", *fallen, *failed]
