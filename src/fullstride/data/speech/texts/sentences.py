"""English sentences without an end, to be spoken: sentence i is a function of (seed, i) alone.

    sentence(seed, i)   one of PATTERNS, filled with words of the vocabulary; never a held-out one
"""

from functools import cache

import numpy as np

from ..._random import bits
from .everyday import HELD_OUT
from .patterns import PATTERNS

_STREAM = 0x5E27  # of the seed; other uses have others
_BLOCK = 64  # draws made at once; most sentences take fewer
_SHORTEST, _LONGEST = 3, 16  # words


class _Draws:
    """The random choices of one sentence, by nothing that a version of numpy may do differently."""

    def __init__(self, seed: int, index: int) -> None:
        self._seed, self._index, self._block = seed, index, 0
        self._left: list[int] = []

    def below(self, stop: int) -> int:
        if not self._left:
            places = np.arange(self._block * _BLOCK, (self._block + 1) * _BLOCK, dtype=np.int64)
            self._left = bits(self._seed, _STREAM, np.full(_BLOCK, self._index, np.int64), places)[::-1].tolist()
            self._block += 1
        return self._left.pop() % stop

    def one(self, choices: tuple[str, ...]) -> str:
        return choices[self.below(len(choices))]

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent


def sentence(seed: int, index: int) -> str:
    """Of 3 to 16 words, and not held out; what comes out otherwise is drawn again."""
    draw = _Draws(seed, index)
    while True:
        text = PATTERNS[draw.below(len(PATTERNS))](draw)
        if _SHORTEST <= len(text.split()) <= _LONGEST and key(text) not in _held_out():
            return text[0].upper() + text[1:]


@cache
def _held_out() -> frozenset[str]:
    return frozenset(key(text) for text in HELD_OUT)


def key(text: str) -> str:
    """By which two sentences are the same: their letters, whatever their case and punctuation."""
    return " ".join("".join(c if c.isalnum() or c == "'" else " " for c in text.lower()).split())
