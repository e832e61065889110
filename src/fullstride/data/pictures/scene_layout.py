"""Where the things of a scene lie, so that a caption's words for it are true at a glance.

Of two in a relation, the centres are at least 0.26 of the picture's side and the sum of their radii apart along the
relation's axis, and across it at most 0.36 of that. Things that lie in a place are well inside of its third of the
side, along either axis. No two things touch.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .scene_draws import Draws

RELATIONS = {"left": (0, -1), "right": (0, 1), "above": (1, -1), "below": (1, 1)}  # axis, sign: x to the right, y down
OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}
PLACES = {
    "upper left": (-1, -1), "top": (0, -1), "upper right": (1, -1),
    "left": (-1, 0), "centre": (0, 0), "right": (1, 0),
    "lower left": (-1, 1), "bottom": (0, 1), "lower right": (1, 1),
}  # fmt: skip

_MARGIN = 0.02  # between a thing and the picture's edge
_GAP = 0.03  # between two things
_LEAST_APART = 0.26  # centres of two things in a relation
_ACROSS = 0.18  # of the distance along the axis: how far each may be off the middle between both, across the axis
_OUTER = 0.27  # a place at the left lies between the edge and here
_INNER = 0.44  # one in the middle between here and as far from the other edge
_TRIES = 12


class Spot(NamedTuple):
    x: float
    y: float
    place: str | None


def draw_layout(draws: Draws, radii: Sequence[float], relation: str | None) -> list[Spot] | None:
    """None where there was no room: with other radii there may be."""
    spots = [] if relation is None else _pair(draws, radii[0], radii[1], relation)
    for i in range(len(spots), len(radii)):
        for _ in range(_TRIES):
            spot = _in_place(draws, radii[i])
            if _is_free(spot, radii[i], spots, radii):
                break
        else:
            return None
        spots.append(spot)
    return spots


def are_clearly_different(place: str, other: str) -> bool:
    """Not the same, and no corner beside its side: who says "left" of what is in the upper left is not quite wrong."""
    (x, y), (other_x, other_y) = PLACES[place], PLACES[other]
    beside = (x == other_x != 0 and y * other_y == 0) or (y == other_y != 0 and x * other_x == 0)
    return place != other and not beside


def _pair(draws: Draws, radius: float, other: float, relation: str) -> list[Spot]:
    """The second lies `apart` and up to all the room there is from the first, along the axis of the relation."""
    axis, sign = RELATIONS[relation]
    if sign > 0:
        radius, other = other, radius
    apart = max(radius + other + _GAP, _LEAST_APART)
    room = 1 - 2 * _MARGIN - radius - other - apart
    shifts = sorted((draws.between(0, room), draws.between(0, room)))
    start = _MARGIN + radius
    along = [start + shifts[0], start + apart + shifts[1]]
    widest = _MARGIN + max(radius, other)
    middle, most = draws.between(widest, 1 - widest), _ACROSS * (along[1] - along[0])
    across = [
        min(max(middle + draws.between(-most, most), _MARGIN + r), 1 - _MARGIN - r) for r in (radius, other)
    ]  # fmt: skip
    points = list(zip(along, across, strict=True))[::-sign]
    return [Spot(*(point if axis == 0 else point[::-1]), None) for point in points]


def _in_place(draws: Draws, radius: float) -> Spot:
    place = draws.one(tuple(PLACES))
    x, y = (_coordinate(draws, third, _MARGIN + radius) for third in PLACES[place])
    return Spot(x, y, place)


def _coordinate(draws: Draws, third: int, least: float) -> float:
    if third == 0:
        return draws.between(_INNER, 1 - _INNER)
    outer = draws.between(least, max(least, _OUTER))
    return outer if third < 0 else 1 - outer


def _is_free(spot: Spot, radius: float, spots: Sequence[Spot], radii: Sequence[float]) -> bool:
    return all(
        (spot.x - other.x) ** 2 + (spot.y - other.y) ** 2 >= (radius + r + _GAP) ** 2
        for other, r in zip(spots, radii, strict=False)
    )
