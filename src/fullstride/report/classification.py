"""Sections for a classifier: who is taken for whom, and the mistakes themselves.

    confusion(labels, predictions, names)          a matrix, and what each class got
    mistakes(images, labels, predictions, ...)     the wrongly read ones, the most confident first

Arrays of numpy, one entry a sample of the held-out data.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import words
from .section import WIDTH, Figure, Gallery, Picture, Section, Table
from .style import LIGHT

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

Array = NDArray[Any]
_MOST_CELLS_WITH_NUMBERS = 20  # classes
_MOST_CLASSES_IN_A_TABLE = 20


def confusion(labels: Array, predictions: Array, names: Sequence[str] | None = None) -> Section:
    """How often each class (row) was taken for each (column). `names`: of the classes 0, 1, ..."""
    labels, predictions = _check(labels, predictions)
    if not len(labels):
        return Section("Confusion matrix", "There were no samples to evaluate.")
    names = _names(names, int(max(labels.max(), predictions.max())) + 1)
    matrix = np.zeros((len(names), len(names)), np.int64)
    np.add.at(matrix, (labels, predictions), 1)
    right = int(np.trace(matrix))
    caption = "Confusion matrix: rows are the true classes, columns what they were taken for."
    figure = Figure(caption, _matrix(matrix, names), 0.95 * WIDTH)
    tables = [_by_class(matrix, names)] if len(names) <= _MOST_CLASSES_IN_A_TABLE else []
    text = f"{right:,} of {len(labels):,} samples were classified correctly, {words.percent(right / len(labels))}."
    return Section("Confusion matrix", text + _pairs(matrix, names), [figure], tables)


def mistakes(
    images: Array,
    labels: Array,
    predictions: Array,
    confidences: Array | None = None,
    names: Sequence[str] | None = None,
    limit: int = 36,
) -> Section:
    """Images (N, H, W), (N, C, H, W) with 1 or 3 channels, or flat (N, C * H * H), in any range of values.

    `confidences`: the probability that the model gave to its prediction.
    """
    labels, predictions = _check(labels, predictions)
    if len(images) != len(labels):
        raise ValueError(f"images: expected one for each of {len(labels)} labels, got {len(images)}")
    wrong = np.flatnonzero(labels != predictions)
    title = "Mistakes"
    if not len(wrong):
        return Section(title, f"None: all {len(labels):,} samples were classified correctly.")
    names = _names(names, int(max(labels.max(), predictions.max())) + 1)
    order = "the first"
    if confidences is not None:
        wrong = wrong[np.argsort(-np.asarray(confidences, float)[wrong], kind="stable")]
        order = "the most confident first"
    shown = wrong[:limit]
    pictures = []
    for i, pixels in zip(shown, _pixels(np.asarray(images)[shown]), strict=True):
        sure = "" if confidences is None else f" ({100 * float(confidences[i]):.0f} %)"
        pictures.append(Picture(pixels, f"{names[predictions[i]]}{sure}", f"is {names[labels[i]]}"))
    caption = f"{len(shown)} of {len(wrong):,} mistakes, {order}: in colour what the model said, then what is right."
    text = f"{len(wrong):,} of {len(labels):,} samples were classified wrongly."
    return Section(title, text, gallery=Gallery(caption, pictures))


def _check(labels: Array, predictions: Array) -> tuple[Array, Array]:
    labels, predictions = np.asarray(labels, np.int64), np.asarray(predictions, np.int64)
    if labels.ndim != 1 or labels.shape != predictions.shape:
        raise ValueError(f"expected as many predictions as labels, got {predictions.shape} and {labels.shape}")
    return labels, predictions


def _names(names: Sequence[str] | None, count: int) -> list[str]:
    known = [] if names is None else [str(name) for name in names]
    return known + [str(i) for i in range(len(known), count)]


def _by_class(matrix: Array, names: Sequence[str]) -> Table:
    rows = []
    for i, name in enumerate(names):
        is_one, said, right = int(matrix[i].sum()), int(matrix[:, i].sum()), int(matrix[i, i])
        found = words.percent(right / is_one) if is_one else "-"
        true = words.percent(right / said) if said else "-"
        rows.append((name, f"{is_one:,}", found, true))
    caption = "Each class: the share of its samples that was recognised, and the share of those called so that are."
    return Table(caption, ("class", "samples", "recall", "precision"), rows)


def _pairs(matrix: Array, names: Sequence[str]) -> str:
    """The most frequent mistakes as a sentence, if any was made twice."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:3]
    places = [(int(place) // len(names), int(place) % len(names)) for place in order]
    pairs = [f"{names[i]} taken for {names[j]} ({wrong[i, j]:,} times)" for i, j in places if wrong[i, j] > 1]
    return f" The most frequent mistakes: {', '.join(pairs)}." if pairs else ""


def _matrix(matrix: Array, names: Sequence[str]) -> Callable[["matplotlib.figure.Figure"], None]:
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    # By the square root, or single mistakes would not be seen.
    strength = np.where(matrix > 0, 0.12 + 0.88 * np.sqrt(share), 0.0)

    def draw(figure: "matplotlib.figure.Figure") -> None:
        ax = figure.subplots()
        ax.grid(False)
        ax.set_aspect("equal")
        ax.set_xlim(-0.5, len(names) - 0.5)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.xaxis.tick_top()
        ax.xaxis.set_label_position("top")
        ax.set_xlabel("taken for")
        ax.set_ylabel("true class")
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(length=0)
        if len(names) <= _MOST_CELLS_WITH_NUMBERS:
            _draw_cells(ax, matrix, strength, names)
        else:
            ax.imshow(_colours(strength), interpolation="none")

    return draw


def _draw_cells(ax: "Axes", matrix: Array, strength: Array, names: Sequence[str]) -> None:
    from matplotlib.patches import Rectangle

    ax.set_xticks(range(len(names)), names, rotation=0 if max(map(len, names)) <= 3 else 90)
    ax.set_yticks(range(len(names)), names)
    for i in range(len(names)):
        for j in range(len(names)):
            colour = LIGHT["strong" if i == j else "vermilion"] if matrix[i, j] else LIGHT["rule"]
            alpha = float(strength[i, j]) if matrix[i, j] else 0.35
            ax.add_patch(Rectangle((j - 0.47, i - 0.47), 0.94, 0.94, facecolor=colour, alpha=alpha, linewidth=0))
            if matrix[i, j]:
                ax.text(
                    j, i, f"{matrix[i, j]}", ha="center", va="center_baseline", fontsize=10 if len(names) <= 10 else 7,
                    color="#ffffff" if i == j and alpha > 0.6 else LIGHT["ink"],
                )  # fmt: skip


def _colours(strength: Array) -> Array:
    """RGBA: blue where right, vermilion where wrong; the page shows through."""
    from matplotlib.colors import to_rgb

    cells = np.empty((*strength.shape, 4))
    cells[..., :3] = to_rgb(LIGHT["vermilion"])
    cells[np.arange(len(cells)), np.arange(len(cells)), :3] = to_rgb(LIGHT["blue"])
    cells[..., 3] = np.where(strength > 0, 0.2 + 0.8 * strength, 0.0)
    return cells


def _pixels(images: Array) -> NDArray[np.uint8]:
    """(N, H, W, 3), each picture from its darkest to its lightest; single-channel ones as ink on paper."""
    if images.ndim == 2:
        size = images.shape[1]
        sides = {channels: math.isqrt(size // channels) for channels in (1, 3)}
        shapes = [(channels, side, side) for channels, side in sides.items() if channels * side * side == size]
        if not shapes:
            raise ValueError(f"images: expected flat ones of a square with 1 or 3 channels, got {size} values each")
        images = images.reshape(-1, *shapes[0])
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"images: expected (N, H, W) or (N, 1 or 3, H, W), got {images.shape}")
    images = images.astype(np.float64)
    low, high = images.min(axis=(1, 2, 3), keepdims=True), images.max(axis=(1, 2, 3), keepdims=True)
    images = (images - low) / np.maximum(high - low, 1e-12)
    if images.shape[1] == 1:
        images = np.repeat(1.0 - images, 3, axis=1)
    return np.round(255 * images).astype(np.uint8).transpose(0, 2, 3, 1)
