"""Stock PyTorch at its best: the fastest combination of what it offers, found by a short trial of each."""

import contextlib
import itertools
from collections.abc import Callable

from .cases import STOCK_BEST, Case
from .process import Side, SideDied, SideFailed, SideLate

WARM_UP = 2  # steps: the first meets new pages and makes the optimizer's state
_HOPELESS = 3.0  # times slower than the best so far: not tried further
_FIRST_LIMIT, _FIRST_TIMES = 20.0, 6  # a first step may take so many seconds, or so many times the best step
_MOST_STEPS, _ENOUGH = 5, 3.0  # steps and seconds of a trial, two steps at least
MOST_TRIED = 2 * WARM_UP + _MOST_STEPS  # steps that a side has taken when the best is found, its warm-up included
_COMPILE_LIMIT = 900.0  # seconds that torch.compile may take

Say = Callable[[str], object]


def find_best(
    case: Case, default: Side | None, quick: bool, stack: contextlib.ExitStack, say: Say
) -> tuple[Side | None, list[str]]:
    """The fastest side, which stays open, and what became of every combination.

    default: None if it could not even be started as it comes. Then there may be no best, either.
    """
    search = _Search(case, quick, stack)
    outcomes = [f"as it comes: {search.try_default(default)}"]
    say(f"  stock PyTorch {outcomes[-1]}")
    for compiled, autocast, fused in itertools.islice(itertools.product([False, True], repeat=3), 1, None):
        settings = {"autocast": autocast, "fused": fused, "compile": compiled}
        name = " + ".join(itertools.compress(("autocast bf16", "fused", "torch.compile"), settings.values()))
        outcomes.append(f"{name}: {search.why_not(**settings) or search.try_one(name, **settings)}")
        say(f"  stock PyTorch {outcomes[-1]}")
    return search.best, outcomes


class _Search:
    """What the trials so far have shown."""

    def __init__(self, case: Case, quick: bool, stack: contextlib.ExitStack) -> None:
        self._case, self._quick, self._stack = case, quick, stack
        self.best: Side | None = None
        self._default: Side | None = None
        self._seconds, self._bad_bf16 = _COMPILE_LIMIT, ""

    def try_default(self, default: Side | None) -> str:
        if default is None:
            return "failed"
        try:
            self._seconds = _trial(default, best=_COMPILE_LIMIT, compiled=False)
        except SideFailed as error:
            return str(error).partition(": ")[2]
        self.best = self._default = default
        return f"{self._seconds * 1e3:.4g} ms"

    def why_not(self, autocast: bool, fused: bool, compile: bool) -> str:
        """Why a combination need not be tried; nothing if it must be."""
        if compile and self._quick:
            return "left out by --quick"
        if fused and self._case.no_fused:
            return f"not tried: {self._case.no_fused}"
        if autocast and self._bad_bf16:  # neither of the other two makes a product faster, or legal
            return f"not tried: bf16 {self._bad_bf16} here"
        return ""

    def try_one(self, name: str, autocast: bool, fused: bool, compile: bool) -> str:
        """What became of it. The slower one of it and the best so far is closed."""
        side, loser = None, None
        try:
            settings = {"autocast": autocast, "fused": fused, "compile": compile}
            side = loser = Side(f"{STOCK_BEST} ({name})", self._case.config(**settings), limit=_COMPILE_LIMIT)
            self._stack.callback(side.close)
            seconds = _trial(side, self._seconds, compile)
            outcome, slow = f"{seconds * 1e3:.4g} ms", seconds > _HOPELESS * self._seconds
            if seconds < self._seconds:
                self.best, self._seconds, loser = side, seconds, self.best
        except SideFailed as error:
            outcome, slow = str(error).partition(": ")[2], isinstance(error, SideLate)
            if autocast and not compile and isinstance(error, SideDied):
                self._bad_bf16 = "dies"
        if autocast and slow:
            self._bad_bf16 = "is too slow"
        if loser is not None and loser is not self._default:
            loser.close()
        return outcome


def _trial(side: Side, best: float, compiled: bool) -> float:
    """Seconds of a step: of the first after the warm-up if that is hopeless, else the shortest of a few."""
    limit = _COMPILE_LIMIT if compiled else max(_FIRST_LIMIT, _FIRST_TIMES * best)  # a later step may hang, too
    side.run(1, limit)
    side.run(WARM_UP - 1, limit)
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < _MOST_STEPS and sum(seconds) < _ENOUGH):
        seconds += side.run(1, limit)["seconds"]
        if seconds[0] > _HOPELESS * best:
            break
    side.rest()
    return min(seconds)
