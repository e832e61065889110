"""The section on what was learnt: losses, metrics, learning rate."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from . import curves, slopes, words
from .curves import Axis
from .run import Run, number, series
from .section import Figure, Section, Table
from .style import LIGHT

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

_MOST_EVALUATIONS = 9


def section(run: Run) -> Section:
    if not run.train and not run.evals:
        return Section("Learning", "No step was logged yet: there is nothing to show.")
    figures = []
    for axis, over in ((curves.step_axis(run), "by step"), (curves.time_axis(run), "by time")):
        if np.isfinite(series(run.train + run.evals, "loss")).any():
            figures.append(Figure(f"Loss {over}: training and validation.", _loss(run, axis)))
        for name in run.metrics():
            drawn = _metric(run, axis, name)
            figures.append(Figure(f"{words.label(name).capitalize()} on the validation data {over}.", drawn))
    figures.sort(key=lambda figure: figure.caption.split(" by ")[0])  # the same thing by step and by time, side by side
    figures.sort(key=lambda figure: not figure.caption.startswith("Loss"))
    if np.isfinite(series(run.train, "lr")).any():
        figures.append(Figure("Learning rate by step, of the first parameter group.", _rate(run)))
    tables = [*slopes.tables(run), *([_evaluations(run)] if run.evals else [])]
    return Section("Learning", _text(run), figures, tables)


def _text(run: Run) -> str:
    parts = []
    best = run.best()
    if best is not None and (value := number(best, run.metric)) is not None:
        parts.append(f"Best {words.label(run.metric)}: {words.metric(run.metric, value)}, at step {best['step']:,}.")
    missing = sum(number(row, "loss") is None for row in run.train)
    if missing:
        parts.append(f"The loss was not finite in {missing:,} of {len(run.train):,} logged rows; they are left out.")
    if run.resumes:
        places = ", ".join(f"{step:,}" for step in dict.fromkeys(run.resumes))
        parts.append(f"The run was resumed after step {places}; steps that were done twice count once.")
    if said := slopes.sentences(run):
        parts.append(said if run.end is not None else f"So far: {said[0].lower()}{said[1:]}")
    return " ".join(parts)


def _evaluations(run: Run) -> Table:
    """The best, the last, and so many others from all over the run that the table stays short."""
    count, best = len(run.evals), run.best()
    places = {int(i) for i in np.linspace(0, count - 1, min(count, _MOST_EVALUATIONS))}
    places |= {i for i, row in enumerate(run.evals) if row is best}
    names = [name for name in (*run.metrics(), "loss") if any(number(row, name) is not None for row in run.evals)]
    rows = []
    for i in sorted(places):
        row = run.evals[i]
        values = [number(row, name) for name in names]
        cells = ["-" if x is None else words.metric(name, x) for name, x in zip(names, values, strict=True)]
        time = words.duration(float(run.time_of([row["step"]])[0]))
        rows.append((f"{row['step']:,}{' (best)' if row is best else ''}", time, *cells))
    few = "" if len(places) == count else f" ({len(places)} of {count:,})"
    caption = f"Evaluations on the validation data{few}."
    return Table(caption, ("after step", "time", *(words.label(name) for name in names)), rows)


def _loss(run: Run, axis: Axis) -> Callable[["matplotlib.figure.Figure"], None]:
    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        trained, validated = series(run.train, "loss"), series(run.evals, "loss")
        curves.line(ax, axis.of(run.train), trained, "blue", "training")
        if np.isfinite(validated).any():
            curves.dots(ax, axis.of(run.evals), validated, "vermilion", "validation")
        logarithmic = curves.spans_decades(trained, validated)
        if logarithmic:
            curves.log_scale(ax)
        if run.metric == "loss":
            _mark_best(ax, run, axis)
        curves.finish(ax, axis, "loss, logarithmic" if logarithmic else "loss")
        ax.legend(loc="upper right")

    return draw


def _metric(run: Run, axis: Axis, name: str) -> Callable[["matplotlib.figure.Figure"], None]:
    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        if np.isfinite(series(run.train, name)).any():
            curves.line(ax, axis.of(run.train), series(run.train, name), "blue", "training")
        curves.dots(ax, axis.of(run.evals), series(run.evals, name), "vermilion", "validation")
        if name == run.metric:
            _mark_best(ax, run, axis)
        if words.is_share(name):
            ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        curves.finish(ax, axis, words.label(name))

    return draw


def _mark_best(ax: "Axes", run: Run, axis: Axis) -> None:
    best = run.best()
    value = None if best is None else number(best, run.metric)
    if best is None or value is None:
        return
    x, last = axis.of([best])[0], axis.of(run.evals)[-1]
    below = value >= np.nanmedian(series(run.evals, run.metric))  # on the side that the curve leaves free
    right = x <= 0.75 * last
    ax.plot([x], [value], "o", markersize=9, color=LIGHT["ink"], mfc="none", mew=1.3)
    ax.annotate(
        f"best {words.metric(run.metric, value)}", (x, value), xytext=(0 if right else 6, -12 if below else 12),
        textcoords="offset points", ha="left" if right else "right", va="top" if below else "bottom",
        fontweight="bold", bbox=curves.LABEL,
    )  # fmt: skip


def _rate(run: Run) -> Callable[["matplotlib.figure.Figure"], None]:
    axis = curves.step_axis(run)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        points = curves.thin(axis.of(run.train), series(run.train, "lr"))
        ax.plot(points.x, points.mean, color=LIGHT["green"], marker="o" if len(points.x) < 3 else None)
        ax.set_ylim(bottom=0)
        curves.finish(ax, axis, "learning rate")
        ax.yaxis.set_major_formatter(lambda rate, _: np.format_float_positional(rate, 3, fractional=False, trim="-"))

    return draw
