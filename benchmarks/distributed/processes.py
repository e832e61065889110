"""One process with all threads against two with half of them each, recipe by recipe, in turns; and what is sent.

    python -m benchmarks.distributed.processes [--recipe RECIPE ...] [--rounds N] [--json FILE]

Both sides are `fullstride train` of a few steps, as it is, with the same samples in a step. Time is that of a step of
the whole run; exposed is the part of it in which a process did nothing but exchange or wait.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

from fullstride.bench.measure import spread_of

from . import runs


def one_round(recipe: str, num: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        fields = ["--nproc", str(num)] if num > 1 else []
        runs.run(runs.command(recipe, Path(folder) / "run", *fields))
        return runs.figures(runs.rows_of(Path(folder) / "run"), runs.STEPS[recipe][1])


def measure(recipe: str, rounds: int) -> dict[str, Any]:
    one, two = [], []
    for _ in range(rounds):
        one.append(one_round(recipe, 1))
        two.append(one_round(recipe, 2))
    return {
        "one": spread_of(found["step_ms"] for found in one) | {"unit": "ms"},
        "two": spread_of(found["step_ms"] for found in two) | {"unit": "ms"},
        "gain": spread_of(a["step_ms"] / b["step_ms"] for a, b in zip(one, two, strict=True)),
        "sent_mb": statistics.median(found["sent_mb"] for found in two),
        "exposed_ms": statistics.median(found["exposed_ms"] for found in two),
        "rounds_of": {"one": one, "two": two},
    }


def as_text(row: dict[str, Any]) -> str:
    gain = row["gain"]
    return (
        f"{row['recipe']:<18} one {row['one']['median']:8.1f} ms, two {row['two']['median']:8.1f} ms:"
        f" {gain['median']:.2f}x [{gain['lowest']:.2f}..{gain['highest']:.2f}]; {row['sent_mb']:.1f} MB a step,"
        f" exposed {row['exposed_ms']:.1f} ms"
    )


if __name__ == "__main__":
    runs.main("One process against two.", list(runs.STEPS), measure, as_text)
