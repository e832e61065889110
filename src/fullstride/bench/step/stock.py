"""Stock PyTorch at its best: the fastest combination of what it offers, found by a short trial of each."""

import contextlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from .cases import STOCK_BEST, Case
from .process import Side, SideDied, SideFailed, SideLate

WARM_UP = 2  # steps: the first meets new pages and makes the optimizer's state
AS_IT_COMES = "as it comes"
_HOPELESS = 3.0  # times slower than the best so far: not tried further
_FIRST_LIMIT, _FIRST_TIMES = 20.0, 6  # a first step may take so many seconds, or so many times the best step
# As it comes, nothing is known yet: seconds of the first step, or its GFLOP at 1 GFLOP/s; later ones, in first ones.
_DEFAULT_LIMIT, _SLOWEST, _DEFAULT_TIMES = 300.0, 1.0, 20.0
_MOST_STEPS, _ENOUGH = 5, 3.0  # steps and seconds of a trial, two steps at least
MOST_TRIED = 2 * WARM_UP + _MOST_STEPS  # steps that a side has taken when the best is found, its warm-up included
_COMPILE_LIMIT = 900.0  # seconds that torch.compile may take

Say = Callable[[str], object]


class Trial(TypedDict):
    """What became of a combination. Plain JSON."""

    outcome: str
    seconds: float | None  # of a step; None if it has none
    bad_bf16: str  # why bf16 is not tried any more, if this trial has shown it


def _combinations() -> dict[str, dict[str, bool]]:
    found: dict[str, dict[str, bool]] = {AS_IT_COMES: {}}
    for compiled, autocast, fused in itertools.islice(itertools.product([False, True], repeat=3), 1, None):
        settings = {"autocast": autocast, "fused": fused, "compile": compiled}
        name = " + ".join(itertools.compress(("autocast bf16", "fused", "torch.compile"), settings.values()))
        found[name] = settings
    return found


COMBINATIONS = _combinations()
"""Name -> settings, in the order in which they are tried."""


def find_best(
    case: Case,
    default: Side | None,
    quick: bool,
    stack: contextlib.ExitStack,
    say: Say,
    known: Mapping[str, Trial] | None = None,
    keep: Callable[[str, Trial], object] | None = None,
) -> tuple[Side | None, list[str]]:
    """The fastest side, which stays open, and what became of every combination.

    default: None if it could not even be started as it comes. Then there may be no best, either. One that fails is
        closed.
    known: trials of before by name, which are not taken again; if one of them is the fastest, there is no side of it.
    keep: is given each new trial when it is done.
    """
    search, outcomes = _Search(case, quick, stack), []
    for name, settings in COMBINATIONS.items():
        if known and name in known:
            search.recall(trial := known[name])
        else:
            trial = search.try_one(name, **settings) if settings else search.try_default(default)
            if keep is not None:
                keep(name, trial)
        outcomes.append(f"{name}: {trial['outcome']}")
        say(f"  stock PyTorch {outcomes[-1]}")
    return search.best, outcomes


def fastest(trials: Mapping[str, Trial]) -> str | None:
    """The name of it; None if none has come to an end."""
    seconds = {name: trial["seconds"] for name, trial in trials.items() if trial["seconds"] is not None}
    return min(seconds, key=lambda name: seconds[name], default=None)


def side_name(combination: str) -> str:
    return f"{STOCK_BEST} ({combination})"


def _reason(error: SideFailed) -> str:
    return str(error).partition(": ")[2]


class _Search:
    """What the trials so far have shown."""

    def __init__(self, case: Case, quick: bool, stack: contextlib.ExitStack) -> None:
        self._case, self._quick, self._stack = case, quick, stack
        self.best: Side | None = None
        self._default: Side | None = None
        self._seconds, self._bad_bf16 = _COMPILE_LIMIT, ""

    def recall(self, trial: Trial) -> None:
        """One of before: those that follow are held against it."""
        if trial["seconds"] is not None:
            self._seconds = min(self._seconds, trial["seconds"])
        self._bad_bf16 = trial["bad_bf16"] or self._bad_bf16

    def try_default(self, default: Side | None) -> Trial:
        if default is None:
            return Trial(outcome="failed", seconds=None, bad_bf16="")
        try:
            seconds = _trial(default, _COMPILE_LIMIT, _first_limit(default))
        except SideFailed as error:
            default.close()  # it may still compute
            return Trial(outcome=_reason(error), seconds=None, bad_bf16="")
        self.best, self._default, self._seconds = default, default, seconds
        return Trial(outcome=f"{seconds * 1e3:.4g} ms", seconds=seconds, bad_bf16="")

    def try_one(self, name: str, autocast: bool, fused: bool, compile: bool) -> Trial:
        """What became of it, or why it need not be tried."""
        why_not = self._why_not(autocast, fused, compile)
        if why_not:
            return Trial(outcome=why_not, seconds=None, bad_bf16="")
        before = self._bad_bf16
        outcome, seconds = self._run(name, {"autocast": autocast, "fused": fused, "compile": compile})
        return Trial(outcome=outcome, seconds=seconds, bad_bf16=self._bad_bf16 if self._bad_bf16 != before else "")

    def _why_not(self, autocast: bool, fused: bool, compile: bool) -> str:
        if compile and self._quick:
            return "left out by --quick"
        if fused and self._case.no_fused:
            return f"not tried: {self._case.no_fused}"
        if autocast and self._bad_bf16:  # neither of the other two makes a product faster, or legal
            return f"not tried: bf16 {self._bad_bf16} here"
        return ""

    def _run(self, name: str, settings: dict[str, Any]) -> tuple[str, float | None]:
        """What became of it, and the seconds of a step. The slower one of it and the best so far is closed."""
        side, loser, seconds = None, None, None
        autocast, compiled = settings["autocast"], settings["compile"]
        try:
            side = loser = Side(side_name(name), self._case.config(**settings), limit=_COMPILE_LIMIT)
            self._stack.callback(side.close)
            limit = _COMPILE_LIMIT if compiled else max(_FIRST_LIMIT, _FIRST_TIMES * self._seconds)
            seconds = _trial(side, self._seconds, limit, limit)
            outcome, slow = f"{seconds * 1e3:.4g} ms", seconds > _HOPELESS * self._seconds
            if seconds < self._seconds:
                self.best, self._seconds, loser = side, seconds, self.best
        except SideFailed as error:
            outcome, slow = _reason(error), isinstance(error, SideLate)
            if autocast and not compiled and isinstance(error, SideDied):
                self._bad_bf16 = "dies"
        if autocast and slow:
            self._bad_bf16 = "is too slow"
        if loser is not None and loser is not self._default:
            loser.close()
        return outcome, seconds


def _first_limit(default: Side) -> float:
    return max(_DEFAULT_LIMIT, (default.facts["gflop"] or 0.0) / _SLOWEST)


def _trial(side: Side, best: float, first: float, later: float | None = None) -> float:
    """Seconds of a step: of the first after the warm-up if that is hopeless, else the shortest of a few.

    first, later: limits of an answer; a later step may hang, too. Without `later` the first step decides on it.
    """
    begun = side.run(1, first)["seconds"][0]
    limit = max(_FIRST_LIMIT, _DEFAULT_TIMES * begun) if later is None else later
    side.run(WARM_UP - 1, limit)
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < _MOST_STEPS and sum(seconds) < _ENOUGH):
        seconds += side.run(1, limit)["seconds"]
        if seconds[0] > _HOPELESS * best:
            break
    side.rest()
    return min(seconds)
