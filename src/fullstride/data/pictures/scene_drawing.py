"""The pixels of a scene, the same bits on every CPU: additions, multiplications, divisions, roots, least and greatest.

    coverage = clip(1/2 - distance, 0, 1)          distance to the outline in pixels, negative inside
    picture  = picture + coverage (paint - picture),  paint = colour or, where the texture has it, its second tone

Shapes are given in coordinates (u, v) of their own, v down, in which the circle around them has radius 1.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .scene_plan import Look, Plan, Thing

Array = NDArray[np.floating]  # float32: what numpy's types cannot say of the result of most operations
Tone = tuple[float, float, float]

COLOURS: dict[str, Tone] = {
    "red": (218, 38, 38), "orange": (245, 135, 20), "yellow": (245, 220, 40), "green": (40, 155, 60),
    "blue": (40, 80, 210), "purple": (125, 45, 165), "pink": (250, 135, 190), "black": (25, 25, 25),
}  # fmt: skip
BACKGROUNDS: dict[str, Tone] = {
    "white": (248, 248, 248), "grey": (150, 150, 150), "light blue": (185, 218, 245), "beige": (232, 218, 190),
    "graph paper": (248, 248, 248),
}  # fmt: skip
_TINT = 12.0  # most that a colour differs from the table, of 255
_BACKGROUND_TINT = 5.0
_FADE = 8.0  # most that a background is brighter at top or bottom than in the middle
_LINES, _LINE_WIDTH, _LINE_TONE = 8, 0.01, (150.0, 190.0, 230.0)  # of graph paper
_LIGHTER = {"blue": 0.55, "purple": 0.55, "black": 0.8}  # on the way to white is their second tone; others' is darker


def draw(plan: Plan, size: int) -> NDArray[np.uint8]:
    """(size, size, 3), RGB."""
    picture = _background(plan, size)
    for thing, look in zip(plan.scene.things, plan.looks, strict=True):
        _paint(picture, thing, look)
    return picture


def second_tone(colour: str, tone: Tone) -> Tone:
    """Of a texture: where the colour has this tone."""
    if colour in _LIGHTER:
        r, g, b = (c + _LIGHTER[colour] * (255 - c) for c in tone)
    else:
        r, g, b = (0.5 * c for c in tone)
    return r, g, b


def tinted(tone: Tone, tint: Tone, most: float = _TINT) -> Tone:
    r, g, b = (min(max(c + most * t, 0.0), 255.0) for c, t in zip(tone, tint, strict=True))
    return r, g, b


def _background(plan: Plan, size: int) -> NDArray[np.uint8]:
    name = plan.scene.background
    tone = tinted(BACKGROUNDS[name], plan.tint, _BACKGROUND_TINT)
    middle = np.arange(size, dtype=np.float32) + 0.5
    fade = middle * (2 * _FADE * plan.fade / size) - _FADE * plan.fade
    picture = np.empty((size, size, 3), np.uint8)
    lines = _graph_paper(middle, size) if name == "graph paper" else None
    for channel, (first, second) in enumerate(zip(tone, _LINE_TONE, strict=True)):
        paper = np.minimum(fade + first, 255.0)[:, None]
        picture[..., channel] = _rounded(paper if lines is None else paper + lines * (second - paper))
    return picture


def _graph_paper(middle: Array, size: int) -> Array:
    """How much of a pixel its lines cover; at least a pixel is their width."""
    cell, width = size / _LINES, max(_LINE_WIDTH * size, 1.0)
    line = _coverage(np.abs(_saw(middle / cell)) * cell - width / 2, 1.0)
    return np.maximum(line, line[:, None])


def _paint(picture: NDArray[np.uint8], thing: Thing, look: Look) -> None:
    size = len(picture)
    radius, (cos, sin) = look.radius * size, look.turn
    columns, x = _span(look.x * size, radius, size)
    rows, y = _span(look.y * size, radius, size)
    u = x * (cos / radius) + (y * (sin / radius))[:, None]
    v = (y * (cos / radius))[:, None] - x * (sin / radius)
    cover = _coverage(_SHAPES[thing.shape](u, v), radius)
    tone = tinted(COLOURS[thing.colour], look.tint)
    inner = None
    if thing.texture != "plain":
        inner = _TEXTURES[thing.texture](u, v, look, radius)
    for channel, (first, second) in enumerate(zip(tone, second_tone(thing.colour, tone), strict=True)):
        region = picture[rows, columns, channel]
        below = region.astype(np.float32)
        paint = first if inner is None else inner * (second - first) + first
        region[...] = _rounded(below + cover * (paint - below))


def _span(centre: float, radius: float, size: int) -> tuple[slice, Array]:
    """The pixels that a thing may touch along an axis, and where their middles are from its centre."""
    start, stop = max(int(centre - radius - 1), 0), min(int(centre + radius + 2), size)
    return slice(start, stop), np.arange(start, stop, dtype=np.float32) + (0.5 - centre)


def _coverage(distance: Array, radius: float) -> Array:
    return np.clip(0.5 - distance * radius, 0, 1)


def _rounded(values: Array) -> NDArray[np.uint8]:
    return (values + 0.5).astype(np.uint8)


def _saw(x: Array) -> Array:
    """From -1/2 to 1/2 in each whole step."""
    return x - np.floor(x) - 0.5


def _circle(u: Array, v: Array) -> Array:
    return np.sqrt(u * u + v * v) - 0.9


def _square(u: Array, v: Array) -> Array:
    return np.maximum(np.abs(u), np.abs(v)) - 0.7071


def _triangle(u: Array, v: Array) -> Array:
    return np.maximum(v, 0.8660254 * np.abs(u) - 0.5 * v) - 0.5


def _star(u: Array, v: Array) -> Array:
    """Of five lines, a point of a star is on the outer side of one at most: the second greatest distance counts."""
    wide, narrow = 0.95105652 * np.abs(u), 0.58778525 * np.abs(u)
    greatest, second = -v, np.full_like(u, -1.0)
    for line in (wide - 0.30901699 * v, narrow + 0.80901699 * v, 0.80901699 * v - narrow):
        second = np.maximum(second, np.minimum(greatest, line))
        greatest = np.maximum(greatest, line)
    return second - 0.30901699


def _ring(u: Array, v: Array) -> Array:
    return np.abs(np.sqrt(u * u + v * v) - 0.69) - 0.27


def _cross(u: Array, v: Array) -> Array:
    across, along = np.abs(u), np.abs(v)
    return np.maximum(np.maximum(across, along) - 0.95, np.minimum(across, along) - 0.29)


def _heart(u: Array, v: Array) -> Array:
    """A square on its corner and a circle around the middle of either upper side."""
    side, top = np.abs(u), v - 0.08
    square = (side + np.abs(top) - 0.76) * 0.70710678
    circle = np.sqrt((side - 0.38) * (side - 0.38) + (top + 0.38) * (top + 0.38)) - 0.76 * 0.70710678
    return np.minimum(square, circle)


def _diamond(u: Array, v: Array) -> Array:
    return (np.abs(u) + 0.64 * np.abs(v) - 0.64) / 1.18726577  # sqrt(1 + 0.64^2): distances in pixels


_SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "circle": _circle, "square": _square, "triangle": _triangle, "star": _star,
    "ring": _ring, "cross": _cross, "heart": _heart, "diamond": _diamond,
}  # fmt: skip


def _stripe(w: Array, phase: float, period: float, radius: float) -> Array:
    """Half of each period; the edges are as soft as outlines."""
    distance = (np.abs(_saw(w / period + phase)) - 0.25) * period
    return _coverage(distance, radius)


def _striped(u: Array, v: Array, look: Look, radius: float) -> Array:
    w = (u, v, (u + v) * 0.70710678)[look.grain]
    return _stripe(w, look.phase[0], look.period / look.radius, radius)


def _dotted(u: Array, v: Array, look: Look, radius: float) -> Array:
    period = look.period / look.radius
    x, y = _saw(u / period + look.phase[0]), _saw(v / period + look.phase[1])
    return _coverage((np.sqrt(x * x + y * y) - 0.32) * period, radius)


def _checkered(u: Array, v: Array, look: Look, radius: float) -> Array:
    period = 1.2 * look.period / look.radius
    x, y = (_stripe(w, phase, period, radius) for w, phase in zip((u, v), look.phase, strict=True))
    return x + y - 2 * x * y


_TEXTURES: dict[str, Callable[[Array, Array, Look, float], Array]] = {
    "striped": _striped, "dotted": _dotted, "checkered": _checkered,
}  # fmt: skip
