"""The section on frozen layers: which were frozen when, and the compute that it saved."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import curves, words
from .gradients import shorten
from .run import Row, Run, number, series
from .section import HEIGHT, Figure, Section
from .style import LIGHT

if TYPE_CHECKING:
    import matplotlib.figure

_MOST_LABELS = 28  # layers with their name; of more, every second or third is named


class Span(NamedTuple):
    """Layer number `layer`, from the front, computed no gradients from after step `first` to step `last`."""

    layer: int
    first: int
    last: int


def section(run: Run) -> Section | None:
    changes = changes_of(run)
    if not changes:
        return Section("Frozen layers", "Freezing was on, but no layer froze.") if _is_on(run) and run.train else None
    layers, frozen = [str(name) for name in changes[-1]["stages"]], spans(changes, run.steps)
    height = float(np.clip(1.1 + 0.19 * min(len(layers), _MOST_LABELS), HEIGHT, 6.5))
    caption = "Layers by step, the first one on top: dark where they were frozen and backward ended behind them."
    figures = [Figure(caption, _bars(run, layers, frozen), height)]
    if np.isfinite(series(run.train, "saved_compute")).any():
        figures.append(Figure("Saved up to each step, as a share of the same steps without freezing.", _saved(run)))
    return Section("Frozen layers", _text(run, changes, layers), figures)


def changes_of(run: Run) -> list[Row]:
    """The events that froze or thawed."""
    return [
        row
        for row in run.events
        if row.get("event") in ("freeze", "thaw")
        and isinstance(row.get("stages"), list)
        and number(row, "frozen") is not None
        and not run.was_done_anew(row)
    ]


def spans(changes: list[Row], last_step: int) -> list[Span]:
    begun: dict[int, int] = {}
    found = []
    for row in changes:
        now = int(row["frozen"])
        for layer in [layer for layer in begun if layer >= now]:
            found.append(Span(layer, begun.pop(layer), row["step"]))
        begun |= {layer: row["step"] for layer in range(now) if layer not in begun}
    found += [Span(layer, first, last_step) for layer, first in begun.items()]
    return sorted(found)


def _is_on(run: Run) -> bool:
    wish = run.config.get("freeze")
    return isinstance(wish, Mapping) and wish.get("enabled") is True


def _text(run: Run, changes: list[Row], layers: list[str]) -> str:
    parts = []
    last = next((row for row in reversed(run.train) if number(row, "saved_compute") is not None), None)
    if last is not None:
        compute, updates = number(last, "saved_compute") or 0.0, number(last, "saved_updates") or 0.0
        parts.append(
            f"Frozen layers saved {words.percent(compute)} of the products of forward and backward and"
            f" {words.percent(updates)} of parameter updates, up to step {last['step']:,}."
        )
    now = int(changes[-1]["frozen"])
    first = changes[0]["step"]
    parts.append(f"The first froze at step {first:,}; at the end {now} of {len(layers)} layers were frozen.")
    thaws = [row["step"] for row in changes if row["event"] == "thaw"]
    if thaws:
        places = ", ".join(f"{step:,}" for step in thaws[:8]) + (" and later" if len(thaws) > 8 else "")
        parts.append(f"They were thawed at step {places}.")
    return " ".join(parts)


def _bars(run: Run, layers: list[str], frozen: list[Span]) -> Callable[["matplotlib.figure.Figure"], None]:
    axis = curves.step_axis(run)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        ax.barh(range(len(layers)), run.steps, height=0.72, color=LIGHT["rule"], linewidth=0)
        for span in frozen:
            ax.barh(span.layer, span.last - span.first, left=span.first, height=0.72, color=LIGHT["blue"], linewidth=0)
            wide = span.last - span.first > 0.16 * max(1, run.steps)
            if wide and len(layers) <= _MOST_LABELS:
                ax.annotate(
                    f"from {span.first:,}", (span.first, span.layer), xytext=(3, 0), textcoords="offset points",
                    va="center", fontsize=8, color=LIGHT["card"],
                )  # fmt: skip
        stride = -(-len(layers) // _MOST_LABELS)
        ax.set_yticks(range(0, len(layers), stride), [shorten(name) for name in layers[::stride]], fontsize=8)
        ax.set_ylim(len(layers) - 0.5, -0.5)
        ax.set_xlim(right=run.steps)
        ax.grid(False)
        curves.finish(ax, axis, "")

    return draw


def _saved(run: Run) -> Callable[["matplotlib.figure.Figure"], None]:
    axis = curves.step_axis(run)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        steps = axis.of(run.train)
        for name, colour, stroke, label in (
            ("saved_compute", "blue", "-", "products of forward and backward"),
            ("saved_updates", "vermilion", (0, (4, 1.5)), "parameter updates"),
        ):
            points = curves.thin(steps, series(run.train, name))
            marker = "o" if len(points.x) < 3 else None
            ax.plot(points.x, points.mean, color=LIGHT[colour], linestyle=stroke, label=label, marker=marker)
        ax.set_ylim(bottom=0)
        curves.finish(ax, axis, "saved so far")
        ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        ax.legend(loc="upper left")

    return draw
