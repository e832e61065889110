"""`fullstride memory RECIPE`: what batches of several sizes cost, 16, 32 and 16 x 2 say, each in a process of its own.

Every process makes two real steps with the trainer; train/progress/memory_use.py has what is measured and how. A heap
that is kept never shrinks, so one process could not tell two batches apart.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..compare.table import check_writable, write
from ..step.process import our_environment
from . import table

if TYPE_CHECKING:
    from ...recipes.config import Config

Say = Callable[[str], object]


class Batch(NamedTuple):
    micro_batch: int
    accumulate: int

    def __str__(self) -> str:
        return f"{self.micro_batch} x {self.accumulate}" if self.accumulate > 1 else f"{self.micro_batch}"


DEFAULT = (Batch(16, 1), Batch(32, 1), Batch(16, 2))


def parse(text: str) -> tuple[Batch, ...]:
    """ "16,32,16x2" """
    batches = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([1-9]\d*)\s*(?:x\s*([1-9]\d*)\s*)?", part)
        if found is None:
            raise ValueError(f"expected batches like 16,32,16x2, each from 1 on, got {part.strip()!r}")
        batches.append(Batch(int(found[1]), int(found[2] or 1)))
    return tuple(batches)


def run(
    config: "Config", batches: Sequence[Batch] = DEFAULT, json: Path | None = None, say: Say | None = None
) -> dict[str, Any]:
    """Measures, says and returns the outcome. json: a file for it, memory.json of a run folder say."""
    say = say or _print
    if json is not None:
        check_writable(json)

    from ...recipes.strict import as_mapping
    from .. import conditions  # loads torch, which bad input need not wait for

    facts = conditions.conditions() | {"heap": "kept, as in training"}
    say(f"{conditions.as_text(facts)}\n\n{table.LEGEND}\n")
    found = []
    for batch in batches:
        found.append(batch._asdict() | {"name": str(batch)} | measure(config, batch))
        say(f"measured {batch}{': ' + found[-1]['failed'] if 'failed' in found[-1] else ''}")
    content = {"conditions": facts, "recipe": config.recipe, "config": as_mapping(config), "batches": found}
    say("\n" + "\n".join(table.lines(found)))
    if json is not None:
        write(json, content)
    return content


def measure(config: "Config", batch: Batch) -> dict[str, Any]:
    """The bytes of a batch, or why there are none."""
    from ...recipes import config_files

    changed = config.replace(
        micro_batch=batch.micro_batch, accumulate=batch.accumulate,
        evaluation={"every": 0}, checkpoints={"every": 0},
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="fullstride-memory-") as folder:
        (Path(folder) / "config.yaml").write_text(config_files.to_yaml(changed.located()))
        done = subprocess.run(
            [sys.executable, "-m", "fullstride.bench.memory.child", folder],
            capture_output=True, text=True, env=our_environment(), cwd=os.getcwd(),
        )  # fmt: skip
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode == 0 and last.startswith("{"):
        answer: dict[str, Any] = json.loads(last)
        return answer
    how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    said = done.stderr.strip().splitlines()
    return {"failed": f"its process ended, {how}" + (f": {said[-1].strip()}" if said else "")}


def _print(text: str) -> None:
    print(text, flush=True)
