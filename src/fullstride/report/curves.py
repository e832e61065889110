"""Lines over steps or time, legible for ten rows and for a million."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .run import Floats, Row, Run
from .style import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 400  # more than the pixels can show only makes the file larger
_SMOOTH_FROM = 100  # points; fewer are shown as they are
_TIME_UNITS = ((3 * 3600.0, "h", 3600.0), (180.0, "min", 60.0), (0.0, "s", 1.0))
_TICKS = (1, 2, 2.5, 5, 10)  # times a power of ten

LABEL = {"facecolor": LIGHT["card"], "edgecolor": "none", "alpha": 0.75, "pad": 1.0}  # behind text on a curve


class Axis(NamedTuple):
    """What runs along the bottom: steps, or time in the unit that suits the run."""

    label: str
    of: Callable[[list[Row]], Floats]
    resumes: list[float]


def step_axis(run: Run) -> Axis:
    return Axis("step", lambda rows: np.array([row["step"] for row in rows], float), [float(x) for x in run.resumes])


def time_axis(run: Run, longest: float | None = None) -> Axis:
    """longest: the seconds that the unit has to suit, if not those of this run."""
    length = run.seconds if longest is None else longest
    _, unit, seconds = next(entry for entry in _TIME_UNITS if length >= entry[0])
    return Axis(
        f"time ({unit})",
        lambda rows: run.time_of([row["step"] for row in rows]) / seconds,
        [float(time) / seconds for time in run.time_of(run.resumes)],
    )


class Thinned(NamedTuple):
    x: Floats
    mean: Floats
    low: Floats
    high: Floats


def thin(x: Floats, y: Floats, points: int = MOST_POINTS) -> Thinned:
    """Neighbours together, until there are at most so many points: their mean, least and greatest. NaN are left out."""
    keep = np.isfinite(x) & np.isfinite(y)
    x, y = x[keep], y[keep]
    if len(x) <= points:
        return Thinned(x, y, y, y)
    parts = np.linspace(0, len(x), points + 1).astype(int)
    starts, sizes = parts[:-1], np.diff(parts)
    mean = np.add.reduceat(y, starts) / sizes
    return Thinned(
        np.add.reduceat(x, starts) / sizes, mean, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
    )


def smooth(y: Floats, window: int) -> Floats:
    """Mean of the window around each point, cut at both ends: it neither lags nor invents values beyond the data."""
    sums = np.concatenate(([0.0], np.cumsum(y)))
    places = np.arange(len(y))
    low, high = np.maximum(places - window // 2, 0), np.minimum(places + window // 2 + 1, len(y))
    return (sums[high] - sums[low]) / (high - low)


def line(ax: "Axes", x: Floats, y: Floats, colour: str, label: str | None = None) -> None:
    """The values, and through them, where there are many, their local mean."""
    points = thin(x, y)
    many = len(points.x) >= _SMOOTH_FROM
    colour = LIGHT[colour]
    if not many:
        ax.plot(points.x, points.mean, color=colour, label=label, marker="o" if len(points.x) < 3 else None)
        return
    if points.low is not points.mean:
        ax.fill_between(points.x, points.low, points.high, color=colour, alpha=0.18, linewidth=0)
    ax.plot(points.x, points.mean, color=colour, alpha=0.35, linewidth=0.9)
    window = max(5, len(points.x) // 40)
    ax.plot(points.x, smooth(points.mean, window), color=colour, label=label)


def dots(ax: "Axes", x: Floats, y: Floats, colour: str, label: str | None = None) -> None:
    """Evaluations: few enough to mark each."""
    points = thin(x, y)
    marker = "o" if len(points.x) <= 60 else None
    ax.plot(points.x, points.mean, color=LIGHT[colour], marker=marker, label=label, linestyle=(0, (4, 1.5)))


def mark_resumes(ax: "Axes", axis: Axis) -> None:
    for i, place in enumerate(axis.resumes):
        ax.axvline(place, color=LIGHT["grey"], linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        if i < 3:  # more labels would lie on each other; the lines still show
            ax.annotate(
                "resumed", (place, 1), xycoords=("data", "axes fraction"), xytext=(3, -1), textcoords="offset points",
                fontsize=8, color=LIGHT["muted"], va="top",
            )  # fmt: skip


def finish(ax: "Axes", axis: Axis, ylabel: str) -> None:
    """Labels, resumes, and whole numbers for whole things."""
    from matplotlib.ticker import AutoLocator, MaxNLocator

    mark_resumes(ax, axis)
    ax.set_xlim(left=0)
    ax.set_xlabel(axis.label)
    ax.set_ylabel(ylabel)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=axis.label == "step", steps=_TICKS))
    if ax.get_yscale() == "linear" and isinstance(ax.yaxis.get_major_locator(), AutoLocator):
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=_TICKS))
    if axis.label == "step":
        ax.xaxis.set_major_formatter("{x:,.0f}")


def spans_decades(*values: Floats) -> bool:
    """Whether a logarithmic scale says more: all above 0, the greatest 30 times the least or more."""
    every = np.concatenate([value[np.isfinite(value)] for value in values])
    return len(every) > 0 and float(every.min()) > 0 and float(every.max()) >= 30 * float(every.min())


def log_scale(ax: "Axes") -> None:
    """Plain numbers, also between the powers of ten where there are few of those."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high < 10 * low:  # there may be no power of ten at all
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=_TICKS))
    else:
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high < 1000 * low else (1.0,), numticks=8))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
