"""How fast the products of a linear layer are: each library's, in each precision, for each kind of shape.

All take turns at one shape, so that whatever else the machine does meets all of them; the best of several calls counts.
A second a shape, three shapes: what a whole table would tell more does not change who wins. The first call of each is
also checked (candidates.py), since a kernel may be right in small and wrong in large.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import verdicts

Shape = tuple[int, int, int]  # rows, in, out of a linear layer
Racer = tuple[str, str]  # precision, backend
RunOf = Callable[[Shape], Callable[[], Any]]
# Many rows first: what is hopeless there is not tried at the wide head, where a call takes longest.
SHAPES: dict[str, Shape] = {
    "many rows": (1024, 768, 1536), "few rows": (128, 2048, 2048), "wide head": (512, 384, 16384),
}  # fmt: skip
SECONDS = 0.6  # at one shape, all racers together, once each has had two calls
MOST_SECONDS = 6.0  # of all shapes: a machine so busy is measured another time
_LEAST_TURNS, _MOST_TURNS = 1, 8
_LONG = 0.4  # seconds of a call that is not repeated more than needed; a shape is cut down until calls are shorter
_LEAST_SIZE = 64
# A racer is given up if the better of two calls took so many times the best one's, and long enough that this was not
# the compiling of a first call: bf16 without its instructions, fp16 nearly everywhere.
_HOPELESS, _HOPELESS_SECONDS = 4.0, 0.1


@dataclass
class Outcome:
    """At one shape."""

    rates: dict[Racer, float] = field(default_factory=dict)  # GFLOP/s
    verdicts: dict[Racer, str] = field(default_factory=dict)  # of those that turned out unusable
    hopeless: list[Racer] = field(default_factory=list)
    spread: float = 0.0  # by how much the median of the calls was above the best, of the median racer


def race(
    racers: Mapping[Racer, RunOf],
    shape: Shape,
    begin: Callable[[Racer], Any],
    check: Callable[[str, Shape, Any], tuple[float, float]],
    seconds: float = SECONDS,
) -> Outcome:
    """begin(racer) is called before every call of one; check(precision, shape, results) gives error and tolerance."""
    outcome, runs, times = Outcome(), {}, {}
    for racer, run_of in racers.items():
        begin(racer)
        try:
            run = run_of(shape)
            first, results = _once(run)
            verdict = verdicts.of_error(*check(racer[0], shape, results))
            del results
            begin(racer)
            times[racer] = [first if first > _LONG else min(first, _once(run)[0])]
        except Exception as error:  # this torch cannot multiply this dtype
            verdict = verdicts.of_exception(error)
        if verdict == verdicts.FINE:
            runs[racer] = run
        else:
            outcome.verdicts[racer] = verdict
            times.pop(racer, None)
    best = min((times[racer][0] for racer in runs), default=0.0)
    for racer in list(runs):
        if times[racer][0] > _HOPELESS * best and times[racer][0] > _HOPELESS_SECONDS:
            outcome.hopeless.append(racer)
            del runs[racer]
    deadline = time.perf_counter() + seconds
    for turn in range(_MOST_TURNS):
        for racer, run in runs.items():
            needed = turn < _LEAST_TURNS and times[racer][0] <= _LONG
            if needed or time.perf_counter() < deadline:
                begin(racer)
                times[racer].append(_once(run)[0])
    rows, ins, outs = shape
    outcome.rates = {racer: round(6 * rows * ins * outs / min(own) / 1e9, 1) for racer, own in times.items()}
    spreads = [statistics.median(own[1:]) / min(own) - 1 for racer, own in times.items() if len(own) > 1]
    outcome.spread = round(statistics.median(spreads), 3) if spreads else 0.0
    return outcome


def cut_down(shape: Shape, gflops: float | None) -> Shape:
    """The shape with fewer inputs, if at this rate its three products would take too long; rows and outputs stay."""
    rows, ins, outs = shape
    while gflops and ins > _LEAST_SIZE and 6 * rows * ins * outs / (gflops * 1e9) > _LONG:
        ins //= 2
    return rows, ins, outs


def _once(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    results = run()
    return time.perf_counter() - start, results
