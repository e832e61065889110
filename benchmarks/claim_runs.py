"""Claims about whole runs: what a process that trains holds, and what a run comes to. Called by claims.py."""

import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fullstride
from fullstride import recipes
from fullstride.bench.memory import benchmark as memory_benchmark
from fullstride.bench.memory import table as memory_table
from fullstride.bench.memory.benchmark import Batch
from fullstride.recipes.config import Config
from fullstride.run_folder import metrics

MEMORY = {"mlp": 128, "llama": 8}  # recipe -> samples of a micro-batch
ACCUMULATE = 4
SEEDS = (0, 1, 2)
PARTS = ("parameters", "optimizer", "gradients", "activations", "peak", "grown")
Row = dict[str, Any]


def figure(unit: str, values: Iterable[float]) -> Row:
    found = list(values)
    return {"unit": unit, "median": statistics.median(found), "lowest": min(found), "highest": max(found)}


def row(claim: str, case: str, **figures: Row) -> Row:
    return {"claim": claim, "case": case, "figures": {name.replace("_", " "): own for name, own in figures.items()}}


# ---- memory --------------------------------------------------------------------------------------------------------


def held(config: Config, batch: Batch, precision: str, rounds: int) -> dict[str, list[float]]:
    """MiB of each part that the system tells, a process each round; `grown`: the peak without what it began with."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        sizes = memory_benchmark.measure(config.replace(precision=precision), batch)
        if "failed" in sizes:
            raise ValueError(f"{config.recipe}, {precision}, {batch}: {sizes['failed']}")
        sizes["grown"] = memory_table.grown(sizes)
        for part in (part for part in PARTS if sizes[part] is not None):
            found.setdefault(part, []).append(sizes[part] / 2**20)
    return found


def memory(rounds: int, wanted: Mapping[str, Config] | None = None) -> list[Row]:
    """bf16 against fp32; and of the first recipe, micro-batches that are added up against one."""
    rows, alone = [], {}
    configs = wanted or {name: recipes.get(name)() for name in MEMORY}
    for name, config in configs.items():
        one = Batch(MEMORY[name], 1)
        sizes = {precision: held(config, one, precision, rounds) for precision in ("fp32", "bf16")}
        alone[name] = sizes
        rows.append(row("bf16_memory", f"{name}, {one}", **_by_part(sizes, PARTS)))
        print(json.dumps(rows[-1]), flush=True)
    name, config = next(iter(configs.items()))
    one, several = Batch(MEMORY[name], 1), Batch(MEMORY[name], ACCUMULATE)
    for precision, own in alone[name].items():
        figures = _by_part({"one": own, "several": held(config, several, precision, rounds)}, ("gradients", "peak"))
        rows.append(row("accumulation", f"{name} in {precision}, {several} against {one}", **figures))
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _by_part(sizes: Mapping[str, dict[str, list[float]]], parts: Sequence[str]) -> dict[str, Row]:
    """sizes: of two ways, part by part."""
    there = [part for part in parts if all(part in own for own in sizes.values())]
    return {f"{part}_{how}": figure("MiB", own[part]) for part in there for how, own in sizes.items()}


# ---- training ------------------------------------------------------------------------------------------------------


def trained(config: Config) -> Row:
    """The last evaluation of a run, and the share of its products that freezing saved: counted work, not time."""
    with tempfile.TemporaryDirectory(prefix="fullstride-claims-") as folder:
        trainer = fullstride.Trainer(config, Path(folder) / "run")
        trainer.quiet = True
        trainer.fit()
        fullstride.restore(trainer.model)
        rows = list(metrics.read(Path(folder) / "run"))
    valid = [own for own in rows if own["kind"] == "eval"][-1]
    train = [own for own in rows if own["kind"] == "train"][-1]
    return {"loss": valid["loss"], "accuracy": valid["accuracy"], "saved": train.get("saved_compute", 0.0)}


def training(seeds: Sequence[int] = SEEDS, config: Config | None = None) -> list[Row]:
    """Three runs a seed, which differ in nothing but this; held-out data is looked at once, at the end."""
    base = config or recipes.get("mlp-mnist")()
    base = base.replace(evaluation={"every": 0}, checkpoints={"every": 0})
    wishes: dict[str, Callable[[Config], Config]] = {
        "as it is": lambda own: own,
        "freezing": lambda own: own.replace(freeze={"enabled": True}),
        "lamb": lambda own: own.replace(optimizer={"name": "lamb", "lookahead": True}),
    }
    runs: dict[str, list[Row]] = {name: [] for name in wishes}
    for seed in seeds:
        for name, change in wishes.items():
            runs[name].append(trained(change(base.replace(seed=seed))))
            print(f"{base.recipe}, seed {seed}, {name}: {json.dumps(runs[name][-1])}", flush=True)
    plain, frozen, lamb = runs.values()
    lost = [100 * (a["accuracy"] - b["accuracy"]) for a, b in zip(plain, frozen, strict=True)]
    worse = [b["loss"] - a["loss"] for a, b in zip(plain, lamb, strict=True)]
    rates = {name: change(base).optimizer.lr for name, change in wishes.items()}
    case = f"{base.recipe}, {base.steps} steps, {len(seeds)} seeds"
    return [
        row("freezing", case, saved=figure("%", [100 * run["saved"] for run in frozen]),
            accuracy_lost=figure("points", lost)),
        row("lamb", f"{case}, rates {rates['as it is']:g} (AdamW) and {rates['lamb']:g} (LAMB)",
            held_out_loss_higher_by=figure("nats", worse),
            loss_with_AdamW=figure("nats", [own["loss"] for own in plain]),
            loss_with_LAMB_and_Lookahead=figure("nats", [own["loss"] for own in lamb])),
    ]  # fmt: skip
