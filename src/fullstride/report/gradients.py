"""The section on gradients: a verdict on each layer, the global norm, each layer's, and the steps that were skipped."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ..run_folder import gradient_verdicts
from ..run_folder.gradient_verdicts import Verdict
from . import curves, words
from .run import Floats, Run, number, series
from .section import HEIGHT, Figure, Section, Table
from .style import LIGHT

if TYPE_CHECKING:
    import matplotlib.figure

_MOST_COLUMNS = 160  # of the heat map
_MOST_ROWS = 4 * _MOST_COLUMNS  # of metrics that go into it
_MOST_LABELS = 28  # layers with their name; of more, every second or third is named
_LONG = 16  # layers: a table of more is folded
_ORDER = ("exploding", "vanishing", "no gradient", "fine")


def section(run: Run) -> Section | None:
    figures = []
    if np.isfinite(series(run.train, "grad_norm")).any():
        figures.append(Figure("Norm of the whole gradient by step, before clipping.", _norm(run)))
    layers, steps, norms = by_layer(run)
    if layers and (norms > 0).any():
        height = float(np.clip(1.1 + 0.19 * min(len(layers), _MOST_LABELS), HEIGHT, 6.5))
        caption = "Norm of the gradient in each layer by step: the first layer on top, brighter is larger."
        figures.append(Figure(caption, _heat_map(run, layers, steps, norms), height))
    if run.skipped == 0:
        skipped = "No step was skipped: every gradient was finite."
    else:
        which = "1 step was" if run.skipped == 1 else f"{run.skipped:,} steps were"
        skipped = f"{which} skipped because a gradient was not finite."
    verdicts = gradient_verdicts.judge(run.train + run.events)
    text = " ".join(part for part in (gradient_verdicts.summary(verdicts), skipped) if part)
    tables = [_verdicts(verdicts)] if verdicts else []
    return Section("Gradients", text, figures, tables) if run.train else None


def _verdicts(verdicts: list[Verdict]) -> Table:
    """Folded where it is long, with those that are not fine first."""
    ordered = sorted(verdicts, key=lambda verdict: _ORDER.index(verdict.word)) if len(verdicts) > _LONG else verdicts
    rows = []
    for verdict in ordered:
        norms = ("-" if x is None else words.significant(x) for x in (verdict.first, verdict.last, verdict.median))
        share = "-" if verdict.share is None else words.significant(verdict.share, 2)
        word = f"{verdict.word}: {verdict.why}" if verdict.why else verdict.word
        rows.append((shorten(verdict.layer), word, *norms, share))
    columns = ("layer", "verdict", "first quarter", "last quarter", "whole run", "influence")
    caption = (
        "Medians of each layer's gradient norm. Influence: that norm times the norm of the weights, by the root of"
        " their number, as a share of the largest, in the last quarter."
    )
    fold = f"All {len(verdicts)} layers with their verdicts" if len(verdicts) > _LONG else ""
    return Table(caption, columns, rows, 2, fold=fold)


def by_layer(run: Run) -> tuple[list[str], Floats, Floats]:
    """Names in the order of the model, steps, and norms (layer, row); NaN where a row has none."""
    rows = [row for row in run.train if isinstance(row.get("grad_norms"), Mapping)]
    rows = [rows[i] for i in sorted({int(i) for i in np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS))})]
    maps = [row["grad_norms"] for row in rows]
    layers = list(dict.fromkeys(name for entry in maps for name in entry))
    norms = np.array([series(maps, name) for name in layers], float).reshape(len(layers), len(maps))
    return layers, np.array([row["step"] for row in rows], float), norms


def _norm(run: Run) -> Callable[["matplotlib.figure.Figure"], None]:
    axis = curves.step_axis(run)
    values = series(run.train, "grad_norm")
    clip = number(run.config, "clip")

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        curves.line(ax, axis.of(run.train), values, "blue")
        logarithmic = curves.spans_decades(values)
        if logarithmic:
            curves.log_scale(ax)
        else:
            ax.set_ylim(bottom=0)
        if clip is not None and clip <= 1.5 * np.nanmax(values):
            ax.axhline(clip, color=LIGHT["vermilion"], linewidth=1.2, linestyle=(0, (5, 2)))
            ax.annotate(
                f"clipped to {clip:g}", (1, clip), xycoords=("axes fraction", "data"), xytext=(-2, 3), ha="right",
                textcoords="offset points", fontsize=9, color=LIGHT["vermilion"],
                bbox=curves.LABEL,
            )  # fmt: skip
        curves.finish(ax, axis, "norm, logarithmic" if logarithmic else "norm")

    return draw


def _heat_map(
    run: Run, layers: list[str], steps: Floats, norms: Floats
) -> Callable[["matplotlib.figure.Figure"], None]:
    axis = curves.step_axis(run)
    norms = np.where(norms > 0, norms, np.nan)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        from matplotlib.colors import LogNorm

        ax = figure.subplots()
        cells, first, last = columns(steps, norms)
        low, high = float(np.nanmin(norms)), float(np.nanmax(norms))
        image = ax.imshow(
            cells, aspect="auto", interpolation="none", cmap="cividis", extent=(first, last, len(layers), 0),
            norm=LogNorm(low, max(high, low * 1.01)),
        )  # fmt: skip
        stride = -(-len(layers) // _MOST_LABELS)
        ax.set_yticks(np.arange(0, len(layers), stride) + 0.5, [shorten(name) for name in layers[::stride]], fontsize=8)
        if len(layers) <= _MOST_LABELS:
            ax.hlines(range(1, len(layers)), first, last, color=LIGHT["card"], linewidth=1.2)
        ax.grid(False)
        curves.finish(ax, axis._replace(resumes=[]), "")  # a thin line on colours says nothing
        bar = figure.colorbar(image, ax=ax, pad=0.02, fraction=0.05, aspect=8 * figure.get_figheight())
        bar.outline.set_visible(False)
        bar.ax.grid(False)
        curves.log_scale(bar.ax)

    return draw


def columns(steps: Floats, norms: Floats) -> tuple[Floats, float, float]:
    """Cells (layer, column) of equal width in steps, the first step and the last.

    A cell is the mean of the rows within it; where there is none, the next row, which stands for the steps before it.
    """
    last = float(steps[-1])
    first = max(0.0, float(steps[0] - np.median(np.diff(steps, prepend=0.0))))
    edges = np.linspace(first, last, int(np.clip(last - first, 1, _MOST_COLUMNS)) + 1)
    places = np.searchsorted(steps, edges + 1e-9, side="right")
    cells = np.empty((len(norms), len(edges) - 1))
    for i, (begin, end) in enumerate(pairwise(places)):
        begin = min(begin, len(steps) - 1)
        part = norms[:, begin : max(end, begin + 1)]
        present = np.isfinite(part)
        sums = np.where(present, part, 0.0).sum(axis=1)
        cells[:, i] = np.where(present.any(axis=1), sums / np.maximum(present.sum(axis=1), 1), np.nan)
    return cells, first, last


def shorten(name: str, longest: int = 26) -> str:
    """Beginning and end: blocks.11.att...query.weight. A mere number, as in nn.Sequential, is a layer's."""
    if name.isdecimal():
        return f"layer {name}"
    tail = longest // 2 - 1
    return name if len(name) <= longest else f"{name[: longest - tail - 3]}...{name[-tail:]}"
