"""Reads captions of scenes and tells what is false of a picture, by where its things lie and not by how it was made."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from fullstride.data.pictures.scene_plan import COLOURS, SHAPES, Look, Plan

_TEXTURE = "striped|dotted|checkered"
_KIND = rf"(?:{'|'.join(COLOURS)})(?: (?:{_TEXTURE}))? (?:{'|'.join(SHAPES)})"
_THING = rf"(?:an?|the) (?:small |large )?(?:(?:{_TEXTURE}) )?{_KIND}"
_RELATION = "left of|right of|above|below|under|beneath"
_BESIDE = "(?:on|to) its left|(?:on|to) its right|above it|below it|under it|beneath it"
_PLACE = (
    "(?:in|at|on) the (?:(?:upper|top|lower|bottom) (?:left|right)(?: corner)?"
    "|top|bottom|left(?: side)?|right(?: side)?|centre|middle)"
)


class Mention(NamedTuple):
    colour: str
    shape: str
    size: str | None
    texture: str | None

    @property
    def name(self) -> tuple[str, str]:
        return self.colour, self.shape


def mentions(caption: str) -> list[Mention]:
    """Each thing once: who mentions it again says "the"."""
    return [_mention(text) for text in re.findall(_THING, caption) if not text.startswith("the ")]


def relations(caption: str) -> Iterator[tuple[Mention, str, Mention]]:
    """(one, direction, other): one lies in that direction from the other."""
    for one, word, other in re.findall(rf"({_THING}) (?:to the )?({_RELATION}) ({_THING})", caption):
        yield _mention(one), _direction(word), _mention(other)
    for other, one, word in re.findall(rf"({_THING}) with ({_THING}) ({_BESIDE})", caption):
        yield _mention(one), _direction(word), _mention(other)
    for word, other, one in re.findall(rf"^(?:to the )?({_RELATION}) ({_THING}) there is ({_THING})", caption):
        yield _mention(one), _direction(word), _mention(other)


def places(caption: str) -> Iterator[tuple[Mention, set[str]]]:
    """(one, the thirds of the picture it lies in): {"top", "left"}."""
    for one, words in re.findall(rf"({_THING}) ({_PLACE})", caption):
        yield _mention(one), _thirds(words)
    for words, one in re.findall(rf"^({_PLACE})(?: of the picture is| there is) ({_THING})", caption):
        yield _mention(one), _thirds(words)


def falsehoods(caption: str, plan: Plan) -> set[str]:
    """What a caption says and the picture does not show: of "things", "relation", "place", "size", "texture"."""
    looks = {thing.name: look for thing, look in zip(plan.scene.things, plan.looks, strict=True)}
    textures = {thing.name: thing.texture for thing in plan.scene.things}
    said = mentions(caption)
    false = set() if sorted(one.name for one in said) == sorted(looks) else {"things"}
    for one in said:
        if one.name in looks and one.size not in (None, _size(looks[one.name])):
            false.add("size")
        if one.texture not in (None, textures.get(one.name, one.texture)):
            false.add("texture")
    for one, direction, other in relations(caption):
        if {one.name, other.name} <= set(looks) and direction != _seen(looks[one.name], looks[other.name]):
            false.add("relation")
    for one, thirds in places(caption):
        if one.name in looks and thirds != _seen_in(looks[one.name]):
            false.add("place")
    return false


def _mention(text: str) -> Mention:
    words = text.split()[1:]
    size = next((word for word in words if word in ("small", "large")), None)
    texture = next((word for word in words if word in _TEXTURE.split("|")), None)
    return Mention(next(word for word in words if word in COLOURS), words[-1], size, texture)


def _direction(words: str) -> str:
    for word in ("left", "right", "above"):
        if word in words:
            return word
    return "below"


def _thirds(words: str) -> set[str]:
    names = {"upper": "top", "top": "top", "lower": "bottom", "bottom": "bottom", "left": "left", "right": "right"}
    return {names[word] for word in words.split() if word in names}


def _seen_in(look: Look) -> set[str]:
    return _third(look.x, "left", "right") | _third(look.y, "top", "bottom")


def _third(position: float, low: str, high: str) -> set[str]:
    return {low} if position < 1 / 3 else {high} if position > 2 / 3 else set()


def _seen(one: Look, other: Look) -> str:
    x, y = one.x - other.x, one.y - other.y
    if abs(x) > 2 * abs(y):
        return "left" if x < 0 else "right"
    if abs(y) <= 2 * abs(x):
        return "no clear direction"  # of a caption that is right it would be a falsehood
    return "above" if y < 0 else "below"


def _size(look: Look) -> str:
    return "small" if look.radius < 0.12 else "large" if look.radius > 0.17 else "medium"
