"""How many rounds of how many steps fit into the time that was asked for.

    a part = the start of a process + its first steps + rounds x (a turn of the reference + one of the process)

The process is taken to be as fast as its reference. Each part gets its share of the time that is left when its turn
comes, so what one takes too long the others make up for, down to three rounds of one step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ...bench.compare.sides import MOST_BYTES
from ...bench.step.stock import WARM_UP
from ...bench.study import as_time
from .switching import ALL, ALL_FP32, STOCK

FEWEST_ROUNDS, MOST_ROUNDS = 3, 7
_SHORT_TURN, _TURN = 0.2, 1.0  # seconds of steps in a turn: so many cost little beside a start; these are enough
_MOST_STEPS = 50  # in a turn
_COMPILING = 60.0  # seconds that torch.compile is expected to take


@dataclass(frozen=True)
class Turns:
    rounds: int
    steps: int  # of a side in a round

    @property
    def last(self) -> int:
        """The step that a process has taken when it is through."""
        return WARM_UP + self.rounds * self.steps


@dataclass(frozen=True)
class Speed:
    """Of a reference."""

    start: float  # seconds until its model stands
    step: float  # seconds of a step


@dataclass(frozen=True)
class Plan:
    """What was found out before anything was compared."""

    speeds: dict[str, Speed]  # of STOCK and ALL
    bytes_of_step: int
    is_fresh: bool  # each part gets a reference of its own
    precision: str  # of ALL, and so are the others
    used: list[str]
    functions: list[str]
    threads: int
    micro_batch_matters: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, part: Mapping[str, Any]) -> "Plan":
        speeds = {name: Speed(**speed) for name, speed in part["speeds"].items()}
        return cls(**{f.name: part[f.name] for f in fields(cls)} | {"speeds": speeds})

    def speed(self, reference: str) -> Speed:
        """In fp32 products are expected to take twice as long as in bf16."""
        speed = self.speeds[STOCK if reference == STOCK else ALL]
        return Speed(speed.start, 2 * speed.step) if reference == ALL_FP32 else speed

    def overhead(self, reference: str, is_compiled: bool = False) -> float:
        """Seconds of a part besides its rounds."""
        speed = self.speed(reference)
        num_starts = 2 if self.is_fresh else 1
        return num_starts * (speed.start + WARM_UP * speed.step) + (_COMPILING if is_compiled else 0.0)

    def turns(self, reference: str, seconds: float) -> Turns:
        """Those that fit into so many seconds, as many rounds as there are of use before longer ones."""
        step = self.speed(reference).step
        rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(seconds / (2 * max(step, _SHORT_TURN)))))
        most = min(_MOST_STEPS, MOST_BYTES // max(1, self.bytes_of_step))
        few, many = int(_SHORT_TURN / step), math.ceil(_TURN / step)
        return Turns(rounds, max(1, min(most, max(few, min(many, int(seconds / (2 * step * rounds)))))))

    def turns_now(self, reference: str, is_compiled: bool, seconds: float, most: Turns) -> Turns:
        """Of a part that should be over in so many seconds. A turn stays as long as it is: its data count as memory."""
        turn = 2 * self.speed(reference).step * most.steps
        rounds = int((seconds - self.overhead(reference, is_compiled)) / turn)
        return Turns(max(FEWEST_ROUNDS, min(most.rounds, rounds)), most.steps)

    def most_turns(self, parts: Sequence[tuple[str, bool]], seconds: float) -> dict[str, Turns]:
        """By reference, if every part, its reference and whether it is compiled, gets the same time for its rounds."""
        share = (seconds - sum(self.overhead(*part) for part in parts)) / max(1, len(parts))
        return {reference: self.turns(reference, share) for reference in (STOCK, ALL, ALL_FP32)}

    def expected(self, parts: Sequence[tuple[str, bool]], turns: Mapping[str, Turns]) -> float:
        """Seconds of all parts, and of starting the references."""
        references = dict.fromkeys(reference for reference, _ in parts)
        total = sum(self.speed(name).start + turns[name].last * self.speed(name).step for name in references)
        for reference, is_compiled in parts:
            rounds = turns[reference].rounds * turns[reference].steps * 2 * self.speed(reference).step
            total += self.overhead(reference, is_compiled) + rounds
        return total

    def lines(self, parts: Sequence[tuple[str, bool]], turns: Mapping[str, Turns], seconds: float) -> list[str]:
        """What is going to be measured, for people. seconds: that were asked for, and are left."""
        expected = self.expected(parts, turns)
        text = [f"{len(parts)} parts, about {as_time(expected)}; the same command goes on where it was stopped"]
        for name in (STOCK, ALL):
            speed, turn = self.speeds[name], turns[name]
            text.append(
                f"  against {name}: {speed.step:.3g} s a step, {speed.start:.1f} s to start;"
                f" {turn.rounds} rounds of {turn.steps} step{'s' if turn.steps > 1 else ''} at most"
            )
        if expected > 1.1 * seconds:
            left = as_time(max(0.0, seconds))
            text.append(f"  more than the {left} that are left, with as little as tells; --only NAME takes fewer")
        return text
