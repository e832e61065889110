"""`fullstride compare RECIPE`: the steps of a recipe by Fullstride against the same recipe in plain PyTorch.

Each side is a process of its own, and the one of stock PyTorch knows nothing of this package: it loads the recipe's
model from its plain file (models/), uses torch.optim, clip_grad_norm_ and eager fp32, and has none of our allocator
settings. LAMB and Lookahead, which torch.optim lacks, it has from plain_optimizers.py. Both start from the same weights
and see the same micro-batches in the same order at the same learning rates. Ours is the same script after prepare(),
with a DynamicFreezer if the recipe freezes layers. The sides take turns until the time is spent.
"""

import contextlib
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..step import benchmark as step
from ..step import results
from ..step import stock as step_stock
from ..step.cases import STOCK_DEFAULT, Case
from ..step.process import Side, SideFailed
from . import table
from .table import Turns

if TYPE_CHECKING:
    from ...recipes.config import Config
    from .folder import Folder

_FEWEST_ROUNDS, _ROUNDS = 3, 7  # however little time there is; as many at least where there is time
_MOST_BYTES = 64 << 20  # of data in a turn: it lies in the memory of each side
Say = Callable[[str], object]


def run(
    config: "Config", seconds: float = 60.0, best: bool = False, json: Path | None = None, say: Say | None = None
) -> dict[str, Any]:
    """Measures `seconds` of steps, those of all sides together, start-up not counted; says and returns the outcome.

    best: against stock PyTorch at its best as well, whose settings are found by trial; torch.compile takes minutes.
    json: a file for what is returned, compare.json of a run folder say, where the report looks for it.
    """
    say = say or _print
    check(config, seconds)
    if json is not None:
        table.check_writable(json)

    from .. import conditions  # loads torch, which bad input need not wait for
    from .folder import Folder

    facts = conditions.conditions() | {"heap": "kept by Fullstride, as it comes for stock PyTorch"}
    with tempfile.TemporaryDirectory(prefix="fullstride-compare-") as path:
        folder = Folder(Path(path), config)
        say(f"{conditions.as_text(facts)}\n\n{table.legend(seconds)}")
        no_fused = (
            "LAMB has no fused form in PyTorch; torch.compile fuses it" if config.optimizer.name == "lamb" else ""
        )
        case = Case(config.recipe, config.accumulate, (config.precision,), no_fused=no_fused, recipe=path)
        result, turns = measure(case, folder, seconds, best, say)
    content = table.as_json(facts, config, result, turns)
    say("\n" + "\n".join(table.lines(content, result)))
    if json is not None:
        table.write(json, content)
    return content


def _print(text: str) -> None:
    print(text, flush=True)  # also into a file or a pipe: what is next takes a minute


def check(config: "Config", seconds: float) -> None:
    """ValueError for what cannot be compared."""
    if not 0 < seconds < math.inf:
        raise ValueError(f"compare: expected a time above 0 seconds, got {seconds:g}")


def measure(case: Case, folder: "Folder", seconds: float, best: bool, say: Say) -> tuple[results.Result, Turns]:
    peaks = step.measure_peaks()
    folder.provide(step_stock.MOST_TRIED + 1)  # and the first of _rounds()
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        ours = step.start(f"fullstride {case.precisions[0]}", case.config(fullstride=case.precisions[0]), stack)
        default = step.try_start(STOCK_DEFAULT, case.config(), stack, failed)
        sides, trials = [ours, default], list[str]()
        if best:
            say("")
            fastest, trials = step_stock.find_best(case, default, quick=False, stack=stack, say=say)
            sides += [fastest] if fastest is not default else []
        running = [side for side in sides if side is not None]
        _level(running, failed)
        rounds, turns = _rounds(running, folder, seconds, failed)
        if ours not in running:
            raise SideFailed(f"{ours.name}: {failed[ours.name]}")
        measured = [
            results.summarise(side, [answers[side.name] for answers in rounds], peaks, profile=None) for side in running
        ]
    result = results.to_result(case, measured, trials, None, failed)
    ratios = [ratio for ratio in result.ratios if best or ratio.peer == STOCK_DEFAULT]
    return replace(result, ratios=ratios), turns


def _level(sides: list[Side], failed: dict[str, str]) -> None:
    """Lets all get to the same step: trials have taken some of them further."""
    most = max(len(side.losses) for side in sides)

    def catch_up(side: Side) -> None:
        if len(side.losses) < most:
            side.run(most - len(side.losses))
            side.rest()

    step.each(sides, failed, catch_up)


def _rounds(
    sides: list[Side], folder: "Folder", seconds: float, failed: dict[str, str]
) -> tuple[list[dict[str, dict[str, Any]]], Turns]:
    """The answers of the sides by name, round by round, until the time is spent."""
    first = [answer["seconds"][0] for answer in step.take_turns(sides, 1, failed).values()]
    steps = _steps_of_turn(first, folder.bytes_of_step, seconds)
    rounds: list[dict[str, dict[str, Any]]] = []
    spent = 0.0
    while len(rounds) < _FEWEST_ROUNDS or spent + spent / len(rounds) <= seconds:
        done = len(sides[0].losses)
        folder.forget(done)
        folder.provide(done + steps)
        rounds.append(step.take_turns(sides, steps, failed))
        spent += sum(sum(answer["seconds"]) for answer in rounds[-1].values())
    return rounds, Turns(len(rounds), steps, spent)


def _steps_of_turn(first: Sequence[float], num_bytes: int, seconds: float) -> int:
    """Long enough to time, short enough for several rounds; `first`: the seconds of a step, side by side."""
    wanted = math.ceil(step.TURN / min(first))
    return max(1, min(wanted, int(seconds / _ROUNDS / sum(first)), _MOST_BYTES // num_bytes))
