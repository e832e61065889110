"""Many runs at a glance: what became of each, how good it is, how fast it was. Loads neither torch nor matplotlib."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..run_folder import lock
from ..run_folder.folder import RunFolder
from . import words
from .run import Run, number, read, series

_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (0.0, "s"))
_COLUMNS = ("run", "recipe", "state", "steps", "best", "processes", "speed", "time", "age")
_NUMBERS = {"steps", "processes", "speed", "time", "age"}  # stand at the right of their column


@dataclass(frozen=True)
class Summary:
    """One run. None: not known, or not there yet."""

    folder: str
    recipe: str
    state: str  # running, finished, stopped early, interrupted, failed
    why: str  # it stopped, was interrupted or failed, if it could say so
    steps: int
    planned_steps: int | None
    metric: str  # what "best" is judged by
    best: float | None
    best_step: int | None
    per_second: float | None  # median
    unit: str
    seconds: float  # of training, through all attempts
    changed: float  # when something was last written, in seconds since 1970
    processes: int  # of the last attempt


class Broken(NamedTuple):
    folder: str
    why: str


def find(folder: Path) -> list[Path]:
    """The runs in a folder, or the folder itself if it is one. ValueError if there is none."""
    if (folder / "config.yaml").is_file():
        return [folder]
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise ValueError(f"{what}: expected a folder with runs, or a run; `fullstride train` makes them in runs/")
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise ValueError(f"cannot read {folder}: {error.strerror}") from None
    runs = [path for path in inside if RunFolder.is_one(path)]
    if not runs:
        raise ValueError(f"no run in {folder}: expected folders that `fullstride train` made, with a config.yaml each")
    return runs


def look(folders: Sequence[Path]) -> tuple[list[Summary], list[Broken]]:
    """Of each run its summary, those that changed last at the end; and those of which nothing can be said."""
    found, broken = [], []
    for folder in folders:
        try:
            found.append(summarise(folder, read(folder)))
        except (ValueError, TypeError, KeyError, OSError) as error:  # whatever somebody left in it
            why = (str(error).splitlines() or [type(error).__name__])[0]
            broken.append(Broken(str(folder), why.removeprefix(f"{folder} ")))
    return sorted(found, key=lambda summary: summary.changed), broken


def summarise(folder: Path, run: Run) -> Summary:
    if not run.config:
        raise ValueError("its config.yaml is not YAML with fields in it")
    state, why = state_of(folder, run)
    best = run.best()
    rate = series(run.train, "per_second")
    return Summary(
        str(folder), run.recipe, state, why, run.steps, run.planned_steps, run.metric,
        None if best is None else number(best, run.metric), None if best is None else best["step"],
        float(np.nanmedian(rate)) if np.isfinite(rate).any() else None, run.unit, run.seconds, _changed(folder),
        max(1, len(run.hosts)),
    )  # fmt: skip


def state_of(folder: Path, run: Run) -> tuple[str, str]:
    """What became of a run, and why."""
    if lock.is_held(folder):
        return "running", ""
    if run.end is not None:
        why = str(run.end.get("stopped") or "")
        return ("stopped early", why) if why else ("finished", "")
    if run.broken_off is not None:
        return run.broken_off["event"], str(run.broken_off.get("why") or "")
    return "interrupted", ""  # killed, or the machine went down


def as_json(runs: Sequence[Summary], broken: Sequence[Broken]) -> dict[str, Any]:
    return {"runs": [asdict(run) for run in runs], "broken": [entry._asdict() for entry in broken]}


def as_text(runs: Sequence[Summary], broken: Sequence[Broken]) -> str:
    """The table, why runs failed, how to go on with those that can, and what is broken."""
    now = time.time()
    names = [name for name in _COLUMNS if name != "processes" or any(run.processes > 1 for run in runs)]
    rows = [names, *([_cells(run, now)[name] for name in names] for run in runs)] if runs else []
    lines = table(rows, {i for i, name in enumerate(names) if name in _NUMBERS})
    notes = [f"{run.folder} {run.state}: {run.why}" for run in runs if run.state == "failed" and run.why]
    resumable = [run for run in runs if run.state in ("interrupted", "failed")]
    if resumable:
        notes.append(f"go on with: {_way_on(resumable[-1])}")
    notes += [f"broken: {entry.folder}: {entry.why}" for entry in broken]
    return "\n".join([*lines, *([""] if lines and notes else []), *notes])


def _way_on(run: Summary) -> str:
    """A run of fit() has its model and data in Python alone."""
    in_python = f"fullstride.fit(..., run={run.folder!r}, resume=True), in Python"
    return in_python if run.recipe == "fit" else f"fullstride resume {run.folder}"


def table(rows: Sequence[Sequence[str]], right: set[int]) -> list[str]:
    """Columns under each other; those of `right` end at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [f"{x:>{w}}" if i in right else f"{x:<{w}}" for i, (x, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def _cells(run: Summary, now: float) -> dict[str, str]:
    """By the name of the column."""
    cells = (
        run.folder, run.recipe, run.state, steps(run), best(run), str(run.processes), speed(run),
        plain(words.duration(run.seconds)), age(now - run.changed),
    )  # fmt: skip
    return dict(zip(_COLUMNS, cells, strict=True))


def steps(run: Summary) -> str:
    return f"{run.steps:,}/{run.planned_steps:,}" if run.planned_steps else f"{run.steps:,}"


def best(run: Summary) -> str:
    return "-" if run.best is None else plain(f"{words.label(run.metric)} {words.metric(run.metric, run.best)}")


def speed(run: Summary) -> str:
    return "-" if run.per_second is None else f"{words.significant(run.per_second)} {run.unit}/s"


def age(seconds: float) -> str:
    """5 s, 3 min, 2 h, 4 d."""
    seconds = max(0.0, seconds)
    length, unit = next(entry for entry in _AGES if seconds >= entry[0])
    return f"{seconds / (length or 1.0):.0f} {unit}"


def plain(text: str) -> str:
    """For terminals."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def _changed(folder: Path) -> float:
    names = ("metrics.jsonl", "config.yaml")
    return max(os.stat(folder / name).st_mtime for name in names if (folder / name).exists())
