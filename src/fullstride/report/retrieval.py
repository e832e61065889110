"""Sections for a model of pictures and captions.

    quality(rows, run)          recall, accuracy against wrong captions, zero-shot; the temperature over the run
    examples(found)             held-out pictures with the caption that the model finds for each
    loading(run, load, ...)     what a pair takes to load and to preprocess, and how long the training waited
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import curves, words
from .run import Run, series
from .section import Figure, Gallery, Picture, Section, Table

if TYPE_CHECKING:
    import matplotlib.figure


@dataclass(frozen=True)
class Example:
    pixels: NDArray[np.uint8]  # (size, size, 3)
    caption: str
    found: str  # the caption that fits best of all candidates
    similarity: float
    is_right: bool


def quality(rows: Sequence[Mapping[str, Any]], run: Run) -> Section:
    """rows: "what", "share" and "chance" each."""
    cells = [(row["what"], words.percent(row["share"]), words.percent(row["chance"])) for row in rows]
    caption = "Held-out pairs: how often the right one is found, and how often guessing would find it."
    figures = []
    if np.isfinite(series(run.train, "temperature")).any():
        figures.append(Figure("The temperature that the model has learnt, by step.", _temperature(run)))
    return Section("Retrieval", figures=figures, tables=[Table(caption, ("", "model", "chance"), cells)])


def examples(found: Sequence[Example]) -> Section:
    """Right and wrong ones."""
    if not found:
        return Section("Found captions", "There were no pictures to show.")
    pictures = []
    for example in found:
        note = f"similarity {example.similarity:.2f}"
        note += "" if example.is_right else f"; right: {example.caption}"
        pictures.append(Picture(example.pixels, example.found, note, example.is_right))
    wrong = sum(not example.is_right for example in found)
    shown = f"{wrong} held-out picture{'s' * (wrong != 1)}"
    caption = f"{shown} with a wrong caption and {len(found) - wrong} with the right one."
    text = "The caption that fits best among those of the first held-out batch, in green where it is the picture's own."
    return Section("Found captions", text, gallery=Gallery(caption, pictures, is_wide=True))


def loading(run: Run, load: float, preprocess: float) -> Section:
    """load, preprocess: seconds a pair, measured on one core for this report."""
    from .speed import PARTS, time_by_part

    seconds = time_by_part(run)[2]
    rows = [("load a pair", f"{1e3 * load:.3f} ms"), ("preprocess it", f"{1e3 * preprocess:.3f} ms")]
    training = sum(float(seconds[i].sum()) for i, name in enumerate(PARTS) if name not in ("evaluate", "checkpoint"))
    if training > 0:
        waited = float(seconds[list(PARTS).index("data")].sum())
        rows.append(("training waited for data", words.percent(waited / training, 2)))
    if run.end is not None and run.end.get("data"):
        rows.append(("how it was loaded", str(run.end["data"])))
    caption = "Loading reads or draws the picture; preprocessing is augmentation, scaling and tokens."
    return Section("Data", tables=[Table(caption, (), rows)])


def _temperature(run: Run) -> Callable[["matplotlib.figure.Figure"], None]:
    axis = curves.step_axis(run)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        curves.line(ax, axis.of(run.train), series(run.train, "temperature"), "blue")
        ax.set_ylim(bottom=0)
        curves.finish(ax, axis, "temperature")

    return draw
