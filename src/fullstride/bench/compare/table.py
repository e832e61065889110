"""What `fullstride compare` found, as text and as JSON, which the report of a run reads (compare.json)."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import durable
from ..step import table as step_table
from ..step.results import Measured, Result, differences

if TYPE_CHECKING:
    from ...recipes.config import Config

_FIRST = 5  # steps
_BUSY = 1.5  # times the cores: a training run of ours that has just ended leaves a load of up to once the cores


class Turns(NamedTuple):
    """How much was measured."""

    rounds: int
    steps: int  # of a side in a round
    seconds: float  # of all these steps, those of all sides


def legend(seconds: float) -> str:
    return f"""\
{seconds:g} seconds of steps in total over all sides, or three rounds if these take longer; start-up is not counted;
each side is a process of its own, and they take turns, from the same weights, on the same data in the same order;
time of one step, median [lowest..highest] of the rounds; faults: pages a step; peak: the most memory the process ever
held; GFLOP/s: as fullstride.flops() counts the recipe's, and the share of what square products of the same precision
reach on this machine; loss: mean of the last steps"""


def lines(content: Mapping[str, Any], result: Result) -> list[str]:
    """The sides, how many times faster ours is, the losses, and how much was measured."""
    sides = step_table.lines(result)
    turns = Turns(**content["turns"])
    measured = f"  measured {turns.seconds:.1f} s of steps: {turns.rounds} rounds, {turns.steps} a turn"
    notes = [note for note in content["notes"] if note not in _failures(result)]  # those have a line in the table
    return [*sides, *_losses(result), measured, *(f"  {note}" for note in notes)]


def _losses(result: Result) -> list[str]:
    """Single losses drift apart once rounding has grown, whoever rounds; the first steps and the mean tell more."""
    if result.num_losses <= _FIRST:
        return []
    means = [f"{side.name} {sum(side.losses[: result.num_losses]) / result.num_losses:.4f}" for side in result.sides]
    early = [f"{name} {value:.1e}" for name, value in differences(result.sides, _FIRST).items()]
    return [f"  in the first {_FIRST} steps: {', '.join(early)}; mean of all {result.num_losses}: {', '.join(means)}"]


def as_json(conditions: Mapping[str, Any], config: "Config", result: Result, turns: Turns) -> dict[str, Any]:
    """{conditions, recipe, config, seconds, sides: [...], ratios: [...], loss_differences, ...}: plain JSON."""
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
        "sides": [_side(side) for side in result.sides],
        "ratios": [
            {"ours": x.ours, "peer": x.peer, "peer_side": x.peer_side, "ratio": x.ratio._asdict()}
            for x in result.ratios
        ],
        "loss_differences": {name: step_table.finite(value) for name, value in result.loss_differences.items()},
        "trials": result.trials,
        "failed": result.failed,
        "notes": [*_failures(result), *_notes(conditions, config, result)],
    }


def _side(side: Measured) -> dict[str, Any]:
    milliseconds = [1e3 * seconds for seconds in side.timing.seconds]
    return {
        "name": side.name,
        "precision": side.precision,
        "milliseconds": {  # a step
            "median": 1e3 * side.timing.median, "lowest": min(milliseconds), "highest": max(milliseconds),
            "rounds": milliseconds,
        },
        "units_per_second": side.units_per_second,
        "gflops": None if math.isnan(side.gflops) else side.gflops,
        "share_of_peak": side.share_of_peak,
        "peak_bytes": side.peak_bytes,
        "faults": side.faults,  # a step
        "threads": side.facts["threads"],
        "explanation": side.facts["explanation"],
        "losses": [step_table.finite(loss) for loss in side.losses],  # of every step from the first on
        "frozen": [{"step": step, "layers": layers} for step, layers in side.frozen],  # where it changed
    }  # fmt: skip


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


def _frozen(result: Result) -> str:
    """Which layers ours froze, and when: its later steps are shorter for it, and its losses no longer stock's."""
    ours = result.sides[0]
    changes = [f"after step {step} {', '.join(layers) or 'none'}" for step, layers in ours.frozen]
    what = "frozen: " + "; ".join(changes) if changes else f"it froze nothing in these {len(ours.losses)} steps"
    return f"freeze.enabled is ours alone: stock PyTorch has no such thing; {what}"


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
