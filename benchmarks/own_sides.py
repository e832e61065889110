"""Two ways of our own to train the same steps, against each other: each in a process of its own, in turns."""

import contextlib
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from fullstride.bench.measure import Timing
from fullstride.bench.step.cases import Case
from fullstride.bench.step.process import Side
from fullstride.bench.step.stock import WARM_UP

TURN = 2.0  # seconds of steps of a side in a round, at least


class Measured(NamedTuple):
    sides: list[Side]
    timings: list[Timing]  # of a step, side by side
    steps: int  # of a round


def in_turns(case: Case, precision: str, options: Mapping[str, Mapping[str, Any]], rounds: int) -> Measured:
    """options: those of prepare() by the name of the side, the first of which says how long a round is."""
    with contextlib.ExitStack() as stack:
        sides = []
        for name, wish in options.items():
            side = Side(name, case.config(fullstride=precision, options=dict(wish)))
            stack.callback(side.close)
            sides.append(side)
        for side in sides:
            side.run(WARM_UP)
        steps = max(1, round(TURN / _seconds(sides[0], 1)))
        rows = [[_seconds(side, steps) for side in sides] for _ in range(rounds)]
    return Measured(sides, [Timing(seconds) for seconds in zip(*rows, strict=True)], steps)


def _seconds(side: Side, steps: int) -> float:
    seconds = statistics.median(side.run(steps)["seconds"])
    side.rest()
    return seconds
