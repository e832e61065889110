"""Pictures of a comparison with stock PyTorch: losses over time and by step, throughput and memory, a colour a side."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import curves, words
from .run import Floats, number
from .section import HEIGHT, Figure
from .style import LIGHT, SERIES

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

Side = Mapping[str, Any]
Draw = Callable[["Axes"], None]
_STROKES = ("solid", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)))  # where the curves lie on each other, both show
_UNITS = ((3 * 3600.0, "h", 3600.0), (180.0, "min", 60.0), (0.0, "s", 1.0))  # from so many seconds on
_SMOOTHED = 40  # one in so many points is the window of the mean; fewer than thrice that are shown as they are


class Spread(NamedTuple):
    median: float
    lowest: float
    highest: float


class Part(NamedTuple):
    title: str
    caption: str
    draw: Draw
    height: float


def colours(sides: Sequence[Side]) -> list[str]:
    return [SERIES[i % len(SERIES)] for i in range(len(sides))]


def parts(compare: Mapping[str, Any], sides: Sequence[Side]) -> list[Part]:
    """What can be drawn of what is there: files of older versions have less."""
    unit = str(compare.get("unit") or "samples")
    rates, peaks = [rate(side) for side in sides], [number(side, "peak_bytes") for side in sides]
    tall = 0.9 + 0.4 * len(sides)
    found = []
    if any(len(_timed(side)[0]) > 1 for side in sides):
        caption = "Training loss over seconds of training; dotted: when the first side had taken all its steps."
        found.append(Part("Loss over time", caption, _over_time(compare, sides), HEIGHT))
    if any(np.isfinite(losses(side)).any() for side in sides):
        caption = "Training loss of every side, from the same weights, on the same data in the same order."
        found.append(Part("Loss by step", caption, _by_step(sides), HEIGHT))
    if any(rates):
        caption = f"{unit.capitalize()} a second: the median, and from the lowest to the highest round."
        draw = _bars(sides, rates, f"{unit} a second", words.significant)
        found.append(Part("Throughput", caption, draw, tall))
    if any(peaks):
        held = [None if peak is None else Spread(peak / 1e6, peak / 1e6, peak / 1e6) for peak in peaks]
        caption = "The most memory that each process held."
        found.append(Part("Memory", caption, _bars(sides, held, "MB", words.megabytes), tall))
    return found


def figures(compare: Mapping[str, Any], sides: Sequence[Side]) -> list[Figure]:
    return [Figure(part.caption, _alone(part.draw), part.height) for part in parts(compare, sides)]


def together(compare: Mapping[str, Any], sides: Sequence[Side], caption: str) -> Figure:
    """All of them in one, two in a row."""
    every = parts(compare, sides)
    pairs = [every[i : i + 2] for i in range(0, len(every), 2)]

    def draw(figure: "matplotlib.figure.Figure") -> None:
        # Rows of their own: names of bars need more room at the left than numbers do.
        heights = [max(part.height for part in pair) for pair in pairs]
        rows = figure.subfigures(len(pairs), 1, squeeze=False, height_ratios=heights)
        for row, pair in zip(rows[:, 0], pairs, strict=True):
            for ax, part in zip(np.atleast_1d(row.subplots(1, len(pair))), pair, strict=True):
                part.draw(ax)
                ax.set_title(part.title)

    return Figure(caption, draw, 0.75 * HEIGHT * len(pairs))


def _alone(draw: Draw) -> Callable[["matplotlib.figure.Figure"], None]:
    return lambda figure: draw(figure.subplots())


# ---- values ----------------------------------------------------------------------------------------------------------


def name(side: Side) -> str:
    """fullstride auto -> Fullstride, stock default -> stock PyTorch; both with the precision they ran in."""
    name, precision = str(side.get("name", "")), side.get("precision")
    if name.startswith("fullstride"):
        name = "Fullstride"
    elif name in ("stock", "stock default"):
        name = "stock PyTorch"
    return f"{name}, {precision}" if isinstance(precision, str) and precision not in name else name


def spread_of(found: Any) -> Spread | None:
    if not isinstance(found, Mapping):
        return None
    values = [number(found, name) for name in Spread._fields]
    return None if None in values else Spread(*(value for value in values if value is not None))


def milliseconds(side: Side) -> Spread | None:
    return spread_of(side.get("milliseconds"))


def rate(side: Side) -> Spread | None:
    """Units a second."""
    median, times = number(side, "units_per_second"), milliseconds(side)
    if median is None or times is None:
        return None
    return Spread(median, median * times.median / times.highest, median * times.median / times.lowest)


def losses(side: Side) -> Floats:
    return _floats(side.get("losses"))


def _timed(side: Side) -> tuple[Floats, Floats]:
    """Seconds and losses from the last step of warm-up on, where the clock starts."""
    seconds, found = _floats(side.get("seconds")), losses(side)
    if len(seconds) != len(found):
        return np.zeros(0), np.zeros(0)
    first = max(0, int((seconds <= 0).sum()) - 1)
    return seconds[first:], found[first:]


def _floats(values: Any) -> Floats:
    listed = values if isinstance(values, list) else []
    return np.array([x if isinstance(x, int | float) else np.nan for x in listed], float)


# ---- drawings --------------------------------------------------------------------------------------------------------


def _over_time(compare: Mapping[str, Any], sides: Sequence[Side]) -> Draw:
    def draw(ax: "Axes") -> None:
        every = [_timed(side) for side in sides]
        longest = max((float(seconds[-1]) for seconds, _ in every if len(seconds)), default=0.0)
        _, unit, length = next(entry for entry in _UNITS if longest >= entry[0])
        at = compare.get("losses_at")
        same = at.get("same_time") if isinstance(at, Mapping) else None
        end = number(same, "seconds") if isinstance(same, Mapping) else None
        if end and len(sides) > 1:
            ax.axvline(end / length, color=LIGHT["grey"], linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        _lines(ax, sides, [(seconds / length, found) for seconds, found in every], f"training ({unit})")

    return draw


def _by_step(sides: Sequence[Side]) -> Draw:
    def draw(ax: "Axes") -> None:
        every = [losses(side) for side in sides]
        _lines(ax, sides, [(np.arange(1.0, len(found) + 1), found) for found in every], "step")

    return draw


def _lines(ax: "Axes", sides: Sequence[Side], every: Sequence[tuple[Floats, Floats]], label: str) -> None:
    """Each value faintly, and through them, where there are many, their local mean."""
    logarithmic = curves.spans_decades(*(found for _, found in every))
    for i, (side, colour, (x, y)) in enumerate(zip(sides, colours(sides), every, strict=True)):
        points = curves.thin(x, y)
        mean, window = points.mean, len(points.x) // _SMOOTHED
        if window >= 3:
            ax.plot(points.x, mean, color=LIGHT[colour], alpha=0.25, linewidth=0.8)
            mean = np.exp(curves.smooth(np.log(mean), window)) if logarithmic else curves.smooth(mean, window)
        stroke, width = _STROKES[i % len(_STROKES)], 2.4 if i == 0 else 1.5
        ax.plot(points.x, mean, color=LIGHT[colour], linestyle=stroke, linewidth=width, label=_short(side))
    if logarithmic:
        curves.log_scale(ax)
    axis = curves.Axis(label, lambda rows: np.zeros(0), [])
    curves.finish(ax, axis, "loss, logarithmic" if logarithmic else "loss")
    ax.legend(loc="best", frameon=True, facecolor=LIGHT["card"], edgecolor="none", framealpha=0.75)


def _short(side: Side) -> str:
    """For the legend of curves: the settings of stock at its best are named elsewhere."""
    return re.sub(r" \(.*\)", "", name(side))


def _bars(
    sides: Sequence[Side], values: Sequence[Spread | None], label: str, text: Callable[[float], str]
) -> Draw:
    def draw(ax: "Axes") -> None:
        from matplotlib.ticker import MaxNLocator

        for i, (colour, found) in enumerate(zip(colours(sides), values, strict=True)):
            if found is None:
                continue
            ax.barh(i, found.median, height=0.5, color=LIGHT[colour])
            if found.lowest < found.highest:
                ax.plot([found.lowest, found.highest], [i, i], color=LIGHT["ink"], linewidth=1.2)
            ax.annotate(
                text(found.median), (found.highest, i), xytext=(5, 0), textcoords="offset points",
                va="center", fontweight="bold",
            )  # fmt: skip
        ax.set_yticks(range(len(sides)), [textwrap.fill(name(side), 20) for side in sides])
        ax.set_ylim(len(sides) - 0.5, -0.5)
        ax.margins(x=0.4)
        ax.set_xlim(left=0)
        ax.xaxis.set_major_locator(MaxNLocator(3))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        ax.grid(False)
        ax.set_xlabel(label)

    return draw
