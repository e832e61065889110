"""What is in a scene: one to four things on a background, what each looks like and where it lies.

A Scene is what captions can speak of; a Plan has the numbers, too, that say where its pixels go. The first of several
things is left of, right of, above or below the second; the others, and one alone, lie in one of nine places.
"""

from dataclasses import dataclass

from . import scene_layout
from .scene_draws import Draws

SHAPES = ("circle", "square", "triangle", "star", "ring", "cross", "heart", "diamond")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black")
BACKGROUNDS = ("white", "grey", "light blue", "beige", "graph paper")

_NUMBERS = {1: 0.15, 2: 0.45, 3: 0.25, 4: 0.15}
_TEXTURES = {"plain": 0.55, "striped": 0.15, "dotted": 0.15, "checkered": 0.15}
_FEW_SIZES = {"small": 0.3, "medium": 0.4, "large": 0.3}
_MANY_SIZES = {"small": 0.4, "medium": 0.45, "large": 0.15}  # of three or four, which have to find room
_RADII = {"small": (0.09, 0.105), "medium": (0.135, 0.155), "large": (0.19, 0.215)}  # the picture's side is 1
_MOST_TURN = 0.08  # tangent of half the angle: 9 degrees make a square no diamond, a cross no X


@dataclass(frozen=True)
class Thing:
    shape: str
    colour: str
    size: str  # "medium" is not spoken of
    texture: str  # "plain" is not spoken of
    place: str | None  # of scene_layout.PLACES; None where the relation says it

    @property
    def name(self) -> tuple[str, str]:
        """By which a caption tells the things of a scene apart: no two have the same."""
        return self.colour, self.shape


@dataclass(frozen=True)
class Scene:
    things: tuple[Thing, ...]
    relation: str | None  # in which the first stands to the second, of scene_layout.RELATIONS; None for one alone
    background: str


@dataclass(frozen=True)
class Look:
    """Of a thing, what no caption says. Lengths are parts of the picture's side."""

    x: float  # of the centre, from the left
    y: float  # from the top
    radius: float  # of the circle around it
    turn: tuple[float, float]  # cosine and sine of the angle
    tint: tuple[float, float, float]  # from -1 to 1: how far the colour is from the usual, in each channel
    period: float  # of the texture
    phase: tuple[float, float]
    grain: int  # the direction of stripes


@dataclass(frozen=True)
class Plan:
    scene: Scene
    looks: tuple[Look, ...]
    tint: tuple[float, float, float]  # of the background, as of things
    fade: float  # from -1 to 1: how much brighter it is at the bottom than at the top


def draw_plan(draws: Draws, num: int | None = None, colour: str | None = None, shape: str | None = None) -> Plan:
    """num: of things; colour and shape: of the first. None: drawn."""
    num = draws.weighted(_NUMBERS) if num is None else num
    names = [(colour or draws.one(COLOURS), shape or draws.one(SHAPES))]
    while len(names) < num:
        name = draws.one(COLOURS), draws.one(SHAPES)
        if name not in names:
            names.append(name)
    textures = [draws.weighted(_TEXTURES) for _ in names]
    relation = draws.one(tuple(scene_layout.RELATIONS)) if num > 1 else None
    layout = None
    while layout is None:  # where there was no room: one try in six for four things
        sizes = [draws.weighted(_FEW_SIZES if num < 3 else _MANY_SIZES) for _ in names]
        radii = [draws.between(*_RADII[size]) for size in sizes]
        layout = scene_layout.draw_layout(draws, radii, relation)
    things = tuple(
        Thing(shape, colour, size, texture, spot.place)
        for (colour, shape), size, texture, spot in zip(names, sizes, textures, layout, strict=True)
    )
    looks = tuple(_look(draws, spot.x, spot.y, radius) for spot, radius in zip(layout, radii, strict=True))
    scene = Scene(things, relation, draws.one(BACKGROUNDS))
    return Plan(scene, looks, _tint(draws), draws.between(-1, 1))


def _look(draws: Draws, x: float, y: float, radius: float) -> Look:
    half = draws.between(-_MOST_TURN, _MOST_TURN)
    turn = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    phase = draws.between(0, 1), draws.between(0, 1)
    return Look(x, y, radius, turn, _tint(draws), draws.between(0.07, 0.085), phase, draws.below(3))


def _tint(draws: Draws) -> tuple[float, float, float]:
    return draws.between(-1, 1), draws.between(-1, 1), draws.between(-1, 1)
