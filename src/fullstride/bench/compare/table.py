"""What `fullstride compare` found, as text and as JSON, which the report of a run reads (compare.json)."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ... import durable
from ...report import words
from ..measure import spread_of
from ..step import table as step_table
from ..step.cases import STOCK_DEFAULT
from ..step.results import Measured, Result, differences
from . import outcome
from .outcome import Steps, Turns

if TYPE_CHECKING:
    from ...recipes.config import Config

_FIRST = 5  # steps
_BUSY = 1.5  # times the cores: a training run of ours that has just ended leaves a load of up to once the cores


def legend(seconds: float) -> str:
    return f"""\
{seconds:g} seconds of steps in total over all sides, or three rounds if these take longer; start-up is not counted;
each side is a process of its own, and they take turns, from the same weights, on the same data in the same order;
time of one step, median [lowest..highest] of the rounds; faults: pages a step; peak: the most memory the process ever
held; GFLOP/s: as fullstride.flops() counts the recipe's, and the share of what square products of the same precision
reach on this machine; loss: mean of the last steps; seconds of training: of a side's own steps after warm-up"""


def lines(content: Mapping[str, Any], result: Result) -> list[str]:
    """The sides, how many times faster ours is, the losses, and how much was measured."""
    sides = step_table.lines(result)
    turns = Turns(**content["turns"])
    measured = f"  measured {turns.seconds:.1f} s of steps: {turns.rounds} rounds, {turns.steps} a turn"
    notes = [note for note in content["notes"] if note not in _failures(result)]  # those have a line in the table
    return [*sides, *_losses(content, result), *_spreads(content), measured, *(f"  {note}" for note in notes)]


def _losses(content: Mapping[str, Any], result: Result) -> list[str]:
    """Single losses drift apart once rounding has grown, whoever rounds; the first steps and means tell more."""
    found = []
    if result.num_losses > _FIRST:
        early = [f"{name} {value:.1e}" for name, value in differences(result.sides, _FIRST).items()]
        means = [f"{side.name} {fmean(side.losses[: result.num_losses]):.4f}" for side in result.sides]
        found.append("  " + "; ".join([
            *([f"in the first {_FIRST} steps: {', '.join(early)}"] if early else []),
            f"mean of all {result.num_losses}: {', '.join(means)}",
        ]))  # fmt: skip
    step, time = content["losses_at"]["same_step"], content["losses_at"]["same_time"]
    steps = [f"{name} {_loss(side)}" for name, side in step["sides"].items()]
    times = [f"{name} {_loss(side)} at step {side['step']:,}" for name, side in time["sides"].items()]
    warm_up = [f"{side['name']} {side['warm_up_seconds']:.3g} s" for side in content["sides"]]
    return [
        *found,
        "  loss, mean [lowest..highest] of so many steps:",
        f"    of {step['window']}, after {step['step']:,} steps: {', '.join(steps)}",
        f"    of {time['window']}, after {time['seconds']:.3g} s of training: {', '.join(times)}",
        f"  warm-up, before the clock: {content['turns']['warm_up']} steps, {', '.join(warm_up)}",
    ]


def _loss(found: Mapping[str, Any]) -> str:
    if "mean" not in found:
        return "not a number"
    return f"{found['mean']:.4g} [{found['lowest']:.4g}..{found['highest']:.4g}]"


def _spreads(content: Mapping[str, Any]) -> list[str]:
    """What the table has the median of alone."""
    rates, faults = [], []
    for side in content["sides"]:
        rates.append(f"{side['name']} {_spread(side['throughput'])}")
        faults.append(f"{side['name']} {_spread(side['faults_spread'])}")
    return [f"  {content['unit']}/s: {', '.join(rates)}", f"  page faults a step: {', '.join(faults)}"]


def _spread(found: Mapping[str, float]) -> str:
    median, lowest, highest = (words.significant(found[name]) for name in ("median", "lowest", "highest"))
    return f"{median} [{lowest}..{highest}]"


def as_json(
    conditions: Mapping[str, Any], config: "Config", result: Result, turns: Turns, steps: Sequence[Steps],
    continued: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:  # fmt: skip
    """{conditions, recipe, config, seconds, sides: [...], ratios: [...], losses_at, ...}: plain JSON.

    steps: of the sides, in the order of the result's.
    """
    from ...recipes.strict import as_mapping

    first = result.sides[0]
    return {
        "conditions": dict(conditions),
        "recipe": config.recipe,
        "config": as_mapping(config) | {"precision": first.precision},  # what auto came to
        "turns": turns._asdict(),
        "unit": first.facts["unit"],
        "units_per_step": first.facts["units"],
        "parameters": first.facts["parameters"],
        "sides": [_side(side, own) for side, own in zip(result.sides, steps, strict=True)],
        "ratios": [
            {"ours": x.ours, "peer": x.peer, "peer_side": x.peer_side, "ratio": x.ratio._asdict()}
            for x in result.ratios
        ],
        "losses_at": {"same_step": outcome.at_same_step(steps), "same_time": outcome.at_same_time(steps)},
        "loss_differences": {name: step_table.finite(value) for name, value in result.loss_differences.items()},
        "trials": result.trials,
        "failed": result.failed,
        "notes": [
            *_failures(result),
            *_notes(conditions, config, result),
            *(note for part in continued for note in _continued(part, conditions["usable_cores"])),
        ],
    }


def _side(side: Measured, steps: Steps) -> dict[str, Any]:
    milliseconds = [1e3 * seconds for seconds in side.timing.seconds]
    return {
        "name": side.name,
        "precision": side.precision,
        "milliseconds": {**spread_of(milliseconds), "rounds": milliseconds},  # a step
        "units_per_second": side.units_per_second,
        "throughput": spread_of(side.facts["units"] / seconds for seconds in side.timing.seconds),  # units a second
        "gflops": None if math.isnan(side.gflops) else side.gflops,
        "share_of_peak": side.share_of_peak,
        "peak_bytes": side.peak_bytes,
        "faults": side.faults,  # a step
        "faults_spread": spread_of(steps.faults),
        "threads": side.facts["threads"],
        "explanation": side.facts["explanation"],
        "losses": [step_table.finite(loss) for loss in side.losses],  # of every step from the first on
        "seconds": [round(seconds, 6) for seconds in steps.clock],  # of training when each of these was done
        "warm_up_seconds": steps.warm_up_seconds,  # of the steps that are not on that clock
        "frozen": [{"step": step, "layers": layers} for step, layers in side.frozen],  # where it changed
    }  # fmt: skip


def _continued(part: Mapping[str, Any], cores: int) -> list[str]:
    """Of a stop."""
    apart = {name: value for name, value in part["differences"].items() if value != 0}
    same = "with the same losses" if not apart else "with other losses, relative: " + ", ".join(
        f"{name} not a number" if value is None else f"{name} {value:.1e} at most" for name, value in apart.items()
    )  # fmt: skip
    when = f"stopped after {part['steps']} steps and continued"
    notes = [f"{when}: new processes took them again, {same}"]
    notes += [f"{when}, not with the same: {other}" for other in part["others"]]
    if part["load"] > _BUSY * cores:
        notes.append(f"{when} at load {part['load']:g} on {cores} cores: others were measured too, so trust no ratio")
    return notes


def _failures(result: Result) -> list[str]:
    return [f"{name}: {why}" for name, why in result.failed.items()]


def _notes(conditions: Mapping[str, Any], config: "Config", result: Result) -> list[str]:
    """What the figures do not say."""
    notes = []
    load, cores = conditions["load"], conditions["usable_cores"]
    if load > _BUSY * cores:
        notes.append(
            f"load {load:g} on {cores} cores before the first step: others were measured too, so trust no ratio"
        )
    threads = {side.name: side.facts["threads"] for side in result.sides}
    if len(set(threads.values())) > 1:
        notes.append("threads: " + ", ".join(f"{name} {count}" for name, count in threads.items()))
    notes += _precisions(result)
    if config.freeze.enabled:
        notes.append(_frozen(result))
    lacks = ["LAMB"] * (config.optimizer.name == "lamb") + ["Lookahead"] * config.optimizer.lookahead
    if lacks:
        notes.append(
            f"torch.optim has no {' and no '.join(lacks)}: stock's is written in plain torch for this comparison"
        )
    if config.optimizer.state_precision != "fp32":
        notes.append(f"optimizer.state_precision {config.optimizer.state_precision} is ours alone; stock has fp32")
    if config.activations != "same":
        notes.append(f"activations {config.activations} are ours alone; stock keeps them as they were computed")
    return notes


def _precisions(result: Result) -> list[str]:
    """A ratio may be that of two precisions."""
    ours, stock = result.sides[0], next((side for side in result.sides if side.name == STOCK_DEFAULT), None)
    if stock is None or stock.precision == ours.precision:
        return []
    other = f"--precision {stock.precision} compares the same, --best tries autocast for stock"
    return [f"{ours.name} computes in {ours.precision}, {stock.name} in {stock.precision}: {other}"]


def _frozen(result: Result) -> str:
    """Which layers each side froze, and when: its later steps are shorter for it."""
    found = []
    for side in result.sides:
        changes = [f"after step {step} {', '.join(layers) or 'none'}" for step, layers in side.frozen]
        found.append(f"{side.name} {'; '.join(changes) or f'nothing in {len(side.losses)} steps'}")
    compiled = any("torch.compile" in side.name and side.frozen for side in result.sides)
    clock = "; each change makes torch.compile compile again, on the clock" if compiled else ""
    return f"torch has no freezing: stock's is the same rule in plain torch{clock}; frozen: {' | '.join(found)}"


def check_writable(path: Path) -> None:
    """ValueError now instead of after a minute of measuring."""
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}: it is not a regular file; give a file name")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}; make it, or name another")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"cannot write {path}: the folder {path.parent} is not writable; name another")


def write(path: Path, content: Mapping[str, Any]) -> None:
    durable.replace(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
