"""The section on what the run took from the machine: cores, memory and energy."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from . import cores, curves, words
from .run import Run, number, series
from .section import Figure, Section
from .style import LIGHT

if TYPE_CHECKING:
    import matplotlib.figure


def section(run: Run) -> Section | None:
    if not run.train:
        return None
    resident = series(run.train, "resident_mb")
    figures, parts = cores.figures(run), [said] if (said := cores.text(run)) else []
    if np.isfinite(resident).any():
        figures.append(Figure("Resident memory of the process by step.", _memory(run)))
        parts.append(f"At most {words.megabytes(float(np.nanmax(resident)))} were resident at a logged step.")
    joules, label = energy(run)
    if joules is None:
        parts.append(f"Energy is {label}.")
    else:
        watts = f" ({words.significant(joules / run.seconds)} W on average)" if run.seconds else ""
        parts.append(f"Energy: {words.energy(joules)}, {label}{watts}: the whole CPU, whoever used it.")
        parts += [said] if (said := _share_per_watt_hour(run, joules)) else []
        if np.isfinite(run.joules).sum() > 1:
            figures.append(Figure("Energy that the CPU packages took, by time.", _energy(run)))
    return Section("Cores, memory and energy", " ".join(parts), figures)


def energy(run: Run) -> tuple[float | None, str]:
    """(joules, "measured"), or (None, "unavailable: why"). What was not measured is not 0."""
    known = run.joules[np.isfinite(run.joules)]
    if len(known) and known[-1] > 0:
        return float(known[-1]), "measured"
    label = run.machine.get("energy")
    return None, label if isinstance(label, str) and label.startswith("unavailable") else "unavailable"


def _share_per_watt_hour(run: Run, joules: float) -> str:
    """What the energy bought, where that is a share: an accuracy, a recall."""
    best = run.best()
    value = None if best is None else number(best, run.metric)
    if value is None or not words.is_share(run.metric):
        return ""
    rate = words.significant(100 * value / (joules / 3600))
    return f"That is {rate} points of {words.label(run.metric)} a Wh, of the best evaluation for all energy of the run."


def _memory(run: Run) -> Callable[["matplotlib.figure.Figure"], None]:
    axis = curves.step_axis(run)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        points = curves.thin(axis.of(run.train), series(run.train, "resident_mb") / 1000)
        ax.fill_between(points.x, points.high, color=LIGHT["purple"], alpha=0.18, linewidth=0)
        ax.plot(points.x, points.high, color=LIGHT["purple"], marker="o" if len(points.x) < 3 else None)
        ax.set_ylim(0, 1.15 * float(points.high.max()))
        curves.finish(ax, axis, "GB")

    return draw


def _energy(run: Run) -> Callable[["matplotlib.figure.Figure"], None]:
    axis = curves.time_axis(run)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        points = curves.thin(axis.of(run.train), run.joules / 1000)
        ax.plot(points.x, points.mean, color=LIGHT["amber"])
        ax.set_ylim(bottom=0)
        curves.finish(ax, axis, "kJ")

    return draw
