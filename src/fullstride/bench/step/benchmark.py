"""`fullstride bench step`: a training step of Fullstride against stock PyTorch, each side a process of its own.

Stock PyTorch runs as its users run it: without our allocator settings, and without this package. It comes as it is by
default (fp32, eager, AdamW as it comes, clip_grad_norm_) and at its best: of autocast to bf16, AdamW(fused=True) and
torch.compile the combination that a short trial finds fastest. All sides take turns in every round, one at a time, on
the same data from the same weights.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ... import counting
from . import models, stock
from .cases import STOCK_BF16, STOCK_DEFAULT, Case
from .process import Side, SideFailed
from .results import Memory, Result, summarise, to_result
from .stock import WARM_UP, Say

TURN, _MOST_STEPS = 1.0, 50  # seconds of the fastest side in a round, at least; steps, at most
# The second step is the first that has the optimizer's state beside its activations; one more shows that it was all.
_MEMORY_STEPS, _MEMORY_LIMIT = WARM_UP, 1200.0  # seconds: bf16 without its instructions takes minutes


def run(
    cases: Sequence[Case], rounds: int = 7, quick: bool = False, profile: bool = False, say: Say = print
) -> Iterator[Result]:
    """Measures one case after the other. `quick`: without torch.compile, and no more steps in a turn than one."""
    peaks = measure_peaks()
    for case in cases:
        yield measure(case, rounds, quick, profile, peaks, say)


def measure_peaks() -> dict[str, float | None]:
    """GFLOP/s of square products on this machine, by precision."""
    from ...backends import square_products

    rates = square_products.rates()
    return {"fp32": max(rates[name] for name in rates if name.startswith("fp32")), "bf16": rates.get("bf16")}


def counted(model: str) -> counting.Flops:
    """Of one micro-batch of this model of models.py, forward and backward. Its weights and what it computes have shapes
    and no values: they take no memory."""
    workload = models.WORKLOADS[model]
    with torch.device("meta"):
        built = workload.build().train()
    batch = workload.batch(torch.Generator().manual_seed(models.SEED))
    return counting.flops_of(built, lambda twin, given: workload.loss(twin, *given), batch)


def measure(case: Case, rounds: int, quick: bool, profile: bool, peaks: dict[str, float | None], say: Say) -> Result:
    failed: dict[str, str] = {}
    gflop = case.accumulate * counted(case.config()["model"]).total / 1e9  # of a step
    with contextlib.ExitStack() as stack:
        names = {f"fullstride {wish}": case.config(fullstride=wish) for wish in case.precisions}
        sides = [try_start(name, config, stack, failed) for name, config in names.items()]
        default = try_start(STOCK_DEFAULT, case.config(), stack, failed)
        tried: dict[str, stock.Trial] = {}
        best, trials = stock.find_best(case, default, quick, stack, say, keep=tried.__setitem__)
        if default is not None and tried[stock.AS_IT_COMES]["seconds"] is None:  # and so it was closed
            default, failed[STOCK_DEFAULT] = None, tried[stock.AS_IT_COMES]["outcome"]
        sides += [default] if best is default else [default, best]
        running = [side for side in sides if side is not None]
        answers = _rounds(running, rounds, quick, failed)
        profiles = each(running, failed, Side.profile) if profile else {}
        measured = [summarise(side, answers[side.name], peaks, profiles.get(side.name), gflop) for side in running]
    memory = compare_memory(case, {side.name: side.peaks for side in running}) if case.bf16_memory else None
    return to_result(case, measured, trials, memory, failed)


def compare_memory(case: Case, peaks: dict[str, list[int]]) -> Memory:
    """Lets stock PyTorch take a few steps in bf16, however slow it is. peaks: of the others, step by step."""
    trouble = ""
    try:
        with contextlib.closing(Side(STOCK_BF16, case.config(autocast=True), limit=_MEMORY_LIMIT)) as side:
            side.run(_MEMORY_STEPS, limit=_MEMORY_LIMIT)
            peaks = peaks | {side.name: side.peaks}
    except SideFailed as error:
        trouble = str(error)
    return Memory(_MEMORY_STEPS, {name: own[_MEMORY_STEPS - 1] for name, own in peaks.items()}, trouble)


def start(name: str, config: dict[str, Any], stack: contextlib.ExitStack) -> Side:
    side = Side(name, config)
    stack.callback(side.close)
    side.run(WARM_UP)
    side.rest()
    return side


def try_start(name: str, config: dict[str, Any], stack: contextlib.ExitStack, failed: dict[str, str]) -> Side | None:
    """start(), or None and a word in `failed`: the other sides go on without it."""
    try:
        return start(name, config, stack)
    except SideFailed as error:
        failed[name] = str(error).removeprefix(f"{name}: ")
        return None


def each(sides: list[Side], failed: dict[str, str], do: Callable[[Side], Any]) -> dict[str, Any]:
    """What do(side) gives, by name. A side that fails leaves the list; SideFailed if none is left."""
    answers = {}
    for side in list(sides):
        try:
            answers[side.name] = do(side)
        except SideFailed as error:
            failed[side.name] = str(error).removeprefix(f"{side.name}: ")
            sides.remove(side)
    if not sides:
        raise SideFailed("no side could be measured: " + ", ".join(f"{name}: {why}" for name, why in failed.items()))
    return answers


def _rounds(sides: list[Side], rounds: int, quick: bool, failed: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The answers of each side, one a round. Every side takes the same number of steps in a turn."""
    answers: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    first = [answer["seconds"][0] for answer in take_turns(sides, 1, failed).values()]
    steps = 1 if quick else min(_MOST_STEPS, math.ceil(TURN / min(first)))
    for _ in range(rounds):
        for name, answer in take_turns(sides, steps, failed).items():
            answers[name].append(answer)
    return answers


def take_turns(sides: list[Side], steps: int, failed: dict[str, str]) -> dict[str, dict[str, Any]]:
    """One round: each side takes so many steps while the others rest."""

    def turn(side: Side) -> dict[str, Any]:
        answer = side.run(steps)
        side.rest()
        return answer

    return each(sides, failed, turn)
