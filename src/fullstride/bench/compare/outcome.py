"""What the parts of a comparison (measuring.py) come to: each side's steps in a row, and their figures.

The clock of a side is the sum of the seconds of its steps after warm-up: no start-up, no compiling, no turn of another.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..step import results
from ..step.cases import STOCK_DEFAULT, Case
from ..step.results import Measured, Result

_WINDOW, _LEAST_WINDOW = 20, 3  # steps that a loss is the mean of, at most and, if there are so many, at least


class Turns(NamedTuple):
    """How much was measured."""

    rounds: int
    steps: int  # of a side in a round
    seconds: float  # of all these steps, those of all sides
    warm_up: int  # steps before the clock of a side starts


@dataclass(frozen=True)
class Steps:
    """All steps of one side, from the first on, and what it held."""

    name: str
    losses: list[float]
    clock: list[float]  # seconds after each step; 0 in warm-up
    warm_up_seconds: float
    peak_bytes: int
    faults: list[float]  # pages a step, one value a round
    frozen: list[tuple[int, list[str]]]  # see step/process.py


def numbered(parts: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """`round 1`, `round 2` and so on."""
    numbers = itertools.takewhile(lambda number: f"{kind} {number}" in parts, itertools.count(1))
    return [parts[f"{kind} {number}"] for number in numbers]


def names_of(parts: Mapping[str, Any]) -> list[str]:
    """Sides that came to the end."""
    failed = {name for part in parts.values() for name in part.get("failed", ())}
    return [name for name in parts["start"]["facts"] if name not in failed]


def answers_of(parts: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Those of one side, in order."""
    turns = [*parts["start"]["answers"], *(part["answers"] for part in numbered(parts, "round"))]
    return [answers[name] for answers in turns if name in answers]


def losses_of(parts: Mapping[str, Any]) -> dict[str, list[float]]:
    """By side, also of those that came to no end."""
    return {
        name: [math.nan if loss is None else loss for answer in answers_of(parts, name) for loss in answer["losses"]]
        for name in parts["start"]["facts"]
    }


def steps_of(parts: Mapping[str, Any], name: str) -> Steps:
    answers, warm_up = answers_of(parts, name), parts["start"]["warm_up"]
    seconds = [second for answer in answers for second in answer["seconds"]]
    rounds = answers[len(parts["start"]["answers"]) :]
    return Steps(
        name=name,
        losses=losses_of(parts)[name],
        clock=[*[0.0] * warm_up, *itertools.accumulate(seconds[warm_up:])],
        warm_up_seconds=sum(seconds[:warm_up]),
        peak_bytes=max(answer["peak_bytes"] for answer in answers),
        faults=[answer["faults"] / len(answer["seconds"]) for answer in rounds],
        frozen=[(step, layers) for answer in answers for step, layers in answer["frozen"]],
    )


def turns_of(parts: Mapping[str, Any]) -> Turns:
    rounds, start = numbered(parts, "round"), parts["start"]
    seconds = sum(sum(answer["seconds"]) for part in rounds for answer in part["answers"].values())
    return Turns(len(rounds), start["steps"], seconds, start["warm_up"])


def result_of(case: Case, parts: Mapping[str, Any], best: bool, failed: Mapping[str, str]) -> Result:
    """As `bench step` has it."""
    sides = [_measured(steps_of(parts, name), parts) for name in names_of(parts)]
    trials = parts["best"]["trials"] if "best" in parts else []
    result = results.to_result(case, sides, trials, None, dict(failed))
    return replace(result, ratios=[ratio for ratio in result.ratios if best or ratio.peer == STOCK_DEFAULT])


def _measured(side: Steps, parts: Mapping[str, Any]) -> Measured:
    return results.measured_of(
        side.name,
        parts["start"]["facts"][side.name],
        [part["answers"][side.name]["seconds"] for part in numbered(parts, "round")],
        parts["start"]["peaks"],
        faults=statistics.median(side.faults),
        peak_bytes=side.peak_bytes,
        losses=side.losses,
        frozen=side.frozen,
    )


# ---- losses ----------------------------------------------------------------------------------------------------------


def at_same_step(sides: Sequence[Steps]) -> dict[str, Any]:
    """The losses of all sides at the last step: {step, window, sides: {name: {mean, lowest, highest, ...}}}."""
    last = min(len(side.losses) for side in sides)
    return {"step": last} | _losses(sides, [last] * len(sides))


def at_same_time(sides: Sequence[Steps]) -> dict[str, Any]:
    """The losses of all sides when the fastest has taken its last step: {seconds, window, sides: ...}."""
    seconds = min(side.clock[-1] for side in sides)
    ends = [sum(time <= seconds for time in side.clock) for side in sides]
    return {"seconds": seconds} | _losses(sides, ends)


def _losses(sides: Sequence[Steps], ends: Sequence[int]) -> dict[str, Any]:
    """One step's loss is noise, so it is the mean of some: as many of each side, few where that would be the past."""
    fewest = min(ends)
    window = max(min(_LEAST_WINDOW, fewest), min(_WINDOW, fewest // 10))
    found = {}
    for side, end in zip(sides, ends, strict=True):
        last = side.losses[end - window : end]
        finite = [loss for loss in last if math.isfinite(loss)]
        good = len(finite) == len(last)
        figures = {"mean": statistics.fmean(last), "lowest": min(last), "highest": max(last)} if good else {}
        found[side.name] = {"step": end, "seconds": side.clock[end - 1], **figures}
    return {"window": window, "sides": found}


def largest_difference(losses: Sequence[float], others: Sequence[float]) -> float | None:
    """Relative, of one step; None where both are not even numbers."""
    pairs = [(a, b) for a, b in zip(losses, others, strict=True) if math.isfinite(a) or math.isfinite(b)]
    found = [abs(a - b) / (abs(b) or 1.0) for a, b in pairs]
    return max(found, default=0.0) if all(map(math.isfinite, found)) else None
