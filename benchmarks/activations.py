"""What `activations: bf16` does to memory, speed and loss of fp32 training.

    python -m benchmarks.activations memory             # bytes that forward keeps, and the most that the process held
    python -m benchmarks.activations speed              # a step with it and without, A B A B in processes of their own
    python -m benchmarks.activations loss llama-char --steps 300 --seeds 0 1 2

Memory and loss may be taken on a machine that others use, speed may not. A loss is that of the recipe's own training on
the same data to the same step, with nothing changed but the field; its recipe needs its data (`fullstride data`).
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fullstride import recipes
from fullstride.bench import conditions
from fullstride.bench.memory import benchmark as memory_benchmark
from fullstride.bench.step.cases import Case
from fullstride.recipes.config import Config
from fullstride.run_folder import metrics
from fullstride.train.trainer import Trainer

from . import own_sides

WISHES = ("same", "bf16")
MEMORY = {"mlp": (1024,), "llama": (8, 32)}  # recipe: samples at once; a sample of llama is 256 tokens
SPEED = {"mlp": Case("mlp"), "llama": Case("llama", batch="4 x 256"), "bert": Case("bert")}
_LAST = 10  # rows of metrics that the training loss at the end is the mean of


def memory(config: Config, micro_batch: int) -> dict[str, Any]:
    """MiB by wish: what forward keeps, what backward takes beside it, the most that the process held."""
    found = {}
    for wish in WISHES:
        changed = config.replace(precision="fp32", activations=wish)
        sizes = memory_benchmark.measure(changed, memory_benchmark.Batch(micro_batch, 1))
        if "failed" in sizes:
            raise RuntimeError(f"{config.recipe}, activations {wish}: {sizes['failed']}")
        found[wish] = {name: round(sizes[name] / 2**20, 1) for name in ("activations", "temporary", "peak")}
    return {"recipe": config.recipe, "micro_batch": micro_batch, "mib": found}


def speed(case: Case, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step by wish, and how many times as fast it is with bf16."""
    measured = own_sides.in_turns(case, "fp32", {wish: {"activations": wish} for wish in WISHES}, rounds)
    same, bf16 = measured.timings
    return {
        "model": case.title, "rounds": rounds, "steps_a_round": measured.steps,
        "ms": {"same": 1000 * same.median, "bf16": 1000 * bf16.median}, "ratio": bf16.ratio_to(same)._asdict(),
    }  # fmt: skip


def loss(config: Config, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each seed: the training loss at the end and the last evaluation, by wish."""
    rows = []
    for seed in seeds:
        row: dict[str, Any] = {"recipe": config.recipe, "steps": config.steps, "seed": seed}
        for wish in WISHES:
            with tempfile.TemporaryDirectory(prefix="fullstride-activations-") as folder:
                changed = config.replace(precision="fp32", activations=wish, seed=seed)
                trainer = Trainer(changed, Path(folder) / "run")
                trainer.quiet = True
                trainer.fit()
                found = metrics.read(Path(folder) / "run")
            ends = [step["loss"] for step in found if step["kind"] == "train"][-_LAST:]
            valid = [step for step in found if step["kind"] == "eval"][-1]
            row[wish] = {"train": statistics.mean(ends), "valid": {k: valid[k] for k in trainer.task.metrics}}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="activations", description="What activations kept in bf16 cost and save.")
    parser.add_argument("--json", type=Path)
    commands = parser.add_subparsers(dest="command", required=True)
    held = commands.add_parser("memory")
    held.add_argument("--recipe", nargs="+", choices=list(MEMORY), default=list(MEMORY))
    fast = commands.add_parser("speed")
    fast.add_argument("--model", nargs="+", choices=list(SPEED), default=list(SPEED))
    fast.add_argument("--rounds", type=int, default=5)
    trained = commands.add_parser("loss")
    trained.add_argument("recipe", choices=recipes.NAMES)
    trained.add_argument("--steps", type=int, required=True)
    trained.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args(arguments)
    print(conditions.as_text(conditions.conditions()), flush=True)
    rows: list[dict[str, Any]] = []
    if options.command == "memory":
        for recipe in options.recipe:
            for micro_batch in MEMORY[recipe]:
                rows.append(memory(recipes.get(recipe)(), micro_batch))
                print(json.dumps(rows[-1]), flush=True)
    elif options.command == "speed":
        for name in options.model:
            rows.append(speed(SPEED[name], options.rounds))
            print(json.dumps(rows[-1]), flush=True)
    else:
        config = recipes.get(options.recipe)().replace(
            steps=options.steps, evaluation={"every": 0}, checkpoints={"every": 0}, logging={"every": 10}
        )
        rows = loss(config, options.seeds)
    if options.json:
        options.json.write_text(json.dumps({"conditions": conditions.conditions(), "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
