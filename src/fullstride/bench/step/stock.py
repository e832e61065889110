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
    best, best_seconds, outcome = default, _COMPILE_LIMIT, "failed"
    if default is not None:
        try:
            best_seconds = _trial(default, best=_COMPILE_LIMIT, compiled=False)
            outcome = f"{best_seconds * 1e3:.4g} ms"
        except SideFailed as error:
            best, outcome = None, str(error).partition(": ")[2]
    outcomes = [f"as it comes: {outcome}"]
    say(f"  stock PyTorch {outcomes[-1]}")
    bad_bf16 = ""
    for compiled, autocast, fused in itertools.islice(itertools.product([False, True], repeat=3), 1, None):
        name = " + ".join(itertools.compress(("autocast bf16", "fused", "torch.compile"), (autocast, fused, compiled)))
        if compiled and quick:
            outcome = "left out by --quick"
        elif fused and case.no_fused:
            outcome = f"not tried: {case.no_fused}"
        elif autocast and bad_bf16:  # neither of the other two makes a product faster, or legal
            outcome = f"not tried: bf16 {bad_bf16} here"
        else:
            side = None
            try:
                settings = {"autocast": autocast, "fused": fused, "compile": compiled}
                side = Side(f"{STOCK_BEST} ({name})", case.config(**settings))
                stack.callback(side.close)
                seconds = _trial(side, best_seconds, compiled)
                outcome, slow = f"{seconds * 1e3:.4g} ms", seconds > _HOPELESS * best_seconds
                if seconds < best_seconds:
                    best, best_seconds, side = side, seconds, best
            except SideFailed as error:
                outcome, slow = str(error).partition(": ")[2], isinstance(error, SideLate)
                if autocast and not compiled and isinstance(error, SideDied):
                    bad_bf16 = "dies"
            if autocast and slow:
                bad_bf16 = "is too slow"
            if side and side is not default:
                side.close()  # the one that is not the best any more, or never was
        outcomes.append(f"{name}: {outcome}")
        say(f"  stock PyTorch {outcomes[-1]}")
    return best, outcomes


def _trial(side: Side, best: float, compiled: bool) -> float:
    """Seconds of a step: of the first after the warm-up if that is hopeless, else the shortest of a few."""
    side.run(1, limit=_COMPILE_LIMIT if compiled else max(_FIRST_LIMIT, _FIRST_TIMES * best))
    side.run(WARM_UP - 1)
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < _MOST_STEPS and sum(seconds) < _ENOUGH):
        seconds += side.run(1)["seconds"]
        if seconds[0] > _HOPELESS * best:
            break
    side.rest()
    return min(seconds)
