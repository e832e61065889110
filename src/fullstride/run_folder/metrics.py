"""What was measured, a row at a time.

    metrics.jsonl     every row in full, one JSON object a line, only ever appended to
    metrics.csv       rows of kind "train" as a table: `time.data` is row["time"]["data"]
    evaluations.csv   rows of kind "eval" as a table
    tensorboard/      event files, if asked for

Evaluations have a table of their own because they have columns of their own, which nobody knows before the first one,
and because a plot of `loss` should need no filter. Norms by layer and use by core are in the JSON (and TensorBoard)
only: a table with a column a layer is one that nobody reads. The tables are made from the JSON: with the first row of
an attempt and with each that brings a new column they are written anew, else a line is added.

null means unknown, and rows.py says what becomes of NaN. A run that was resumed has rows of several attempts, and steps
after the last checkpoint come again in the next attempt; the files keep all of them, read() the last.
"""

import json
from pathlib import Path
from typing import Any, Literal

from .folder import RunFolder
from .rows import Appender, as_json, heal, read_rows, with_nan
from .tables import Table
from .tensorboard import Board

Kind = Literal["train", "eval", "event"]
FILE = "metrics.jsonl"
NOT_METRICS = ("loss", "count", "step", "seconds", "kind", "attempt", "best", "epoch", "samples", "time")
"""What the row of an evaluation may hold besides metrics: no metric may be called so, and the report shows none."""
TABLES: dict[str, str] = {"train": "metrics.csv", "eval": "evaluations.csv"}


class Metrics:
    """Appends rows to the files of a run. A killed process loses none: each is with the system when write() returns."""

    def __init__(self, folder: RunFolder, attempt: int, tensorboard: bool = False) -> None:
        self._attempt = attempt
        self._board = Board(folder.path / "tensorboard") if tensorboard else None
        path = folder.path / FILE
        heal(path)
        self._lines = Appender(path)
        self._tables = {kind: Table(folder.path / name, path, kind) for kind, name in TABLES.items()}

    def write(self, kind: Kind, row: dict[str, Any]) -> None:
        """The row needs a "step"; its values are numbers, texts, None, and dictionaries of them."""
        line = as_json({"kind": kind, "attempt": self._attempt, "step": row["step"]} | row)
        self._lines.append(line)
        full = with_nan(json.loads(line))  # plain numbers, whatever came
        if kind in self._tables:
            self._tables[kind].add(full)
        if self._board is not None and kind in TABLES:
            self._board.add(kind, full)

    def close(self) -> None:
        self._lines.close()
        for table in self._tables.values():
            table.close()
        if self._board is not None:
            self._board.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a run folder, or of its metrics.jsonl, by step. Of each train and eval step the last; of events all."""
    path = Path(path)
    rows: dict[Any, dict[str, Any]] = {}
    for number, row in enumerate(read_rows(path / FILE if path.is_dir() else path)):
        key = (row["kind"], row["step"]) if row["kind"] != "event" else number
        rows[key] = row
    return sorted(rows.values(), key=lambda row: row["step"])


def last_attempt(path: Path) -> int:
    """The number of the attempt that last wrote a row in this run folder, 0 if none did."""
    return max((row["attempt"] for row in read_rows(Path(path) / FILE)), default=0)
