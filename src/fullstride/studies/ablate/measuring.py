"""The processes of `fullstride ablate`: a reference that stays, and one process after the other against it.

Both take turns, the reference first, each on the data of the same steps; who is not measured rests. The reference takes
its first steps once, which gives the losses and the memory that others are compared with, and trains on their data
again and again after that. Where layers freeze the later steps are shorter: then each part gets a reference of its own.
"""

import contextlib
import functools
import math
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...bench.compare.folder import Folder
from ...bench.compare.sides import LEAST, STANDING, TIMES, first_limit
from ...bench.measure import spread_of
from ...bench.step.process import Side, SideFailed
from ...bench.step.stock import WARM_UP
from ...bench.step.table import finite
from .switching import ALL, STOCK, Subject, Trial, of_all
from .timing import FEWEST_ROUNDS, Plan, Speed, Turns

if TYPE_CHECKING:
    from ...recipes.config import Config

_HOPELESS = 3.0  # times slower than its reference: no more rounds than needed
_LONGEST_LIFE = 500  # steps of a reference: moments that decay for long become denormal, which no short run sees
_LAST_LOSSES = 5
_SHORT, _MORE = 0.5, 4  # seconds: a step that takes less is timed with so many more


class Failed(Exception):
    """The process of a technique could not be measured; the reason, in a line."""


class Bench:
    """The recipe's folder, changed ones for what needs them, and the reference that runs."""

    def __init__(self, path: Path, config: "Config", compile_limit: float) -> None:
        self._path, self._config, self._compile_limit = path, config, compile_limit
        self._reference: tuple[str, Side] | None = None
        self._num_again = 0  # steps that the reference took once more
        self._hopeless: dict[str, str] = {}  # references that could not take their first steps, and why

    @functools.cached_property
    def folder(self) -> Folder:
        """Of the recipe as it is; made when somebody is to be measured."""
        return self._make_folder("recipe", self._config)

    def close(self) -> None:
        if self._reference is not None:
            self._reference[1].close()
            self._reference = None

    def find_out(self) -> Plan:
        """One step of both references after their first ones, and what prepare() does for the recipe.

        Where stock PyTorch fails, it is taken to be as fast as all: the parts against it will fail, the others go on.
        """
        self.folder.provide(WARM_UP + 1 + _MORE)
        speed, found = self._try_out(ALL)
        speeds = {ALL: speed, STOCK: speed}
        try:
            speeds[STOCK] = self._try_out(STOCK)[0]
        except SideFailed as error:
            self._hopeless[STOCK] = f"its reference, {error}"
        names = ("precision", "used", "functions", "threads")
        own = {name: found[name] for name in names}
        own["micro_batch_matters"] = self.folder.micro_batch_matters
        return Plan(speeds, self.folder.bytes_of_step, self._config.freeze.enabled, **own)

    def _try_out(self, name: str) -> tuple[Speed, dict[str, Any]]:
        """How fast this reference is, and what it says of itself."""
        began = time.monotonic()
        with contextlib.closing(Side(name, self._settings(name), STANDING)) as side:
            start = time.monotonic() - began
            seconds = side.run(WARM_UP + 1, first_limit(side, WARM_UP + 1))["seconds"][WARM_UP:]
            if seconds[0] < _SHORT:
                seconds += side.run(_MORE, _limit(side, _MORE))["seconds"]
            return Speed(start, statistics.median(seconds)), (side.explain(LEAST) if name == ALL else {}) | side.facts

    def measure(self, trial: Trial, turns: Turns, most: Turns) -> dict[str, Any]:
        """Plain JSON. most: the longest that are planned against this reference. Failed for what cannot be measured."""
        freezes = self._config.freeze.enabled
        self.folder.provide(most.last)
        with contextlib.ExitStack() as stack:
            folder = self.folder if not trial.changes else self._changed(trial, stack)
            folder.provide(turns.last)
            reference = self._stand(trial.reference, most, fresh=freezes)
            variant = self._start(trial, folder, reference)
            stack.callback(variant.close)
            turns, theirs, own = self._take_turns(trial, reference, variant, turns, fresh=freezes)
        return {
            "rounds": turns.rounds, "steps": turns.steps,
            **_compared(trial, theirs, own),
            "memory": _memory(trial, reference, variant), "loss": _loss(trial, reference, variant),
            "frozen": (variant if trial.has_it else reference).frozen,
        }  # fmt: skip

    # ---- processes ---------------------------------------------------------------------------------------------------

    def _stand(self, name: str, most: Turns, fresh: bool) -> Side:
        """The reference of this name, with its first steps taken; all that are planned, unless it is to be fresh.

        Failed if it cannot: then no part that needs it is tried.
        """
        if name in self._hopeless:
            raise Failed(self._hopeless[name])
        if self._reference is not None:
            known, side = self._reference
            aged = self._num_again > _LONGEST_LIFE or len(side.losses) < most.last
            if known == name and not fresh and not aged:
                return side
            self.close()
        try:
            side = Side(name, self._settings(name), STANDING)
            self._reference, self._num_again = (name, side), 0
            side.run(WARM_UP, first_limit(side, WARM_UP))
            for _ in range(0 if fresh else most.rounds):
                # The data of as many steps in its memory as others will have.
                side.run(most.steps, _limit(side, most.steps))
        except SideFailed as error:
            self.close()  # it may still compute
            self._hopeless[name] = f"its reference, {error}"
            raise Failed(self._hopeless[name]) from None
        side.rest()
        return side

    def _turn_of(self, reference: Side, first: int, steps: int, fresh: bool) -> list[float]:
        """Seconds of each step. A reference that fails is closed: the next part gets another."""
        limit = _limit(reference, steps)
        try:
            answer = reference.run(steps, limit) if fresh else reference.again(first, steps, limit)
        except SideFailed as error:
            self.close()
            raise Failed(f"its reference, {error}") from None
        reference.rest()
        seconds: list[float] = answer["seconds"]
        return seconds

    def _start(self, trial: Trial, folder: Folder, reference: Side) -> Side:
        more = self._compile_limit if trial.is_compiled else 0.0
        try:
            side = Side("it", {"recipe": str(folder.path)} | trial.settings, STANDING)
        except SideFailed as error:
            raise Failed(_reason(error)) from None
        try:
            side.run(WARM_UP, limit=more + max(LEAST, TIMES * WARM_UP * reference.seconds[-1]))
            side.rest()
        except BaseException as error:
            side.close()
            if isinstance(error, SideFailed):
                raise Failed(_reason(error)) from None
            raise
        return side

    def _take_turns(
        self, trial: Trial, reference: Side, variant: Side, turns: Turns, fresh: bool
    ) -> tuple[Turns, list[float], list[float]]:
        """The turns that were taken, and the seconds of a step in each, of the reference and of the other."""
        theirs: list[float] = []
        own: list[float] = []
        last, compiling = variant.seconds[-1], self._compile_limit if trial.is_compiled else 0.0
        if last > _HOPELESS * reference.seconds[-1]:
            turns = Turns(FEWEST_ROUNDS, turns.steps)
        for number in range(turns.rounds):
            first = WARM_UP + number * turns.steps
            theirs.append(statistics.mean(self._turn_of(reference, first, turns.steps, fresh)))
            self._num_again += turns.steps
            try:
                answer = variant.run(turns.steps, limit=compiling + max(LEAST, TIMES * turns.steps * last))
            except SideFailed as error:
                raise Failed(_reason(error)) from None
            own.append(statistics.mean(answer["seconds"]))
            last = max(answer["seconds"])
            variant.rest()
        return turns, theirs, own

    # ---- folders -----------------------------------------------------------------------------------------------------

    def _settings(self, reference: str) -> dict[str, Any]:
        subject = Subject(self._config, "", frozenset(), frozenset(), 1)
        settings = {} if reference == STOCK else of_all(subject, None if reference == ALL else "fp32")
        return {"recipe": str(self.folder.path)} | settings

    def _changed(self, trial: Trial, stack: contextlib.ExitStack) -> Folder:
        path = self._path / "changed"
        stack.callback(shutil.rmtree, path, ignore_errors=True)
        try:
            return self._make_folder(path.name, self._config.replace(**trial.changes))
        except ValueError as error:
            raise Failed(str(error)) from None

    def _make_folder(self, name: str, config: "Config") -> Folder:
        path = self._path / name
        path.mkdir()
        return Folder(path, config)


def _limit(reference: Side, num_steps: int) -> float:
    return max(LEAST, TIMES * num_steps * reference.seconds[-1])


def _reason(error: SideFailed) -> str:
    return str(error).partition(": ")[2] or str(error)


def _compared(trial: Trial, theirs: Sequence[float], own: Sequence[float]) -> dict[str, Any]:
    """gain: how many times as fast a step is with the technique, round by round."""
    having, lacking = (own, theirs) if trial.has_it else (theirs, own)
    return {
        "gain": spread_of(b / a for a, b in zip(having, lacking, strict=True)),
        "seconds_with": spread_of(having), "seconds_without": spread_of(lacking),
    }  # fmt: skip


def _memory(trial: Trial, reference: Side, variant: Side) -> dict[str, Any]:
    """Bytes that each process had held at most after the same number of steps."""
    last = len(variant.peaks)
    own, theirs = variant.peaks[-1], reference.peaks[last - 1]
    return {"step": last} | _with(trial, own, theirs)


def _loss(trial: Trial, reference: Side, variant: Side) -> dict[str, Any]:
    """Means over the last steps that both took, and how far each of these lies apart."""
    last = len(variant.losses)
    own, theirs = (side.losses[max(0, last - _LAST_LOSSES) : last] for side in (variant, reference))
    having, lacking = (own, theirs) if trial.has_it else (theirs, own)
    apart = [a - b for a, b in zip(having, lacking, strict=True)]
    found: dict[str, Any] = {"step": last, "mean_of": len(own)}
    found |= _with(trial, finite(statistics.fmean(own)), finite(statistics.fmean(theirs)))
    return found | {"difference": spread_of(apart) if all(map(math.isfinite, apart)) else None}


def _with(trial: Trial, own: Any, theirs: Any) -> dict[str, Any]:
    return {"with": own, "without": theirs} if trial.has_it else {"with": theirs, "without": own}
