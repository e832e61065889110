"""What freezing.py found, as a picture: python -m benchmarks.freezing_picture FILE.json PICTURE.svg

On top, for one run of each task without freezing: how far each layer's weights moved in 30 steps, as a share of the
farthest (what `slowed` looks at), and the smoothed norm of its gradient, as a share of the largest (what the others
look at). Below, for each criterion: the compute that was saved against what that cost.
"""

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fullstride.optim._criteria import smoothed
from fullstride.report import drawing, style
from fullstride.report.section import Figure

from .freezing import TASKS, lost
from .llama_curves_picture import standalone

_MARKERS = {"slowed": ("blue", "o"), "below": ("vermilion", "s"), "settled": ("green", "^")}
_GOALS = {"accuracy": 0.3, "loss": 0.01}  # at most so much lost
_MOST = {"accuracy": 1.2, "loss": 0.12}  # shown: what costs more is out of the question
_UNITS = {"accuracy": "points lost", "loss": "nats lost"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws what freezing.py found.")
    parser.add_argument("file", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    options.picture.write_text(draw(json.loads(options.file.read_text())))


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    drawing.require_matplotlib()
    tasks = [task for task in TASKS if any(row["task"] == task and row["case"] == "none" for row in rows)]

    def paint(canvas: Any) -> None:
        axes = canvas.subplots(3, len(tasks), squeeze=False)
        for column, task in enumerate(tasks):
            plain = next(row for row in rows if row["task"] == task and row["case"] == "none")
            _shares(axes[0][column], [(row["step"], row["moved"]) for row in plain["moved"]])
            axes[0][column].set_title(task)
            _shares(axes[1][column], _smooth([(row["step"], row["norms"]) for row in plain["norms"]]))
            _trade(axes[2][column], rows, task)
        axes[0][0].set_ylabel("movement, of the farthest")
        axes[1][0].set_ylabel("gradient, of the largest")

    caption = "What criteria of freezing look at, and what each saves and costs."
    return standalone(drawing.draw(Figure(caption, paint, height=8.2), number=0))


def _shares(ax: Any, points: Sequence[tuple[int, Mapping[str, float]]]) -> None:
    """A line a layer."""
    for number, layer in enumerate(points[0][1]):
        largest, steps, shares = 0.0, [], []
        for step, values in points:
            if values.get(layer):  # a gradient that was not finite has no norm
                largest = max(largest, values[layer])
                steps.append(step)
                shares.append(values[layer] / largest)
        colour = style.LIGHT[style.SERIES[number % len(style.SERIES)]]
        ax.plot(steps, shares, color=colour, linewidth=1.1)
    ax.set(ylim=(0, 1.05), xlabel="step")


def _smooth(points: Sequence[tuple[int, Mapping[str, float]]]) -> list[tuple[int, dict[str, float]]]:
    means: dict[str, float] = {}
    found = []
    for step, parts in points:
        norms = _by_block(parts)
        means |= {name: smoothed(means.get(name), norm, 0.8) for name, norm in norms.items()}
        found.append((step, dict(means)))
    return found


def _by_block(norms: Mapping[str, float | None]) -> dict[str, float]:
    """Of each block, whose parts are named after it: layers.0.attention.query is of layers.0."""
    squares: dict[str, float] = {}
    for name, norm in norms.items():
        block = ".".join(name.split(".")[:2])
        squares[block] = squares.get(block, 0.0) + (norm or 0.0) ** 2  # none where it was not finite
    return {block: math.sqrt(square) for block, square in squares.items()}


def _trade(ax: Any, rows: Sequence[Mapping[str, Any]], task: str) -> None:
    named: set[str] = set()
    for case, losses in lost(rows, task).items():
        criterion, _, threshold = case.partition("-")
        colour, marker = _MARKERS[criterion]
        saved = [100 * row["saved_compute"] for row in rows if (row["task"], row["case"]) == (task, case)]
        x, y = statistics.mean(saved), statistics.mean(losses)
        label = None if criterion in named else criterion
        named.add(criterion)
        ax.plot([x, x], [min(losses), max(losses)], color=style.LIGHT[colour], linewidth=0.8)
        ax.plot([x], [y], marker, color=style.LIGHT[colour], label=label, linestyle="none")
        ax.annotate(threshold, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7.5)
    goal = _GOALS[TASKS[task]]
    ax.axhline(goal, color=style.LIGHT["grey"], linewidth=0.9, linestyle=(0, (4, 2)))
    ax.set(xlabel="% saved", ylabel=_UNITS[TASKS[task]])
    ax.set_ylim(top=_MOST[TASKS[task]])
    ax.legend(loc="best", fontsize="small")


if __name__ == "__main__":
    main()
