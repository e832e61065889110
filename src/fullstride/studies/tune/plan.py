"""What there is time for. The time that counts is that of the parts of the study, so a continued one decides alike."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...bench.study import Study

FINAL = 0.3  # of the time for speed: default against best, in turns
SPEED = 1 / 3  # of all time, where hyper-parameters are searched as well
SHORTEST, LONGEST = 0.25, 30.0  # seconds of steps in a turn, if those of a few steps are not more
LEAST_STEPS = 3  # in a turn, after those that settle it
SLACK = 1.05
ROUNDS = 6  # of the final, where there is time
FEWEST_ROUNDS = 3
_LATE = 20  # times what an answer should take: then nobody waits any longer
_FEWEST_SECONDS = 120.0  # before that
_UNKNOWN = 600.0  # seconds to wait at least while nothing has been measured


class Rung(NamedTuple):
    num: int  # of those that take part, the best so far among them
    seconds: float  # of each


class Session:
    """The parts that are asked for in turn, done before or now, and their time."""

    def __init__(self, study: Study, seconds: float) -> None:
        self.study, self.seconds, self.spent = study, seconds, 0.0

    @property
    def left(self) -> float:
        return self.seconds - self.spent

    def parts(self, names: Sequence[str], measure: Callable[[str], tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
        """What was found of each. measure(name): what is found, and what to say of it."""
        for name in self.study.left(names):
            began = time.monotonic()
            found, said = measure(name)
            self.study.record(name, {**found, "took": time.monotonic() - began}, said)
        found_all = [self.study.parts[name] for name in names]
        self.spent += sum(part["took"] for part in found_all)
        return found_all

    def part(self, name: str, measure: Callable[[str], tuple[dict[str, Any], str]]) -> dict[str, Any]:
        return self.parts([name], measure)[0]


def rungs(num: int, seconds: float, startup: float, least: float) -> list[Rung]:
    """Of successive halving among the best so far and `num` others.

    Each rung has half of the others and twice the time of a turn, as long as the first turns have `least` seconds;
    startup: seconds before the first turn of each other. Too little time for all of them: fewer others. None: none.
    """
    for count in range(num, 0, -1):
        for depth in range(1 + math.ceil(math.log2(count)), 0, -1):
            nums = [1 + math.ceil(count / 2**i) for i in range(depth)]
            first = (seconds - count * startup) / sum(n * 2**i for i, n in enumerate(nums))
            if first >= least:
                return [Rung(n, max(least, min(LONGEST, first * 2**i))) for i, n in enumerate(nums)]
    return []


def patience(seconds: float, startup: float) -> float:
    """Seconds to wait for an answer that should take so many, of a process that starts in so many."""
    return max(_FEWEST_SECONDS, _LATE * (seconds + startup))


def first_patience(seconds: float) -> float:
    """Seconds to wait for the first answers, of which nothing is known: all the time there is, if that is not short."""
    return max(_UNKNOWN, seconds)


def final(seconds: float, least: float) -> tuple[int, float]:
    """Rounds, and the seconds of each side's turn."""
    turn = max(least, min(LONGEST, seconds / 2 / ROUNDS))
    return max(FEWEST_ROUNDS, min(ROUNDS, int(seconds / 2 / turn))), turn
