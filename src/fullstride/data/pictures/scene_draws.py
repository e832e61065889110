"""The random choices of a scene or caption: a function of counters, by nothing a version of numpy may do otherwise."""

from collections.abc import Sequence
from typing import TypeVar

from .. import _random

T = TypeVar("T")


class Draws:
    def __init__(self, seed: int, stream: int, *counters: int) -> None:
        self._numbers = _random.stream_of(seed, stream, *counters)

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * next(self._numbers)

    def below(self, stop: int) -> int:
        return int(next(self._numbers) * stop)

    def chance(self, probability: float) -> bool:
        return next(self._numbers) < probability

    def one(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def weighted(self, choices: dict[T, float]) -> T:
        """By weights that sum to 1."""
        left = next(self._numbers)
        for choice, weight in choices.items():
            if left < weight:
                return choice
            left -= weight
        return choice  # the sum was rounded
