"""One process with all threads against two with half of them each, recipe by recipe, in turns; and what is sent.

    python -m benchmarks.distributed.processes [--recipe RECIPE ...] [--rounds N] [--json FILE]

Both sides are `fullstride train` of a few steps, as it is, with the same samples in a step. Time is that of a step of
the whole run; exposed is the part of it in which a process did nothing but exchange or wait.
"""

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from . import runs


def one_round(recipe: str, num: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        fields = ["--nproc", str(num)] if num > 1 else []
        runs.run(runs.command(recipe, Path(folder) / "run", *fields))
        return runs.figures(runs.rows_of(Path(folder) / "run"), runs.STEPS[recipe][1])


def measure(recipe: str, rounds: int) -> dict[str, Any]:
    sides = {"one": partial(one_round, num=1), "two": partial(one_round, num=2)}
    found = runs.in_turns(sides, recipe, rounds)
    of_two = found["rounds_of"]["two"]
    costs = {name: statistics.median(each[name] for each in of_two) for name in ("sent_mb", "exposed_ms")}
    return found | {"gain": runs.ratio(found, "one", "two")} | costs


def as_text(row: dict[str, Any]) -> str:
    gain = row["gain"]
    return (
        f"{row['recipe']:<18} one {row['one']['median']:8.1f} ms, two {row['two']['median']:8.1f} ms:"
        f" {gain['median']:.2f}x [{gain['lowest']:.2f}..{gain['highest']:.2f}]; {row['sent_mb']:.1f} MB a step,"
        f" exposed {row['exposed_ms']:.1f} ms"
    )


if __name__ == "__main__":
    runs.main("One process against two.", list(runs.STEPS), measure, as_text)
