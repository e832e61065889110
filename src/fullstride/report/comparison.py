"""The section on the speed against stock PyTorch, from the compare.json that `fullstride compare` writes."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import curves, words
from .run import Floats, Run, number
from .section import HEIGHT, Figure, Section, Table
from .style import LIGHT, SERIES

if TYPE_CHECKING:
    import matplotlib.figure


class Spread(NamedTuple):
    median: float
    lowest: float
    highest: float


def section(run: Run) -> Section | None:
    sides = _sides(run.compare)
    if run.compare is None or not sides:
        return None
    colours = [SERIES[i % len(SERIES)] for i in range(len(sides))]
    figures = []
    if any(_milliseconds(side) for side in sides):
        caption = "Milliseconds a step: the median, and from the lowest to the highest round."
        figures.append(Figure(caption, _bars(sides, colours), max(HEIGHT, 1.1 + 0.55 * len(sides))))
    if any(np.isfinite(_losses(side)).any() for side in sides):
        caption = "Training loss of every side, from the same weights, on the same data in the same order."
        figures.append(Figure(caption, _curves(sides, colours)))
    return Section("Against stock PyTorch", _text(run), figures, [_table(run.compare, sides, colours)])


def ratio(compare: Mapping[str, Any] | None) -> Spread | None:
    """How many times faster than stock PyTorch as it comes."""
    for entry in _entries(compare, "ratios"):
        spread = _spread(entry.get("ratio"))
        if spread is not None:
            return spread
    return None


def spread(ratio: Spread) -> str:
    return f"{ratio.lowest:.2f} to {ratio.highest:.2f} in the rounds"


def _text(run: Run) -> str:
    compare, parts = run.compare or {}, []
    for entry in _entries(compare, "ratios"):
        found = _spread(entry.get("ratio"))
        if found is not None:
            peer = str(entry.get("peer", "stock")).replace(" default", "").replace("stock", "stock PyTorch", 1)
            parts.append(f"Fullstride takes a step {found.median:.2f} times as fast as {peer} ({spread(found)}).")
    turns = compare.get("turns")
    if isinstance(turns, Mapping) and (rounds := number(turns, "rounds")) and (steps := number(turns, "steps")):
        parts.append(f"The sides took turns on this machine: {rounds:.0f} rounds of {steps:.0f} steps.")
    notes = compare.get("notes")
    parts += [f"{str(note).rstrip('.')}." for note in notes] if isinstance(notes, list) else []
    others = differences(run.config, compare.get("config"))
    if others:
        parts.append(f"It was measured with other settings than this run: {', '.join(others)}.")
    return " ".join(part[:1].upper() + part[1:] for part in parts)


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


def _table(compare: Mapping[str, Any], sides: Sequence[Mapping[str, Any]], colours: Sequence[str]) -> Table:
    unit = str(compare.get("unit") or "samples")
    rows = []
    for side in sides:
        losses = _losses(side)
        last = losses[np.isfinite(losses)][-10:]
        milliseconds, rate, gflops = _milliseconds(side), number(side, "units_per_second"), number(side, "gflops")
        peak = number(side, "peak_bytes")
        rows.append((
            _name(side),
            words.significant(milliseconds.median) if milliseconds else "-",
            words.significant(rate) if rate else "-",
            words.significant(gflops) if gflops else "-",
            words.significant(float(last.mean())) if len(last) else "-",
            words.megabytes(peak / 1e6) if peak else "-",
        ))  # fmt: skip
    columns = ("side", "ms a step", f"{unit}/s", "GFLOP/s", "loss", "memory")
    caption = "Each side; loss: mean of its last ten steps; memory: the most it held."
    return Table(caption, columns, rows, colours=colours)


def _bars(sides: Sequence[Mapping[str, Any]], colours: Sequence[str]) -> Callable[["matplotlib.figure.Figure"], None]:
    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        for i, (side, colour) in enumerate(zip(sides, colours, strict=True)):
            found = _milliseconds(side)
            if found is None:
                continue
            ax.barh(i, found.median, height=0.5, color=LIGHT[colour])
            ax.plot([found.lowest, found.highest], [i, i], color=LIGHT["ink"], linewidth=1.2)
            ax.annotate(
                f"{words.significant(found.median)} ms", (found.highest, i), xytext=(5, 0), textcoords="offset points",
                va="center", fontweight="bold",
            )  # fmt: skip
        ax.set_yticks(range(len(sides)), [_name(side) for side in sides])
        ax.set_ylim(len(sides) - 0.5, -0.5)
        ax.margins(x=0.22)
        ax.set_xlim(left=0)
        ax.grid(False)
        ax.set_xlabel("ms a step")

    return draw


def _curves(sides: Sequence[Mapping[str, Any]], colours: Sequence[str]) -> Callable[["matplotlib.figure.Figure"], None]:
    strokes = ("solid", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)))  # where the curves lie on each other, both show

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        every = [_losses(side) for side in sides]
        for i, (side, losses) in enumerate(zip(sides, every, strict=True)):
            points = curves.thin(np.arange(1.0, len(losses) + 1), losses)
            ax.plot(
                points.x, points.mean, color=LIGHT[colours[i]], linestyle=strokes[i % len(strokes)],
                linewidth=2.4 if i == 0 else 1.5, label=_name(side),
            )  # fmt: skip
        logarithmic = curves.spans_decades(*every)
        if logarithmic:
            curves.log_scale(ax)
        axis = curves.Axis("step", lambda rows: np.zeros(0), [])
        curves.finish(ax, axis, "loss, logarithmic" if logarithmic else "loss")
        ax.legend(loc="upper right")

    return draw


def _entries(compare: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    found = None if compare is None else compare.get(name)
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


def _sides(compare: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return _entries(compare, "sides")


def _name(side: Mapping[str, Any]) -> str:
    """fullstride auto -> Fullstride, stock default -> stock PyTorch; both with the precision they ran in."""
    name, precision = str(side.get("name", "")), side.get("precision")
    if name.startswith("fullstride"):
        name = "Fullstride"
    elif name in ("stock", "stock default"):
        name = "stock PyTorch"
    return f"{name}, {precision}" if isinstance(precision, str) and precision not in name else name


def _spread(found: Any) -> Spread | None:
    if not isinstance(found, Mapping):
        return None
    values = [number(found, name) for name in Spread._fields]
    return None if None in values else Spread(*(value for value in values if value is not None))


def _milliseconds(side: Mapping[str, Any]) -> Spread | None:
    return _spread(side.get("milliseconds"))


def _losses(side: Mapping[str, Any]) -> Floats:
    losses = side.get("losses")
    values = losses if isinstance(losses, list) else []
    return np.array([x if isinstance(x, int | float) else np.nan for x in values], float)
