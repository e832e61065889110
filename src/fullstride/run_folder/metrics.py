"""What was measured, a row at a time.

    metrics.jsonl     every row in full, one JSON object a line, only ever appended to
    metrics.csv       rows of kind "train" as a table: `time.data` is row["time"]["data"]
    evaluations.csv   rows of kind "eval" as a table
    tensorboard/      event files, if asked for

Evaluations have a table of their own because they have columns of their own, which nobody knows before the first one,
and because a plot of `loss` should need no filter. Gradient norms by layer are in the JSON (and TensorBoard) only: a
table with a column a layer is one that nobody reads. The tables are made from the JSON: with the first row of an
attempt and with each that brings a new column they are written anew, else a line is added.

NaN and infinity are not JSON; they are written as the strings "NaN", "Infinity" and "-Infinity", and read() gives the
numbers back. null means unknown. A run that was resumed has rows of several attempts, and steps after the last
checkpoint come again in the next attempt; the files keep all of them, read() the last.
"""

import csv
import io
import json
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from .. import durable
from .folder import RunFolder

logger = logging.getLogger(__name__)

Kind = Literal["train", "eval", "event"]
FILE = "metrics.jsonl"
TABLES: dict[str, str] = {"train": "metrics.csv", "eval": "evaluations.csv"}
_NOT_IN_TABLES = ("kind", "grad_norms")
_LONGEST_ROW = 1 << 20  # bytes
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Metrics:
    """Appends rows to the files of a run. A killed process loses none: each is with the system when write() returns."""

    def __init__(self, folder: RunFolder, attempt: int, tensorboard: bool = False) -> None:
        self._attempt = attempt
        self._board = _Board(folder.path / "tensorboard") if tensorboard else None
        path = folder.path / FILE
        _heal(path)
        self._lines = _Appender(path)
        self._tables = {kind: _Table(folder.path / name, path, kind) for kind, name in TABLES.items()}

    def write(self, kind: Kind, row: dict[str, Any]) -> None:
        """The row needs a "step"; its values are numbers, texts, None, and dictionaries of them."""
        line = _as_json({"kind": kind, "attempt": self._attempt, "step": row["step"]} | row)
        self._lines.append(line)
        full = _with_nan(json.loads(line))  # plain numbers, whatever came
        if kind in self._tables:
            self._tables[kind].add(full)
        if self._board is not None:
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
    for number, row in enumerate(_rows(path / FILE if path.is_dir() else path)):
        key = (row["kind"], row["step"]) if row["kind"] != "event" else number
        rows[key] = row
    return sorted(rows.values(), key=lambda row: row["step"])


def last_attempt(path: Path) -> int:
    """The number of the attempt that last wrote a row in this run folder, 0 if none did."""
    return max((row["attempt"] for row in _rows(Path(path) / FILE)), default=0)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows as they were written, without lines that are none (zeros after a power cut, say): those get a warning."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row = _from_json(line)
            if row is not None:
                yield row
            elif line.endswith(b"\n"):  # else it is being written right now
                logger.warning("%s: line %d is not a row and was passed over", path, number)


def _as_json(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, allow_nan=False, default=_plain)
    except ValueError:  # rare, so that the usual row is not walked through in Python
        return json.dumps(_without_nan(row), allow_nan=False, default=_plain)


def _from_json(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not {"kind", "attempt", "step"} <= row.keys() or not isinstance(row["step"], int):
        return None
    found: dict[str, Any] = _with_nan(row)
    return found


def _plain(value: Any) -> Any:
    """Of numpy and torch scalars their numbers."""
    if hasattr(value, "item"):
        return _without_nan(value.item())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a row of metrics holds numbers, texts, None and dictionaries of them, not {type(value).__name__}")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _with_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_nan(inner) for inner in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


class _Appender:
    """Whole lines at the end of a file, without a buffer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def append(self, line: str) -> None:
        data = line.encode() + b"\n"
        size = os.fstat(self._file.fileno()).st_size
        with durable.naming(self._path):
            try:
                written = 0
                while written < len(data):  # a full disk takes what fits, and refuses the rest
                    written += self._file.write(data[written:]) or 0
            except OSError:
                os.ftruncate(self._file.fileno(), size)
                raise

    def close(self) -> None:
        self._file.close()


class _Table:
    """The CSV of one kind of row."""

    def __init__(self, path: Path, source: Path, kind: str) -> None:
        self._path, self._source, self._kind = path, source, kind
        self._columns: list[str] = []
        self._lines: _Appender | None = None

    def add(self, row: dict[str, Any]) -> None:
        flat = _flat(row)
        if self._lines is None or not flat.keys() <= set(self._columns):
            self._write_anew()  # the row is in the source already
        else:
            self._lines.append(_csv_line([flat.get(name) for name in self._columns]))

    def _write_anew(self) -> None:
        self.close()
        rows = [_flat(row) for row in _rows(self._source) if row["kind"] == self._kind]
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        partial = self._path.with_name(self._path.name + ".partial")
        try:
            with durable.naming(self._path), partial.open("w", encoding="utf-8") as file:
                file.write(_csv_line(self._columns) + "\n")
                file.writelines(_csv_line([row.get(name) for name in self._columns]) + "\n" for row in rows)
            partial.replace(self._path)
        finally:
            partial.unlink(missing_ok=True)
        self._lines = _Appender(self._path)

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {} if name in _NOT_IN_TABLES else _flat(value, f"{prefix}{name}.")
        elif name not in _NOT_IN_TABLES:
            flat[prefix + name] = value
    return flat


def _csv_line(values: list[Any]) -> str:
    """Empty: unknown. Line ends within a text would tear the line."""
    line = io.StringIO()
    one_line = [" ".join(value.splitlines()) if isinstance(value, str) else value for value in values]
    csv.writer(line, lineterminator="").writerow(one_line)
    return line.getvalue()


def _heal(path: Path) -> None:
    """Takes off what a killed process or a power cut left of a last line, so that the next row gets its own."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        start = max(0, file.seek(0, os.SEEK_END) - _LONGEST_ROW)
        file.seek(start)
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end == len(content):
            return
        if _from_json(content[end:]) is not None:
            file.write(b"\n")  # only the line end was missing
            return
        file.truncate(start + end)
        logger.warning("%s ended in half a row, which was taken off", path)


class _Board:
    """TensorBoard's event files. Their writer starts with the first row, which says what of older attempts it hides."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise ValueError(
                "logging to TensorBoard needs its package: pip install 'fullstride[tensorboard]'"
            ) from None
        self._folder, self._make = folder, SummaryWriter
        self._writer: SummaryWriter | None = None

    def add(self, kind: str, row: dict[str, Any]) -> None:
        if kind not in TABLES:
            return
        step = row["step"]
        if self._writer is None:
            self._writer = self._make(str(self._folder), purge_step=step, flush_secs=10)
        for name, value in row.items():
            pairs = value if isinstance(value, dict) else {name: value}
            group = name if isinstance(value, dict) else kind
            for label, number in pairs.items():
                if isinstance(number, int | float) and label not in ("step", "attempt"):
                    self._writer.add_scalar(f"{group}/{label}", number, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
