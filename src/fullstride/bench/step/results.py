"""What `bench step` and `compare` find out: sides, ratios, memory, and how far losses lie apart."""

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from ..measure import Goal, Spread, Timing
from .cases import STOCK_BEST, STOCK_BF16, STOCK_DEFAULT, Case
from .process import Side


@dataclass(frozen=True)
class Measured:
    """One side: what it is, and the median over the rounds."""

    name: str
    precision: str
    timing: Timing  # of a step
    units_per_second: float
    faults: float  # a step
    peak_bytes: int
    gflops: float  # nan: not counted
    share_of_peak: float | None  # of what products of this precision reach on this machine
    losses: list[float]
    facts: dict[str, Any]
    profile: dict[str, Any] | None = None
    frozen: list[tuple[int, list[str]]] = field(default_factory=list)  # see process.Side


@dataclass(frozen=True)
class Ratio(Goal):
    """How many times faster one of ours is than a peer."""

    ours: str
    peer: str
    peer_side: str  # the name of the peer's side: stock at its best may be the default
    ratio: Spread
    target: float | None


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


def to_result(
    case: Case, measured: list[Measured], trials: list[str], memory: Memory | None, failed: dict[str, str]
) -> Result:
    count = min(len(side.losses) for side in measured)
    ratios, different = ratios_of(case, measured), differences(measured, count)
    return Result(case, measured, ratios, trials, count, different, memory, failed)


def summarise(
    side: Side,
    answers: list[dict[str, Any]],
    peaks: dict[str, float | None],
    profile: dict[str, Any] | None,
    gflop: float | None = None,
) -> Measured:
    """gflop: of a step, where the side itself cannot count them."""
    return measured_of(
        side.name,
        side.facts if gflop is None else side.facts | {"gflop": gflop},
        [answer["seconds"] for answer in answers],
        peaks,
        faults=statistics.median(answer["faults"] / len(answer["seconds"]) for answer in answers),
        peak_bytes=side.peaks[-1],
        losses=side.losses,
        profile=profile,
        frozen=side.frozen,
    )


def measured_of(
    name: str, facts: dict[str, Any], rounds: list[list[float]], peaks: dict[str, float | None], **others: Any
) -> Measured:
    """rounds: seconds of each step, round by round. peaks: GFLOP/s by precision. others: fields as they are."""
    timing = Timing(tuple(map(statistics.fmean, rounds)))
    gflops = (math.nan if facts["gflop"] is None else facts["gflop"]) / timing.median
    peak = peaks.get(facts["precision"])
    return Measured(
        name=name,
        precision=facts["precision"],
        timing=timing,
        units_per_second=facts["units"] / timing.median,
        gflops=gflops,
        share_of_peak=gflops / peak if peak and not math.isnan(gflops) else None,
        facts=facts,
        **others,
    )


def ratios_of(case: Case, sides: list[Measured]) -> list[Ratio]:
    ours = [side for side in sides if side.name.startswith("fullstride")]
    stock = [side for side in sides if side not in ours]
    peers = [(STOCK_DEFAULT, side) for side in stock if side.name == STOCK_DEFAULT]
    if stock:  # the best of the rounds: a trial is short, and the default may turn out to be the faster one after all
        peers.append((STOCK_BEST, min(stock, key=lambda peer: peer.timing.median)))
    ratios = []
    for side in ours:
        targets = case.targets_of(side.name.removeprefix("fullstride "), side.precision)
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
