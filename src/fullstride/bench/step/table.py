"""The benchmark of a training step as text, and as JSON."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .cases import MOST_FAULTS, STOCK_BEST, STOCK_BF16, STOCK_DEFAULT
from .results import Measured, Memory, Ratio, Result

LEGEND = """\
time of one step, median [lowest..highest] of the rounds, which the sides take in turns, each in its own process;
GFLOP/s: products, convolutions and attention, half of it if causal, of forward and backward, as fullstride.flops()
counts them, and the share of what square products of the same precision reach on this machine; faults: pages a step;
peak: the most memory the process ever held; loss: mean of the last steps that all sides took"""
_LAST_LOSSES = 5
_TOP_OPS = 15  # of a profile


def lines(result: Result) -> list[str]:
    """The sides, how many times faster ours are, the losses, and what was tried for stock PyTorch's best."""
    first = result.sides[0].facts
    unit = first["unit"]
    text = [
        f"{result.case.title}: {first['parameters']:,} parameters, {first['units']} {unit} a step",
        f"  {'':<44} {'ms a step':>25} {unit + '/s':>10} {'faults':>8} {'peak MiB':>9} {'GFLOP/s':>8}"
        f" {'of peak':>9} {'loss':>8}",
    ]
    text += [_side(side, result.num_losses) for side in result.sides]
    text += [f"  {name:<44} {why}" for name, why in result.failed.items()]
    text += [f"  {ratio.ours}: {_ratio(ratio)}" for ratio in result.ratios]
    differences = ", ".join(f"{name} {difference:.1e}" for name, difference in result.loss_differences.items())
    if differences:
        text.append(
            f"  losses of the same {result.num_losses} steps, largest difference to {STOCK_DEFAULT}: {differences}"
            + (" (every side draws its own dropout)" if first["dropout"] else "")
        )
    text += _memory(result.memory) if result.memory else []
    for side in result.sides:
        if side.profile:
            text += _profile(side)
    return text


def missed(results: Sequence[Result]) -> list[str]:
    """Every target that was not met, as a sentence."""
    found = []
    for result in results:
        title = result.case.title
        found += [f"{title}: {ratio.ours}: {_ratio(ratio)}" for ratio in result.ratios if ratio.met is False]
        found += [f"{title}: {name}: {why}" for name, why in result.failed.items() if name.startswith("fullstride")]
        stock = next((side for side in result.sides if side.name == STOCK_DEFAULT), None)
        for side in result.sides if result.case.targets else ():
            if not side.name.startswith("fullstride"):
                continue
            if side.faults >= MOST_FAULTS:
                found.append(f"{title}: {side.name}: {side.faults:.0f} page faults a step, target below {MOST_FAULTS}")
            if stock and side.peak_bytes >= stock.peak_bytes:
                held = f"{side.peak_bytes >> 20} MiB at most, target below {stock.name}'s {stock.peak_bytes >> 20}"
                found.append(f"{title}: {side.name}: {held}")
        if result.case.targets and result.memory and _above(result.memory):
            found.append(f"{title}: {_memory(result.memory)[0].strip()}")
    return found


def as_json(conditions: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """{conditions, results: [{model, accumulate, sides, ratios, trials, ...}], missed: [sentence]}."""
    entries = []
    for result in results:
        sides = []
        for side in result.sides:
            entry = asdict(side)
            entry["milliseconds"] = [1e3 * seconds for seconds in entry.pop("timing")["seconds"]]
            entry["losses"] = [finite(loss) for loss in side.losses]
            sides.append(entry)
        ratios = [asdict(ratio) | {"met": ratio.met, "ratio": ratio.ratio._asdict()} for ratio in result.ratios]
        entries.append({
            "model": result.case.model, "batch": result.case.batch, "accumulate": result.case.accumulate,
            "sides": sides, "ratios": ratios, "trials": result.trials, "num_losses": result.num_losses,
            "loss_differences": {name: finite(value) for name, value in result.loss_differences.items()},
            "memory": asdict(result.memory) if result.memory else None, "failed": result.failed,
        })  # fmt: skip
    return {"conditions": dict(conditions), "results": entries, "missed": missed(results)}


def finite(number: float) -> float | None:
    """JSON knows no NaN."""
    return number if math.isfinite(number) else None


def _side(side: Measured, num_losses: int) -> str:
    times = [1e3 * seconds for seconds in side.timing.seconds]
    name = f"{side.name} ({side.precision})" if side.name.endswith(" auto") else side.name
    time = f"{_number(1e3 * side.timing.median)} [{_number(min(times))}..{_number(max(times))}]"
    share = "" if side.share_of_peak is None else f"{side.share_of_peak:.0%} {side.precision}"
    loss = statistics.fmean(side.losses[max(0, num_losses - _LAST_LOSSES) : num_losses])
    return (
        f"  {name:<44} {time:>25} {_number(side.units_per_second):>10} {side.faults:>8.0f} {side.peak_bytes >> 20:>9}"
        f" {side.gflops:>8.1f} {share:>9} {loss:>8.4f}"
    )


def _number(value: float) -> str:
    """Four digits, or more rather than an exponent."""
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def _ratio(ratio: Ratio) -> str:
    as_it_comes = (ratio.peer, ratio.peer_side) == (STOCK_BEST, STOCK_DEFAULT)
    return ratio.against(f"{ratio.peer} (as it comes)" if as_it_comes else ratio.peer)


def _memory(memory: Memory) -> list[str]:
    held = ", ".join(f"{name} {peak >> 20} MiB" for name, peak in memory.peaks.items())
    if memory.limit is None:
        return [f"  held at most after {memory.num_steps} steps: {held}; {memory.trouble}"]
    target = f"target at most {STOCK_BF16}'s {'MISSED' if _above(memory) else 'met'}"
    return [f"  held at most after {memory.num_steps} steps: {held}  {target}"]


def _above(memory: Memory) -> list[str]:
    """Those of ours that held more than stock PyTorch did in bf16."""
    limit = memory.limit
    return [
        name for name, peak in memory.peaks.items()
        if name.startswith("fullstride") and limit is not None and peak > limit
    ]  # fmt: skip


def _profile(side: Measured) -> list[str]:
    assert side.profile
    phases = ", ".join(f"{name} {share:.1%}" for name, share in side.profile["phases"])
    head = f"  {side.name}, {side.profile['milliseconds']:.0f} ms a step under the profiler: {phases}"
    ops = [f"    {share:>6.1%} {calls:>7.0f} x  {name}" for name, calls, share in side.profile["ops"][:_TOP_OPS]]
    return [head, *ops]
