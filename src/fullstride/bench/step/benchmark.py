"""`fullstride bench step`: a training step of Fullstride against stock PyTorch, each side a process of its own.

Stock PyTorch runs as its users run it: without our allocator settings, and without this package. It comes as it is by
default (fp32, eager, AdamW as it comes, clip_grad_norm_) and at its best: of autocast to bf16, AdamW(fused=True) and
torch.compile the combination that a short trial finds fastest. All sides take turns in every round, one at a time, on
the same data from the same weights.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..measure import Spread, Timing
from . import stock
from .cases import STOCK_BEST, STOCK_BF16, STOCK_DEFAULT, Case
from .process import Side, SideFailed
from .stock import WARM_UP, Say

TURN, _MOST_STEPS = 1.0, 50  # seconds of the fastest side in a round, at least; steps, at most
# The second step is the first that has the optimizer's state beside its activations; one more shows that it was all.
_MEMORY_STEPS, _MEMORY_LIMIT = WARM_UP, 1200.0  # seconds: bf16 without its instructions takes minutes


@dataclass(frozen=True)
class Measured:
    """One side: what it is, and the median over the rounds."""

    name: str
    precision: str
    timing: Timing  # of a step
    units_per_second: float
    faults: float  # a step
    peak_bytes: int
    gflops: float
    share_of_peak: float | None  # of what products of this precision reach on this machine
    losses: list[float]
    facts: dict[str, Any]
    profile: dict[str, Any] | None = None


@dataclass(frozen=True)
class Ratio:
    """How many times faster one of ours is than a peer."""

    ours: str
    peer: str
    peer_side: str  # the name of the peer's side: stock at its best may be the default
    ratio: Spread
    target: float | None

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.ratio.median >= self.target


@dataclass(frozen=True)
class Memory:
    """The most that each process had held after the same number of steps, stock PyTorch's in bf16 among them."""

    num_steps: int
    peaks: dict[str, int]  # side -> bytes
    trouble: str = ""  # why there is none of stock PyTorch in bf16

    @property
    def limit(self) -> int | None:
        """What ours may hold."""
        return self.peaks.get(STOCK_BF16)


@dataclass(frozen=True)
class Result:
    case: Case
    sides: list[Measured]
    ratios: list[Ratio]
    trials: list[str]  # what became of every combination of stock PyTorch's settings
    num_losses: int  # steps that all sides took: their losses are compared
    loss_differences: dict[str, float]  # side -> the largest to stock default in one of these steps, relative
    memory: "Memory | None" = None
    failed: dict[str, str] = field(default_factory=dict)  # side -> why there are no figures of it


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


def measure(case: Case, rounds: int, quick: bool, profile: bool, peaks: dict[str, float | None], say: Say) -> Result:
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        names = {f"fullstride {wish}": case.config(fullstride=wish) for wish in case.precisions}
        sides = [try_start(name, config, stack, failed) for name, config in names.items()]
        default = try_start(STOCK_DEFAULT, case.config(), stack, failed)
        best, trials = stock.find_best(case, default, quick, stack, say)
        sides += [default] if best is default else [default, best]
        running = [side for side in sides if side is not None]
        answers = _rounds(running, rounds, quick, failed)
        profiles = each(running, failed, Side.profile) if profile else {}
        measured = [summarise(side, answers[side.name], peaks, profiles.get(side.name)) for side in running]
    memory = compare_memory(case, {side.name: side.peaks for side in running}) if case.bf16_memory else None
    return to_result(case, measured, trials, memory, failed)


def to_result(
    case: Case, measured: list[Measured], trials: list[str], memory: Memory | None, failed: dict[str, str]
) -> Result:
    count = min(len(side.losses) for side in measured)
    ratios, different = ratios_of(case, measured), differences(measured, count)
    return Result(case, measured, ratios, trials, count, different, memory, failed)


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


def summarise(
    side: Side, answers: list[dict[str, Any]], peaks: dict[str, float | None], profile: dict[str, Any] | None
) -> Measured:
    timing = Timing(tuple(statistics.mean(answer["seconds"]) for answer in answers))
    facts = side.facts
    gflops = facts["gflop"] / timing.median
    peak = peaks.get(facts["precision"])
    return Measured(
        name=side.name,
        precision=facts["precision"],
        timing=timing,
        units_per_second=facts["units"] / timing.median,
        faults=statistics.median(answer["faults"] / len(answer["seconds"]) for answer in answers),
        peak_bytes=side.peaks[-1],
        gflops=gflops,
        share_of_peak=gflops / peak if peak else None,
        losses=side.losses,
        facts=facts,
        profile=profile,
    )


def ratios_of(case: Case, sides: list[Measured]) -> list[Ratio]:
    ours = [side for side in sides if side.name.startswith("fullstride")]
    stock = [side for side in sides if side not in ours]
    peers = [(STOCK_DEFAULT, side) for side in stock if side.name == STOCK_DEFAULT]
    if stock:  # the best of the rounds: a trial is short, and the default may turn out to be the faster one after all
        peers.append((STOCK_BEST, min(stock, key=lambda peer: peer.timing.median)))
    ratios = []
    for side in ours:
        targets = case.targets.get(side.name.removeprefix("fullstride "), {})
        ratios += [
            Ratio(side.name, kind, peer.name, side.timing.ratio_to(peer.timing), targets.get(kind))
            for kind, peer in peers
        ]
    return ratios


def differences(sides: list[Measured], count: int) -> dict[str, float]:
    """Side -> the largest difference of its loss to that of stock as it comes in one of the first steps, relative."""
    default = next((side.losses[:count] for side in sides if side.name == STOCK_DEFAULT), [])
    found: dict[str, float] = {}
    if not default:
        return found
    for side in sides:
        if side.name != STOCK_DEFAULT:
            pairs = zip(side.losses, default, strict=False)
            relative = [abs(loss - other) / (abs(other) or 1.0) for loss, other in pairs]
            found[side.name] = next(filter(math.isnan, relative), max(relative))
    return found
