"""The section on the speed against stock PyTorch, from the compare.json that `fullstride compare` writes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import comparison_figures as drawn
from . import words
from .comparison_figures import Spread
from .run import Run, number
from .section import Figure, Section, Table


def section(run: Run) -> Section | None:
    """In the report of a run."""
    compare = run.compare
    if compare is None or not _sides(compare):
        return None
    found = _section(compare)
    others = differences(run.config, compare.get("config"))
    if others:
        found.text += f" It was measured with other settings than this run: {', '.join(others)}."
    return found


def of_study(compare: Mapping[str, Any]) -> Section:
    """In the page of the comparison itself."""
    found, trials = _section(compare), compare.get("trials")
    if isinstance(trials, list) and trials:
        rows = [(name, outcome) for name, _, outcome in (str(trial).partition(": ") for trial in trials)]
        found.tables.append(Table("Settings of stock PyTorch that were tried, a step of each.", (), rows))
    return found


def picture(compare: Mapping[str, Any]) -> Figure:
    """What says most of it, in one."""
    return drawn.together(compare, _sides(compare), sentences(compare))


def _section(compare: Mapping[str, Any]) -> Section:
    sides = _sides(compare)
    return Section("Against stock PyTorch", _text(compare), drawn.figures(compare, sides), [_table(compare, sides)])


def ratio(compare: Mapping[str, Any] | None) -> Spread | None:
    """How many times faster than stock PyTorch as it comes."""
    for entry in _entries(compare, "ratios"):
        spread = drawn.spread_of(entry.get("ratio"))
        if spread is not None:
            return spread
    return None


def spread(ratio: Spread) -> str:
    return f"{ratio.lowest:.2f} to {ratio.highest:.2f} in the rounds"


def sentences(compare: Mapping[str, Any]) -> str:
    """How many times as fast, and the losses at the same time."""
    parts = []
    for entry in _entries(compare, "ratios"):
        found = drawn.spread_of(entry.get("ratio"))
        if found is not None:
            peer = str(entry.get("peer", "stock")).replace(" default", "").replace("stock", "stock PyTorch", 1)
            parts.append(f"Fullstride takes a step {found.median:.2f} times as fast as {peer} ({spread(found)}).")
    return " ".join([*parts, *_at_same_time(compare)])


def _at_same_time(compare: Mapping[str, Any]) -> list[str]:
    at = compare.get("losses_at")
    same = at.get("same_time") if isinstance(at, Mapping) else None
    if not isinstance(same, Mapping) or not isinstance(same.get("sides"), Mapping) or len(same["sides"]) < 2:
        return []
    names = {str(side.get("name", "")): drawn.name(side) for side in _sides(compare)}
    losses = []
    for name, found in same["sides"].items():
        mean, step = number(found, "mean"), number(found, "step")
        loss = "not a number" if mean is None else f"{mean:.4g} [{found['lowest']:.4g} to {found['highest']:.4g}]"
        losses.append(f"{names.get(name, name)}: {loss} at step {step or 0:,.0f}")
    seconds, window = number(same, "seconds") or 0.0, number(same, "window") or 0.0
    taken = f"Loss after {words.duration(seconds)} of training, the mean of {window:.0f} steps"
    return [f"{taken}: {'; '.join(losses)}."]


def _text(compare: Mapping[str, Any]) -> str:
    parts = [sentences(compare)]
    turns = compare.get("turns")
    if isinstance(turns, Mapping) and (rounds := number(turns, "rounds")) and (steps := number(turns, "steps")):
        warm_up = number(turns, "warm_up")
        clock = f"; seconds count after {warm_up:.0f} steps of warm-up" if warm_up else ""
        parts.append(f"The sides took turns on this machine: {rounds:.0f} rounds of {steps:.0f} steps{clock}.")
    notes = compare.get("notes")
    parts += [f"{str(note).rstrip('.')}." for note in notes] if isinstance(notes, list) else []
    return " ".join(part[:1].upper() + part[1:] for part in parts if part)


def differences(ours: Any, theirs: Any, prefix: str = "") -> list[str]:
    """Settings of the comparison that are not those of the run: "model.hidden [256] instead of [512]"."""
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return []
    found = []
    for name in ours.keys() & theirs.keys():
        one, other = ours[name], theirs[name]
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other, f"{prefix}{name}.")
        elif one != other:
            found.append(f"{prefix}{name} {other} instead of {one}")
    return sorted(found)


def _table(compare: Mapping[str, Any], sides: Sequence[Mapping[str, Any]]) -> Table:
    unit = str(compare.get("unit") or "samples")
    rows = []
    for side in sides:
        losses = drawn.losses(side)
        last = losses[np.isfinite(losses)][-10:]
        milliseconds, rate, gflops = drawn.milliseconds(side), number(side, "units_per_second"), number(side, "gflops")
        peak, faults = number(side, "peak_bytes"), number(side, "faults")
        rows.append((
            drawn.name(side),
            words.significant(milliseconds.median) if milliseconds else "-",
            words.significant(rate) if rate else "-",
            words.significant(gflops) if gflops else "-",
            words.significant(float(last.mean())) if len(last) else "-",
            words.megabytes(peak / 1e6) if peak else "-",
            "-" if faults is None else words.count(faults),
        ))  # fmt: skip
    columns = ("side", "ms a step", f"{unit}/s", "GFLOP/s", "loss", "memory", "faults")
    caption = "Each side; loss: mean of its last ten steps; memory: the most it held; faults: pages a step."
    return Table(caption, columns, rows, colours=drawn.colours(sides))


def _entries(compare: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    found = None if compare is None else compare.get(name)
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


def _sides(compare: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return _entries(compare, "sides")
