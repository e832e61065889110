"""What a process loses by averaging gradients with another: two that train together against two that do not, in turns.

    python -m benchmarks.distributed.averaging [--recipe RECIPE ...] [--rounds N] [--json FILE]

Each process has one core and one thread, and all compute the same micro-batches a step. Runs side by side share the
memory's bandwidth as those that train together do, so what differs is DistributedDataParallel, its hooks and the sums.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

from . import runs

RECIPES = ("mlp-mnist", "llama", "llama-char")


def side_by_side(recipe: str) -> dict[str, float]:
    """Means of two runs that know nothing of each other."""
    with tempfile.TemporaryDirectory() as folder:
        return runs.side_by_side(recipe, Path(folder))


def together(recipe: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        micros = 2 * runs.accumulate_of(recipe)
        runs.run(runs.command(recipe, Path(folder) / "run", "--nproc", "2", "--accumulate", str(micros)))
        return runs.figures(runs.rows_of(Path(folder) / "run"), runs.STEPS[recipe][1])


def measure(recipe: str, rounds: int) -> dict[str, Any]:
    found = runs.in_turns({"apart": side_by_side, "together": together}, recipe, rounds)
    exposed = statistics.median(each["exposed_ms"] for each in found["rounds_of"]["together"])
    return found | {"ratio": runs.ratio(found, "together", "apart"), "exposed_ms": exposed}


def as_text(row: dict[str, Any]) -> str:
    ratio = row["ratio"]
    return (
        f"{row['recipe']:<12} apart {row['apart']['median']:8.1f} ms, together {row['together']['median']:8.1f} ms:"
        f" {ratio['median']:.3f}x [{ratio['lowest']:.3f}..{ratio['highest']:.3f}], exposed {row['exposed_ms']:.1f} ms"
    )


if __name__ == "__main__":
    runs.main("What averages of gradients cost.", RECIPES, measure, as_text)
