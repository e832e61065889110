"""Drawn scenes with captions, as many as are asked for, stored nowhere: each is a function of (seed, its number).

    source = Scenes(num=100_000, size=64)
    source.picture(7), source.caption(7)    # "a small red circle to the left of a blue striped square on a grey ..."
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from . import scene_captions, scene_drawing, scene_mistakes
from .scene_draws import Draws
from .scene_plan import COLOURS, SHAPES, Plan, Scene, draw_plan
from .source import KINDS, Classes, Kind

VERSION = 1  # of the content: another one for whatever changes a pixel or a word

_PLANS, _CAPTIONS, _WRONG, _CLASSES = 31, 32, 33, 34  # streams of the seed
_NUM_OF_CLASSES = 256  # pictures of each set: as many of every class
_TRIES = 8  # to find a picture whose caption is wrong for another

_Kind = tuple[str | None, str | None]  # colour and shape; None: any


@dataclass(frozen=True)
class Scenes:
    """num: pictures of size x size. first: the number of index 0; a held-out split lies elsewhere in the same seed."""

    num: int
    size: int = 224
    seed: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        for name, least in (("num", 1), ("size", 16), ("first", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected a number from {least} on, got {getattr(self, name)}")

    @property
    def fingerprint(self) -> str:
        return f"scenes {VERSION}: seed {self.seed}, first {self.first}, num {self.num}, size {self.size}"

    def __len__(self) -> int:
        return self.num

    def plan(self, index: int) -> Plan:
        """What is in the picture, and where."""
        return _plan(self.seed, self._number(index))

    def picture(self, index: int) -> NDArray[np.uint8]:
        return scene_drawing.draw(self.plan(index), self.size)

    def caption(self, index: int, draw: int = 0) -> str:
        """That of draw 0 says all: where, sizes, textures and background, as far as it does not get too long."""
        draws = Draws(self.seed, _CAPTIONS, self._number(index), draw)
        return _phrase(draws, self.plan(index).scene, full=draw == 0)

    def wrong_caption(self, index: int, kind: Kind, draw: int = 0) -> str:
        if kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
        draws = Draws(self.seed, _WRONG, self._number(index), draw, KINDS.index(kind))
        plan, full = self.plan(index), draw == 0
        if kind == "easy":
            return _phrase(draws, self._other(draws, plan.scene), full)
        if kind == "medium":
            return _phrase(draws, scene_mistakes.medium(draws, plan.scene), full)
        return _hard(draws, plan, full)

    def is_own(self, index: int, caption: str) -> bool:
        """By the words of draw 0: no two scenes have the same."""
        return caption == self.caption(index)

    def classes(self) -> Sequence[Classes]:
        """The same for all splits of a seed; their pictures are in none of them."""
        pairs = [(colour, shape) for colour in COLOURS for shape in SHAPES]
        return [
            self._classes("shape", [(None, shape) for shape in SHAPES]),
            self._classes("colour", [(colour, None) for colour in COLOURS]),
            self._classes("colour and shape", pairs),
        ]

    def _number(self, index: int) -> int:
        if not 0 <= index < self.num:
            raise IndexError(f"expected an index from 0 to below {self.num}, got {index}")
        return self.first + index

    def _other(self, draws: Draws, scene: Scene) -> Scene:
        """Of another index; one of no index at all where those tried would all be right."""
        for _ in range(_TRIES):
            other = self.plan(draws.below(self.num)).scene
            if scene_mistakes.mentions_what_is_not_there(other, scene):
                return other
        while not scene_mistakes.mentions_what_is_not_there(other, scene):
            other = draw_plan(draws).scene
        return other

    def _classes(self, name: str, kinds: Sequence[_Kind]) -> Classes:
        things = (scene_captions.with_article(f"{colour or ''} {shape or 'shape'}".strip()) for colour, shape in kinds)
        prompts = [f"a picture of {thing}" for thing in things]
        labels = [place % len(kinds) for place in range(_NUM_OF_CLASSES)]
        return Classes(name, prompts, labels, partial(_class_picture, self.seed, self.size, tuple(kinds)))


@lru_cache(maxsize=1 << 14)  # picture, caption and wrong captions ask for the same, epoch after epoch; some 50 MB
def _plan(seed: int, number: int) -> Plan:
    return draw_plan(Draws(seed, _PLANS, number))


def _phrase(draws: Draws, scene: Scene, full: bool) -> str:
    return scene_captions.phrase(scene, scene_captions.pick(draws, len(scene.things), full), draws, full)


def _hard(draws: Draws, plan: Plan, full: bool) -> str:
    """The template is drawn as for right captions, and gives nothing away; then a mistake that it can state."""
    num = len(plan.scene.things)
    template = scene_captions.pick(draws, num, says_where=full)
    mistakes = scene_mistakes.hard(plan, template.says_where)
    if not mistakes:
        template = scene_captions.pick(draws, num, says_where=True)
        mistakes = scene_mistakes.hard(plan, says_where=True)
    return scene_captions.phrase(draws.one(draws.one(mistakes))(), template, draws, full)


def _class_picture(seed: int, size: int, kinds: Sequence[_Kind], place: int) -> NDArray[np.uint8]:
    colour, shape = kinds[place % len(kinds)]
    draws = Draws(seed, _CLASSES, place, colour is None, shape is None)
    return scene_drawing.draw(draw_plan(draws, num=1, colour=colour, shape=shape), size)
