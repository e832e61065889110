"""The parts of a comparison, one after the other: the best settings, the first steps, then rounds until time is up.

    trial of ...  with --best: some steps with one combination of stock PyTorch's settings, a process of its own
    best          the fastest of these
    start         all sides from the recipe's weights: warm-up, and one step that says how many a turn has
    round 1 ...   a turn of each side
    continued 1   after a stop: new processes have taken the same steps again, off the clock, and go on from there
"""

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..step import stock as step_stock
from ..step.cases import STOCK_DEFAULT, Case
from ..step.process import Side, SideFailed
from ..study import Study, as_time
from . import sides as compare_sides
from .outcome import largest_difference, losses_of, numbered, turns_of
from .sides import MOST_BYTES, Sides

if TYPE_CHECKING:
    from ...recipes.config import Config
    from .folder import Folder

FEWEST_ROUNDS, _ROUNDS = 3, 7  # however little time there is; as many at least where there is time
_MOST_ROUNDS = 100  # where there is much
_TURN = 1.0  # seconds of the fastest side in a round, at least where there is time
SETTINGS = ("autocast", "fused", "compile")  # of stock PyTorch
_TRIAL = "trial of "
_TOLD = ("precision", "threads")  # facts of a side that a new process must have again


def measure(study: Study, config: "Config", seconds: float, best: bool) -> None:
    """Takes those parts that are missing."""
    if is_enough(study.parts, seconds):
        return
    from .folder import Folder  # loads torch

    load = round(os.getloadavg()[0], 1)  # before anything of ours runs
    with tempfile.TemporaryDirectory(prefix="fullstride-compare-") as path, contextlib.ExitStack() as stack:
        folder = Folder(Path(path), config)
        case = case_of(config, path)
        if best and "best" not in study.parts:
            _find_best(study, case, folder)
        sides = Sides(case, stack, failed_in(study.parts))
        sides.start(_wanted(case, study.parts.get("best")))
        if "start" in study.parts:
            _take_again(study, sides, folder, load)
        else:
            _begin(study, sides, folder, seconds)
        _rounds(study, sides, folder, seconds)


def case_of(config: "Config", path: str | None = None) -> Case:
    no_fused = "LAMB has no fused form in PyTorch; torch.compile fuses it" if config.optimizer.name == "lamb" else ""
    return Case(config.recipe, config.accumulate, (config.precision,), no_fused=no_fused, recipe=path)


def failed_in(parts: Mapping[str, Any]) -> dict[str, str]:
    """Side -> why it is not there any more."""
    return {name: why for part in parts.values() for name, why in part.get("failed", {}).items()}


def is_enough(parts: Mapping[str, Any], seconds: float) -> bool:
    return "start" in parts and _num_left(parts, seconds) == 0


def _num_left(parts: Mapping[str, Any], seconds: float) -> int:
    """Rounds, by how long those before took."""
    turns = turns_of(parts)
    fitting = int((seconds - turns.seconds) / (turns.seconds / turns.rounds)) if turns.rounds else 0
    return max(0, FEWEST_ROUNDS - turns.rounds, fitting)


# ---- who takes part --------------------------------------------------------------------------------------------------


def _find_best(study: Study, case: Case, folder: "Folder") -> None:
    study.say("\nsettings of stock PyTorch, each tried for some steps:")
    folder.provide(step_stock.MOST_TRIED)

    def keep(name: str, trial: step_stock.Trial) -> None:
        study.record(_TRIAL + name, trial)

    with contextlib.ExitStack() as stack:
        known = _trials(study.parts)
        default = None if step_stock.AS_IT_COMES in known else _start_default(case, stack)
        _, outcomes = step_stock.find_best(case, default, False, stack, study.say, known, keep)
    fastest = step_stock.fastest(_trials(study.parts))
    settings = step_stock.COMBINATIONS[fastest] if fastest is not None else {}
    name = step_stock.side_name(fastest) if fastest is not None and settings else None
    study.record("best", {"name": name, "settings": settings, "trials": outcomes})


def _trials(parts: Mapping[str, Any]) -> dict[str, step_stock.Trial]:
    """Those that were taken, by what was tried."""
    return {name.removeprefix(_TRIAL): part for name, part in parts.items() if name.startswith(_TRIAL)}


def _start_default(case: Case, stack: contextlib.ExitStack) -> Side | None:
    try:
        default = Side(STOCK_DEFAULT, case.config(), limit=compare_sides.STANDING)
    except SideFailed:
        return None  # which _begin() will say
    stack.callback(default.close)
    return default


def _wanted(case: Case, best: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The sides by name, and their settings. Stock PyTorch may be at its best as it comes."""
    precision = case.precisions[0]
    wanted: dict[str, dict[str, Any]] = {f"fullstride {precision}": {"fullstride": precision}, STOCK_DEFAULT: {}}
    return wanted | ({best["name"]: best["settings"]} if best and best["name"] else {})


# ---- their steps -----------------------------------------------------------------------------------------------------


def _begin(study: Study, sides: Sides, folder: "Folder", seconds: float) -> None:
    from ..step import benchmark as step  # loads torch

    peaks = step.measure_peaks()
    compiled = any(side.config.get("compile") for side in sides.running)
    warm_up = step_stock.MOST_TRIED if compiled else step_stock.WARM_UP  # other shapes are compiled once more
    folder.provide(warm_up + 1)
    study.say(f"\n{', '.join(side.name for side in sides.running)}: {warm_up} steps to warm up")
    first = sides.turn(warm_up)
    second = sides.turn(1)
    study.record("start", {
        "warm_up": warm_up,
        "steps": _steps_of_turn([answer["seconds"][0] for answer in second.values()], folder.bytes_of_step, seconds),
        "answers": [first, second],
        "facts": {side.name: side.facts for side in sides.running},
        "peaks": peaks,
        "failed": dict(sides.failed),
    })  # fmt: skip


def _steps_of_turn(first: Sequence[float], num_bytes: int, seconds: float) -> int:
    """Long enough to time, short enough for several rounds; `first`: the seconds of a step, side by side."""
    wanted = max(math.ceil(_TURN / min(first)), int(seconds / _MOST_ROUNDS / sum(first)))
    return max(1, min(wanted, int(seconds / _ROUNDS / sum(first)), MOST_BYTES // num_bytes))


def _num_done(parts: Mapping[str, Any]) -> int:
    """Steps of each side."""
    start = parts["start"]
    return int(start["warm_up"]) + 1 + len(numbered(parts, "round")) * int(start["steps"])


def _take_again(study: Study, sides: Sides, folder: "Folder", load: float) -> None:
    """The steps of the parts before, which are known: whether they come to the same losses is all that is new.

    load: of the machine, before.
    """
    num_steps, known = _num_done(study.parts), losses_of(study.parts)
    before, turn = dict(sides.failed), int(study.parts["start"]["steps"])
    study.say(f"\nstopped after {num_steps} steps of each side: they are taken again, which is not measured")
    for first in range(0, num_steps, turn):
        end = min(first + turn, num_steps)
        folder.forget(first)
        folder.provide(end)
        sides.turn(end - first)
    study.record(f"continued {len(numbered(study.parts, 'continued')) + 1}", {
        "steps": num_steps,
        "load": load,
        "differences": {side.name: largest_difference(side.losses, known[side.name]) for side in sides.running},
        "others": _others(study.parts["start"]["facts"], sides),
        "failed": {name: why for name, why in sides.failed.items() if name not in before},
    })  # fmt: skip


def _others(before: Mapping[str, Mapping[str, Any]], sides: Sides) -> list[str]:
    """What the new processes do otherwise than those before."""
    return [
        f"{side.name}: {key} {before[side.name][key]} before, {side.facts[key]} now"
        for side in sides.running
        for key in _TOLD
        if side.facts[key] != before[side.name][key]
    ]


def _rounds(study: Study, sides: Sides, folder: "Folder", seconds: float) -> None:
    steps, began, count = int(study.parts["start"]["steps"]), time.monotonic(), 0
    study.say(f"\nrounds of {steps} steps a side:")
    while not is_enough(study.parts, seconds):
        done, before = _num_done(study.parts), dict(sides.failed)
        folder.forget(done)
        folder.provide(done + steps)
        answers = sides.turn(steps)
        failed = {name: why for name, why in sides.failed.items() if name not in before}
        number = len(numbered(study.parts, "round")) + 1
        study.record(f"round {number}", {"answers": answers, "failed": failed})
        count += 1
        num_left = _num_left(study.parts, seconds)
        left = as_time((time.monotonic() - began) / count * num_left)
        times = [f"{name} {1e3 * sum(a['seconds']) / steps:.4g}" for name, a in answers.items()]
        gone = [f"{name} {why}" for name, why in failed.items()]
        rest = f"; about {left} left" if num_left else ""
        study.say(f"[{number}/{number + num_left}] ms a step: {', '.join(times)}{'; '.join(['', *gone])}{rest}")
