"""Trainings of a few steps by the command, as a user would run them, and what their rows of metrics tell."""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fullstride import recipes
from fullstride.bench import conditions
from fullstride.bench.measure import spread_of
from fullstride.recipes import config_files
from fullstride.run_folder.metrics import read

STEPS = {  # of a training, and from row to row
    "mlp": (24, 3), "mlp-mnist": (60, 10), "mlp-seven": (24, 3), "llama": (18, 3), "llama-char": (300, 50),
    "fastspeech2": (12, 3), "fastspeech2-quick": (24, 4), "clip": (12, 2), "clip-small": (16, 4),
}  # fmt: skip
Figures = dict[str, float]
_PLAIN = ("--evaluation.every", "0", "--checkpoints.every", "0", "--data.workers", "0", "--no-report", "--quiet")
_PARTS = ("data", "forward", "backward", "optimizer")


def command(recipe: str, folder: Path, *fields: str, steps: int | None = None, every: int | None = None) -> list[str]:
    """Words after `python -m`; the run folder is `folder`."""
    usual, usual_every = STEPS[recipe]
    length = ["--steps", str(steps or usual), "--logging.every", str(every or usual_every)]
    return ["fullstride", "train", recipe, *length, *_PLAIN, *fields, "--folder", str(folder)]


def on_core(number: int | None, words: Sequence[str]) -> list[str]:
    """The whole command; number None: on all cores."""
    return [*(() if number is None else ("taskset", "-c", str(number))), sys.executable, "-m", *words]


def run(words: Sequence[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")


def side_by_side(recipe: str, folder: Path, steps: int | None = None, every: int | None = None) -> Figures:
    """Means of two runs in folders 0 and 1 that know nothing of each other, with one core and one thread each: what
    they share is the memory's bandwidth."""
    words = [
        on_core(core, command(recipe, folder / str(core), "--threads", "1", steps=steps, every=every))
        for core in (0, 1)
    ]  # fmt: skip
    processes = [subprocess.Popen(own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for own in words]
    if any([process.wait() for process in processes]):
        raise RuntimeError(f"{' '.join(words[0])}: it failed")
    found = [figures(rows_of(folder / str(core)), every or STEPS[recipe][1]) for core in (0, 1)]
    return {name: statistics.mean(own[name] for own in found) for name in found[0]}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Without the first, which holds the first steps."""
    return [row for row in read(folder) if row["kind"] == "train"][1:]


def figures(rows: Sequence[dict[str, Any]], every: int) -> dict[str, float]:
    """Medians over the rows, of a step: milliseconds, and of several processes what one of them sent and waited."""
    found = {"step_ms": statistics.median(row["step_ms"] for row in rows)}
    for part in _PARTS:
        found[f"{part}_ms"] = 1000 * statistics.median(row["time"][part] for row in rows) / every
    if "ranks" in rows[0]:
        found["sent_mb"] = statistics.median(row["ranks"][0]["sent_mb"] for row in rows) / every
        waits = [statistics.mean(rank["wait"] for rank in row["ranks"]) for row in rows]
        found["exposed_ms"] = 1000 * statistics.median(waits) / every
    return found


def accumulate_of(recipe: str) -> int:
    """Micro-batches in a step."""
    return recipes.get(recipe)().accumulate


def in_turns(sides: Mapping[str, Callable[[str], Figures]], recipe: str, rounds: int) -> dict[str, Any]:
    """Of each side the spread of the time of a step, and all that its rounds told."""
    found: dict[str, list[Figures]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side(recipe))
    times = {name: spread_of(each["step_ms"] for each in rows) | {"unit": "ms"} for name, rows in found.items()}
    return times | {"rounds_of": found}


def ratio(found: dict[str, Any], side: str, over: str) -> dict[str, Any]:
    """Of the times of two sides, round by round."""
    pairs = zip(found["rounds_of"][side], found["rounds_of"][over], strict=True)
    return spread_of(a["step_ms"] / b["step_ms"] for a, b in pairs)


def parameters(folder: Path) -> list[int]:
    """How many numbers each parameter of a run's model has, in the model's order."""
    model = config_files.read(folder / "config.yaml").task().build_model()
    return [p.numel() for p in model.parameters()]


def main(
    what: str, known: Sequence[str], measure: Callable[[str, int], dict[str, Any]],
    as_text: Callable[[dict[str, Any]], str], arguments: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """A benchmark that has a row for each recipe: measure(recipe, rounds)."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--recipe", nargs="+", choices=known, default=list(known))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    facts, rows = conditions.conditions(), []
    for recipe in options.recipe:
        rows.append({"recipe": recipe, "rounds": options.rounds, **measure(recipe, options.rounds)})
        print(as_text(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"conditions": facts, "results": rows}, indent=1) + "\n")
