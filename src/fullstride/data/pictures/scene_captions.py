"""What a scene is called, in one of many phrasings: each mentions every thing, by its colour and shape at least.

    a small red circle to the left of a blue striped square on a grey background
    on grey, a blue striped square with a small red circle on its left
    there is a green star above a yellow ring, and a purple heart in the lower left corner

A template is chosen first, because it decides what a caption can be wrong about: `says_where` of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from .scene_draws import Draws
from .scene_layout import OPPOSITE
from .scene_plan import Scene, Thing

MOST_WORDS = 35

_RELATIONS = {
    "left": ("to the left of", "left of"), "right": ("to the right of", "right of"),
    "above": ("above",), "below": ("below", "under", "beneath"),
}  # fmt: skip
_BESIDE = {
    "left": ("on its left", "to its left"), "right": ("on its right", "to its right"),
    "above": ("above it",), "below": ("below it", "under it", "beneath it"),
}  # fmt: skip
_PLACES = {
    "upper left": ("in the upper left corner", "in the top left corner", "in the upper left"),
    "top": ("at the top",),
    "upper right": ("in the upper right corner", "in the top right corner", "in the upper right"),
    "left": ("on the left", "on the left side"),
    "centre": ("in the centre", "in the middle"),
    "right": ("on the right", "on the right side"),
    "lower left": ("in the lower left corner", "in the bottom left corner", "in the lower left"),
    "bottom": ("at the bottom",),
    "lower right": ("in the lower right corner", "in the bottom right corner", "in the lower right"),
}  # fmt: skip
_COUNTS = ("one shape", "two shapes", "three shapes", "four shapes")


class Detail(NamedTuple):
    """What is said beyond colours and shapes."""

    textures: bool
    sizes: bool
    background: bool


class Template(NamedTuple):
    text: str
    says_where: bool


_ONE = (
    Template("{front}{a} {place}{on}", True),
    Template("there is {a} {place}{on}", True),
    Template("a picture of {a} {place}{on}", True),
    Template("{place} there is {a}{on}", True),
    Template("{place} of the picture is {a}{on}", True),
    Template("{count}{on}: {a} {place}", True),
    Template("a picture of {a}{on}", False),
    Template("{front}{a}{on}", False),
)
_TWO = (
    Template("{front}{a} {relation} {b}{on}", True),
    Template("there is {a} {relation} {b}{on}", True),
    Template("a picture of {a} {relation} {b}{on}", True),
    Template("{front}{b} with {a} {beside}{on}", True),
    Template("{relation} {b} there is {a}{on}", True),
    Template("{a} and {b}{on}, the {short_a} {relation} the {short_b}", True),
    Template("{count}{on}: {a} {relation} {b}", True),
    Template("{count}{on}: {all}", False),
    Template("a picture of {all}{on}", False),
)
_MORE = (
    Template("{front}{a} {relation} {b}{rest}{on}", True),
    Template("there is {a} {relation} {b}{rest}{on}", True),
    Template("a picture of {a} {relation} {b}{with_rest}{on}", True),
    Template("{front}{a} {relation} {b}{with_rest}{on}", True),
    Template("{b} with {a} {beside}{rest}{on}", True),
    Template("{count}{on}: {a} {relation} {b}{rest}", True),
    Template("{count}{on}: {all}", False),
    Template("a picture of {all}{on}", False),
)
TEMPLATES = {1: _ONE, 2: _TWO, 3: _MORE, 4: _MORE}  # by the number of things


def pick(draws: Draws, num: int, says_where: bool = False) -> Template:
    """says_where: only of those that do."""
    return draws.one([template for template in TEMPLATES[num] if template.says_where or not says_where])


def phrase(scene: Scene, template: Template, draws: Draws, full: bool) -> str:
    """full: says all of textures, sizes and the background that MOST_WORDS leave room for; else some are left out."""
    if scene.relation and draws.chance(0.5):
        scene = _seen_from_the_second(scene)
    fixed = _relation(scene, draws) | {"count": _COUNTS[len(scene.things) - 1]}
    places = [draws.one(_PLACES[thing.place]) if thing.place else "" for thing in scene.things]
    background = _background(scene.background, draws, "{front}" in template.text)
    texture_first = draws.chance(0.3)
    for detail in _details(draws, full):
        names = [with_article(_name(thing, detail, texture_first)) for thing in scene.things]
        said = background if detail.background else {"front": "", "on": ""}
        text = template.text.format(**fixed, **said, **_mentions(names, places))
        if len(text.split()) <= MOST_WORDS:
            break
    return text


def with_article(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


def _seen_from_the_second(scene: Scene) -> Scene:
    assert scene.relation is not None
    first, second, *others = scene.things
    return replace(scene, things=(second, first, *others), relation=OPPOSITE[scene.relation])


def _relation(scene: Scene, draws: Draws) -> dict[str, str]:
    """The words for it, and those by which the two things can be told apart when they are mentioned again."""
    if scene.relation is None:
        return {}
    first, second = (" ".join(thing.name) for thing in scene.things[:2])
    relation, beside = draws.one(_RELATIONS[scene.relation]), draws.one(_BESIDE[scene.relation])
    return {"relation": relation, "beside": beside, "short_a": first, "short_b": second}


def _background(name: str, draws: Draws, has_front: bool) -> dict[str, str]:
    """At the beginning or at the end of a caption."""
    if name == "graph paper":
        words = "on graph paper"
    else:
        words = draws.one((f"on a {name} background", f"against a {name} background", f"on {name}"))
    is_first = draws.chance(0.5) and has_front
    return {"front": f"{words}, ", "on": ""} if is_first else {"front": "", "on": f" {words}"}


def _details(draws: Draws, full: bool) -> Iterator[Detail]:
    """What to say, then ever less of it, the background first."""
    textures, sizes, background = (full or draws.chance(likely) for likely in (0.7, 0.7, 0.5))
    yield Detail(textures, sizes, background)
    yield Detail(textures, sizes, False)
    yield Detail(textures, False, False)
    yield Detail(False, False, False)


def _name(thing: Thing, detail: Detail, texture_first: bool) -> str:
    size = thing.size if detail.sizes and thing.size != "medium" else ""
    texture = thing.texture if detail.textures and thing.texture != "plain" else ""
    words = (size, texture, thing.colour) if texture_first else (size, thing.colour, texture)
    return " ".join(word for word in (*words, thing.shape) if word)


def _mentions(names: Sequence[str], places: Sequence[str]) -> dict[str, str]:
    """The first two, the others with their places, and all without."""
    rest = [f"{name} {place}" for name, place in zip(names[2:], places[2:], strict=True)]
    return {
        "a": names[0],
        "b": names[min(1, len(names) - 1)],
        "place": places[0],
        "rest": "".join(f", {one}" for one in rest[:-1]) + f", and {rest[-1]}" if rest else "",
        "with_rest": ", with " + " and ".join(rest) if rest else "",
        "all": ", ".join(names[:-1]) + " and " + names[-1],
    }
