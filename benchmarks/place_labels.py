"""Names beside dots so that none lies on another: each takes the first free place around its dot, near ones first.

Sizes are estimated from the number of characters, so that the places depend on no font and on no version of anything.
All lengths are in points.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

_CHARACTER, _LINE = 0.56, 1.15  # of the size of the font: the width of one, and the height of a line
_DOT = 3.0  # around the middle of a dot nothing is written
_DISTANCES = (6.0, 12.0, 20.0, 30.0, 42.0, 56.0, 74.0)
_DIRECTIONS = (0, 180, 45, 315, 135, 225, 90, 270, 20, 340, 160, 200, 70, 110, 250, 290)  # degrees; beside it first


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    @classmethod
    def of(cls, text: str, x: float, y: float, size: float, align: str = "left") -> "Box":
        """Of a line whose lower left, or right, corner is there."""
        width = _CHARACTER * size * len(text)
        left = x if align == "left" else x - width
        return cls(left, y, left + width, y + _LINE * size)

    def meets(self, other: "Box") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )


def place(
    labels: Sequence[tuple[str, float, float]],
    dots: Sequence[tuple[float, float]],
    panel: tuple[float, float],
    size: float,
    taken: Sequence[Box] = (),
) -> list[Box]:
    """A box for each (text, x, y of its dot), inside of the panel (width, height) and off dots and what is taken.

    Where there is no free place it takes the one that meets the fewest others.
    """
    around = [Box(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in dots]
    found: dict[int, Box] = {}
    # Those in the thick of it choose first: the others have more places to go to.
    order = sorted(range(len(labels)), key=lambda i: (-_crowd(labels[i], dots), i))
    for i in order:
        others = [*taken, *around, *found.values()]
        candidates = [box for box in _candidates(*labels[i], size) if _inside(box, panel)]
        candidates = candidates or list(_candidates(*labels[i], size))
        found[i] = min(candidates, key=lambda box: sum(box.meets(other) for other in others))
    return [found[i] for i in range(len(labels))]


def _crowd(label: tuple[str, float, float], dots: Sequence[tuple[float, float]]) -> int:
    return sum(math.dist(label[1:], dot) < _DISTANCES[3] for dot in dots)


def _candidates(text: str, x: float, y: float, size: float) -> list[Box]:
    """Nearest first: of two that are as good, min() takes the earlier one."""
    width, height = _CHARACTER * size * len(text), _LINE * size
    boxes = []
    for distance in _DISTANCES:
        for degrees in _DIRECTIONS:
            across, up = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
            middle = x + across * (distance + width / 2), y + up * (distance + height / 2)
            boxes.append(Box.of(text, middle[0] - width / 2, middle[1] - height / 2, size))
    return boxes


def _inside(box: Box, panel: tuple[float, float]) -> bool:
    return box.left >= 0 and box.bottom >= 0 and box.right <= panel[0] and box.top <= panel[1]
