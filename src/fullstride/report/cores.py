"""How busy each core was while the run went on, and how much of that was this process."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from . import curves, words
from .gradients import columns
from .run import Floats, Row, Run, number, series
from .section import HEIGHT, Figure
from .style import LIGHT

if TYPE_CHECKING:
    import matplotlib.figure

_MOST_LABELS = 28  # cores with their number; of more, every second or third is named


def figures(run: Run) -> list[Figure]:
    rows = _rows(run)
    if not rows:
        return []
    cores = _names(rows)
    height = float(np.clip(1.1 + 0.19 * min(len(cores), _MOST_LABELS), HEIGHT, 6.5))
    return [
        Figure("How busy each core was, by step: with this process or with others.", _heat_map(run, rows), height),
        Figure("Cores' worth of CPU time by step: this process, and others on the same cores.", _areas(run, rows)),
    ]


def text(run: Run) -> str:
    """What the cores did on average, by time."""
    rows = _rows(run)
    if not rows:
        known = [row for row in run.train if number(row, "own_cores") is not None]
        if not known:
            return ""
        mean = float(np.average(series(known, "own_cores"), weights=_seconds(known)))
        return f"The process used {mean:.2f} cores' worth of time; this system does not tell how busy each core was."
    names, seconds = _names(rows), _seconds(rows)
    shares = np.average(_shares(rows, names), axis=1, weights=seconds)
    own = float(np.average(series(rows, "own_cores"), weights=seconds))
    busy = float(shares.sum())
    others = max(0.0, busy - own) / busy if busy > 0 else 0.0
    if len(names) == 1:
        which = f"Core {names[0]} was {words.percent(float(shares[0]), 0)} busy"
    else:
        count = "Both cores were" if len(names) == 2 else f"The {len(names)} cores that the process may use were"
        low, high = words.percent(float(shares.min()), 0), words.percent(float(shares.max()), 0)
        spread = "" if low == high else f" ({low} to {high} each)"
        which = f"{count} {words.percent(busy / len(names), 0)} busy{spread}"
    mine = f"This one used {own:.2f} cores' worth of time."
    return f"{which}; {words.percent(others, 0)} of that was other processes. {mine}"


def _rows(run: Run) -> list[Row]:
    """Those that have it. A row that followed too soon on another has none, and its time is in the next."""
    return [
        row for row in run.train
        if isinstance(row.get("cores"), Mapping) and row["cores"] and number(row, "own_cores") is not None
    ]  # fmt: skip


def _names(rows: list[Row]) -> list[str]:
    names = dict.fromkeys(str(name) for row in rows for name in row["cores"])
    return sorted(names, key=lambda name: (int(name) if name.isdecimal() else 1 << 30, name))


def _shares(rows: list[Row], names: list[str]) -> Floats:
    """(core, row); a core that the process might not use then was idle for it."""
    found = np.array([series([row["cores"] for row in rows], name) for name in names], np.float64)
    return np.nan_to_num(found.reshape(len(names), len(rows)))


def _seconds(rows: list[Row]) -> Floats:
    """How long each row took, for means: the time of its steps, or the same for all."""
    found = np.array([sum(value for value in _parts(row) if value > 0) for row in rows], np.float64)
    return found if (found > 0).all() else np.ones(len(rows))


def _parts(row: Row) -> list[float]:
    parts = row.get("time")
    values = [number(parts, name) for name in parts if name != "wall"] if isinstance(parts, Mapping) else []
    return [value for value in values if value is not None]


def _heat_map(run: Run, rows: list[Row]) -> Callable[["matplotlib.figure.Figure"], None]:
    axis, names = curves.step_axis(run), _names(rows)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        cells, first, last = columns(axis.of(rows), _shares(rows, names))
        image = ax.imshow(
            cells, aspect="auto", interpolation="none", cmap="cividis", extent=(first, last, len(names), 0),
            vmin=0, vmax=1,
        )  # fmt: skip
        stride = -(-len(names) // _MOST_LABELS)
        ax.set_yticks(np.arange(0, len(names), stride) + 0.5, [f"core {name}" for name in names[::stride]])
        if len(names) <= _MOST_LABELS:
            ax.hlines(range(1, len(names)), first, last, color=LIGHT["card"], linewidth=1.2)
        ax.grid(False)
        curves.finish(ax, axis._replace(resumes=[]), "")
        bar = figure.colorbar(image, ax=ax, pad=0.02, fraction=0.05, aspect=8 * figure.get_figheight())
        bar.outline.set_visible(False)
        bar.ax.grid(False)
        bar.ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")

    return draw


def _areas(run: Run, rows: list[Row]) -> Callable[["matplotlib.figure.Figure"], None]:
    axis, names = curves.step_axis(run), _names(rows)
    own, busy = series(rows, "own_cores"), _shares(rows, names).sum(axis=0)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        x, mine = curves.thin(axis.of(rows), own)[:2]
        every = np.maximum(curves.thin(axis.of(rows), busy).mean, mine)
        ax.fill_between(x, mine, color=LIGHT["blue"], alpha=0.45, linewidth=0, label="this process")
        ax.fill_between(x, mine, every, color=LIGHT["grey"], alpha=0.45, linewidth=0, label="others")
        ax.plot(x, mine, color=LIGHT["blue"], marker="o" if len(x) < 3 else None)
        ax.axhline(len(names), color=LIGHT["ink"], linewidth=1.0, linestyle=(0, (5, 2)))
        ax.set_ylim(0, 1.35 * len(names))
        curves.finish(ax, axis, "cores")
        ax.legend(loc="upper right", ncols=2)

    return draw
