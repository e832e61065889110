"""A run folder, read for the report: whatever is there of it, complete or not."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..run_folder import metrics
from ..run_folder.folder import RunFolder

logger = logging.getLogger(__name__)
Row = dict[str, Any]
Floats = NDArray[np.float64]
BREAKS = ("interrupted", "failed")  # events


@dataclass
class Run:
    """Rows of each kind by step, and what follows from them. All times are in seconds."""

    config: dict[str, Any] = field(default_factory=dict)
    config_yaml: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    compare: dict[str, Any] | None = None  # compare.json
    memory: dict[str, Any] | None = None  # memory.json
    train: list[Row] = field(default_factory=list)
    evals: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)

    @property
    def recipe(self) -> str:
        return str(self.config.get("recipe") or "unknown recipe")

    @property
    def unit(self) -> str:
        return str(self.machine.get("unit") or "samples")

    @property
    def steps(self) -> int:
        """Steps done, as far as logged."""
        return max((row["step"] for row in self.train + self.evals + self.events), default=0)

    @property
    def planned_steps(self) -> int | None:
        steps = number(self.config, "steps") or number(self.machine, "steps")
        return None if steps is None else int(steps)

    @property
    def end(self) -> Row | None:
        """The event that says that the run is over, if it is."""
        return self.last_mark if self.last_mark is not None and self.last_mark["event"] == "end" else None

    @property
    def broken_off(self) -> Row | None:
        """The event that says why the last process ended before its time, if it could still say so."""
        return self.last_mark if self.last_mark is not None and self.last_mark["event"] in BREAKS else None

    @cached_property
    def last_mark(self) -> Row | None:
        """Of the last process: it ended, was broken off, or, if it has only started, runs or was killed."""
        marks = [row for row in self.events if row.get("event") in ("start", "end", *BREAKS)]
        return max(enumerate(marks), key=lambda mark: (mark[1]["attempt"], mark[0]))[1] if marks else None

    @property
    def seconds(self) -> float:
        """Of training, through all attempts; what an attempt did and the next one did again counts once."""
        known = self.times[np.isfinite(self.times)]
        total = float(known[-1]) if len(known) else 0.0
        if self.end is not None:  # some of it came after the last row
            last = (number(self.train[-1], "seconds") or 0.0) if self.train else 0.0
            total += max(0.0, (number(self.end, "seconds") or 0.0) - last)
        return total

    @cached_property
    def times(self) -> Floats:
        """Seconds of training at each train row."""
        return cumulative(series(self.train, "seconds"), self._attempts)

    def time_of(self, steps: Sequence[int]) -> Floats:
        """Seconds of training after so many steps."""
        known = [(row["step"], time) for row, time in zip(self.train, self.times, strict=True) if math.isfinite(time)]
        return np.interp(steps, [0, *(step for step, _ in known)], [0.0, *(time for _, time in known)])

    @cached_property
    def resumes(self) -> list[int]:
        """Steps after which a new process went on."""
        if self.starts:
            return [step for _, step in self.starts[1:]]
        pairs = zip(self.train, self.train[1:], strict=False)
        return [before["step"] for before, after in pairs if before["attempt"] != after["attempt"]]

    @cached_property
    def covered(self) -> list[int]:
        """Steps that each train row stands for: those since the last one, or since its attempt began.

        The time of steps between an attempt's last row and its last checkpoint was never written down.
        """
        began, before = dict(self.starts), [0, *(row["step"] for row in self.train)]
        return [
            row["step"] - max(last, began.get(row["attempt"], 0)) for last, row in zip(before, self.train, strict=False)
        ]

    def was_done_anew(self, row: Row) -> bool:
        """By a later attempt, which began before that step."""
        return any(attempt > row["attempt"] and row["step"] > step for attempt, step in self.starts)

    @cached_property
    def starts(self) -> list[tuple[int, int]]:
        """(attempt, the step after which it began)."""
        return [(row["attempt"], row["step"]) for row in self.events if row.get("event") == "start"]

    @property
    def hosts(self) -> list[str]:
        """Of the last attempt's processes, by rank; none if it is one process."""
        found = self.machine.get("hosts")
        return [str(host) for host in found] if isinstance(found, list) else []

    @property
    def skipped(self) -> int:
        """Steps whose gradient was not finite."""
        return max((int(number(row, "skipped") or 0) for row in self.train), default=0)

    @cached_property
    def joules(self) -> Floats:
        """Energy up to each train row, through all attempts; NaN where it was not measured."""
        return cumulative(series(self.train, "joules"), self._attempts)

    @property
    def _attempts(self) -> list[int]:
        return [row["attempt"] for row in self.train]

    @property
    def metric(self) -> str:
        """What "best" is judged by."""
        evaluation = self.config.get("evaluation")
        name = evaluation.get("metric") if isinstance(evaluation, Mapping) else None
        return name if isinstance(name, str) else "loss"

    def metrics(self) -> list[str]:
        """What evaluations give besides the loss, the one that "best" is judged by first."""
        names = dict.fromkeys(name for row in self.evals for name in row if number(row, name) is not None)
        return sorted((name for name in names if name not in metrics.NOT_METRICS), key=lambda name: name != self.metric)

    def best(self) -> Row | None:
        """The evaluation that was the best."""
        rows = [row for row in self.evals if row.get("best")]
        return rows[-1] if rows else None


def read(folder: Path) -> Run:
    """ValueError if the folder holds no run; otherwise what can be read of it."""
    config_yaml = RunFolder.read(folder).config_yaml
    rows = [row for row in metrics.read(folder) if isinstance(row["step"], int)]
    return Run(
        _yaml(config_yaml), config_yaml, _json(folder / "machine.json") or {}, _json(folder / "compare.json"),
        _json(folder / "memory.json"),
        *([row for row in rows if row["kind"] == kind] for kind in ("train", "eval", "event")),
    )  # fmt: skip


def number(row: Mapping[str, Any], name: str) -> float | None:
    """The row's finite value of that name, or None."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def series(rows: Sequence[Mapping[str, Any]], name: str) -> Floats:
    """One value a row, NaN where there is none."""
    return np.array([math.nan if (value := number(row, name)) is None else value for row in rows], np.float64)


def cumulative(values: Floats, attempts: Sequence[int]) -> Floats:
    """Of a counter that every process starts at 0 again: what it would be had it gone on."""
    offset, last, total = 0.0, 0.0, []
    for i, value in enumerate(values):
        # Two processes may bear one number, if the first was killed before it saved anything.
        if i and (attempts[i] != attempts[i - 1] or value < last):
            offset, last = offset + last, 0.0
        last = last if math.isnan(value) else value
        total.append(offset + value)
    return np.array(total, np.float64)


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        logger.warning("the report leaves %s out, which is not JSON: %s", path, error)
        return None
    return value if isinstance(value, dict) else None


def _yaml(text: str) -> dict[str, Any]:
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        logger.warning("config.yaml cannot be read: %s", " ".join(str(error).split()))
        return {}
    return value if isinstance(value, dict) else {}
