"""The sections on how fast it was: where the time went, throughput, arithmetic, and against stock PyTorch."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import curves, words
from .curves import Axis
from .run import Floats, Run, number, series
from .section import Figure, Section, Table
from .style import LIGHT

if TYPE_CHECKING:
    import matplotlib.figure

PARTS = {
    "forward": "blue", "backward": "sky", "optimizer": "green", "data": "amber",
    "evaluate": "vermilion", "checkpoint": "purple", "other": "grey",
}  # fmt: skip
_MOST_BARS = 60


def time_section(run: Run) -> Section | None:
    """Milliseconds a step and shares, by part."""
    ends, intervals, seconds = time_by_part(run)
    total = seconds.sum()
    if not total > 0:
        return None
    steps = float(intervals.sum())
    parts = [(name, colour, seconds[i].sum()) for i, (name, colour) in enumerate(PARTS.items())]
    rows = [(name, f"{1000 * x / steps:,.2f}", words.percent(x / total)) for name, _, x in parts]
    rows.append(("all", f"{1000 * total / steps:,.2f}", words.percent(1.0)))
    table = Table("Time by part.", ("part", "ms a step", "share"), rows, colours=[colour for _, colour, _ in parts])
    figure = Figure("Milliseconds a step, by part, over the run.", _stack(run, ends, intervals, seconds))
    training = sum(x for name, _, x in parts if name in ("forward", "backward", "optimizer")) / total
    waiting = next(x for name, _, x in parts if name == "data") / total
    text = (
        f"{words.percent(training)} of the time went into forward, backward and optimizer, "
        f"{words.percent(waiting)} into waiting for data."
    )
    return Section("Time", text, [figure], [table])


def speed_section(run: Run) -> Section | None:
    axis = curves.step_axis(run)
    rate, gflops, share = (series(run.train, name) for name in ("per_second", "gflops", "share_of_peak"))
    figures = []
    if np.isfinite(rate).any():
        caption = f"Throughput by step, in {run.unit} a second."
        figures.append(Figure(caption, _rate(run, axis, rate, f"{run.unit} a second")))
    if np.isfinite(gflops).any():
        known = np.isfinite(share) & (share > 0) & np.isfinite(gflops)
        peak = float(np.median(gflops[known] / share[known])) if known.any() else None
        against = " against the measured peak of this machine" if peak else ""
        caption = f"Arithmetic of the model by step, in GFLOP/s{against}."
        figures.append(Figure(caption, _gflops(run, axis, gflops, peak)))
    if not figures:
        return None
    parts = []
    if np.isfinite(rate).any():
        parts.append(f"Median {words.significant(float(np.nanmedian(rate)))} {run.unit} a second")
    if np.isfinite(gflops).any():
        parts.append(f"median {words.significant(float(np.nanmedian(gflops)))} GFLOP/s")
    if np.isfinite(share).any():
        parts.append(f"{words.percent(float(np.nanmedian(share)))} of the peak that was measured with matrix products")
    return Section("Speed", ", ".join(parts) + ".", figures)


def time_by_part(run: Run) -> tuple[Floats, Floats, Floats]:
    """Of each interval up to a row: its last step, the steps whose time it holds, and (part, interval) seconds."""
    ends, steps, seconds = [], [], []
    for row, covered in zip(run.train, run.covered, strict=True):
        parts = row.get("time")
        if isinstance(parts, Mapping) and covered > 0:
            ends.append(row["step"])
            steps.append(covered)
            seconds.append(_seconds(parts))
    return np.array(ends, float), np.array(steps, float), np.array(seconds, float).reshape(-1, len(PARTS)).T


def _seconds(parts: Mapping[str, Any]) -> list[float]:
    """In the order of PARTS. What has a name that is not known here is "other"."""
    known = {name: number(parts, name) or 0.0 for name in PARTS}
    known["other"] += sum(number(parts, name) or 0.0 for name in parts if name not in PARTS and name != "wall")
    return list(known.values())


def _stack(
    run: Run, ends: Floats, steps: Floats, seconds: Floats
) -> Callable[["matplotlib.figure.Figure"], None]:
    axis = curves.step_axis(run)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        parts = np.linspace(0, len(steps), min(_MOST_BARS, len(steps)) + 1).astype(int)
        starts = parts[:-1]
        counts = np.add.reduceat(steps, starts)
        edges = np.concatenate(([ends[0] - steps[0]], ends[parts[1:] - 1]))
        bottom = np.zeros(len(starts))
        for colour, part in zip(PARTS.values(), seconds, strict=True):
            top = bottom + 1000 * np.add.reduceat(part, starts) / counts
            ax.stairs(top, edges, baseline=bottom, fill=True, color=LIGHT[colour], linewidth=0)
            bottom = top
        curves.finish(ax, axis, "ms a step")

    return draw


def _rate(run: Run, axis: Axis, values: Floats, label: str) -> Callable[["matplotlib.figure.Figure"], None]:
    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        curves.line(ax, axis.of(run.train), values, "blue")
        ax.set_ylim(bottom=0)
        curves.finish(ax, axis, label)
        ax.yaxis.set_major_formatter("{x:,.0f}" if np.nanmax(values) >= 10 else "{x:g}")

    return draw


def _gflops(run: Run, axis: Axis, values: Floats, peak: float | None) -> Callable[["matplotlib.figure.Figure"], None]:
    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        curves.line(ax, axis.of(run.train), values, "blue")
        if peak:
            ax.axhline(peak, color=LIGHT["muted"], linewidth=1.2, linestyle=(0, (5, 2)))
            ax.annotate(
                f"measured peak, {peak:,.0f} GFLOP/s", (0, peak), xycoords=("axes fraction", "data"), xytext=(4, 3),
                textcoords="offset points", fontsize=9, color=LIGHT["muted"],
            )  # fmt: skip
            one = peak / 100
            right = ax.secondary_yaxis("right", functions=(lambda x: np.divide(x, one), lambda x: np.multiply(x, one)))
            right.set_ylabel("share of peak")
            right.spines["right"].set_visible(False)
            right.yaxis.set_major_formatter("{x:.0f} %")
            ax.set_ylim(top=1.15 * max(peak, float(np.nanmax(values))))
        ax.set_ylim(bottom=0)
        curves.finish(ax, axis, "GFLOP/s")

    return draw
