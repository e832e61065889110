"""Timing sides against each other: interleaved rounds in one process, median and spread of the ratios."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple


class Spread(NamedTuple):
    """The median over the rounds, and the smallest and largest."""

    median: float
    lowest: float
    highest: float

    @staticmethod
    def of(values: Iterable[float]) -> "Spread":
        found = list(values)
        return Spread(statistics.median(found), min(found), max(found))

    def __str__(self) -> str:
        """Of ratios."""
        return f"{self.median:.2f}x [{self.lowest:.2f}..{self.highest:.2f}]"


def spread_of(values: Iterable[float]) -> dict[str, float]:
    """As JSON keeps it."""
    return Spread.of(values)._asdict()


class Goal:
    """How many times faster something is, and should be at least."""

    ratio: Spread
    target: float | None

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.ratio.median >= self.target

    def against(self, peer: str) -> str:
        target = "" if self.target is None else f"  target {self.target:g}x {'met' if self.met else 'MISSED'}"
        return f"{self.ratio} {peer}{target}"


@dataclass(frozen=True)
class Timing:
    """Seconds a call of one side, one value a round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def ratio_to(self, other: "Timing", scale: float = 1.0) -> Spread:
        """How many times faster than `other`, each ratio within its round; times `scale`, for work that differs."""
        ratios = [scale * b / a for a, b in zip(self.seconds, other.seconds, strict=True)]
        return Spread.of(ratios)


def interleave(
    sides: Mapping[str, Callable[[], object]],
    rounds: int = 7,
    seconds_per_turn: float = 0.05,
    around: Mapping[str, Callable[[], AbstractContextManager[object]]] | None = None,
) -> dict[str, Timing]:
    """Runs the sides A B A B ..., each turn long enough to time, so that drift of the machine meets all alike.

    around: what a side takes its turns in, entered and left outside of the time.
    """
    turns = around or {}
    repeats = {}
    for name, side in sides.items():
        with turns.get(name, nullcontext)():
            repeats[name] = _repeats(side, seconds_per_turn)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            with turns.get(name, nullcontext)():
                seconds[name].append(_turn(side, repeats[name]))
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def _repeats(side: Callable[[], object], seconds: float) -> int:
    """Calls in a turn of about `seconds`, found after one call to warm up. None given: one call."""
    side()
    return max(1, int(seconds / max(_turn(side, 1), 1e-7))) if seconds else 1


def _turn(side: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        side()
    return (time.perf_counter() - start) / repeats
