"""Memory of each process with the optimizer's states whole in all of them, and each parameter's in one alone (ZeRO-1).

    python -m benchmarks.distributed.sharding [--recipe RECIPE ...] [--rounds N] [--json FILE]

Resident memory at the end of a few steps, of the process that holds most; losses of both must be equal to the bit.
Gradients are sent in fp32: what `auto` comes to may differ from run to run.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

from . import runs

RECIPES = ("mlp", "llama")
PROCESSES = (2, 4)


def one_run(recipe: str, num: int, is_sharded: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        fields = ["--distributed.gradients", "fp32", *(["--distributed.shard-optimizer"] if is_sharded else [])]
        runs.run(runs.command(recipe, Path(folder) / "run", "--nproc", str(num), *fields))
        rows = runs.rows_of(Path(folder) / "run")
        return {
            "resident_mb": max(rank["resident_mb"] for rank in rows[-1]["ranks"]),
            "losses": [row["loss"] for row in rows],
        }


def measure(recipe: str, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for num in PROCESSES:
        whole, sharded = [], []
        for _ in range(rounds):
            whole.append(one_run(recipe, num, False))
            sharded.append(one_run(recipe, num, True))
        found[str(num)] = {
            "whole_mb": statistics.median(run["resident_mb"] for run in whole),
            "sharded_mb": statistics.median(run["resident_mb"] for run in sharded),
            "equal": all(run["losses"] == whole[0]["losses"] for run in (*whole, *sharded)),
        }
    return {"processes": found}


def as_text(row: dict[str, Any]) -> str:
    return f"{row['recipe']:<6} " + "; ".join(
        f"{num} processes: {own['whole_mb']:.0f} MB each, sharded {own['sharded_mb']:.0f} MB, losses"
        f" {'equal' if own['equal'] else 'NOT equal'}"
        for num, own in row["processes"].items()
    )


if __name__ == "__main__":
    runs.main("Memory of sharded states.", RECIPES, measure, as_text)
