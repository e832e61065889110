"""The rows of one kind as a CSV table, made from the lines of JSON."""

import csv
import io
from pathlib import Path
from typing import Any

from .. import durable
from .rows import Appender, read_rows

_NOT_IN_TABLES = ("kind", "grad_norms", "weight_norms", "cores", "ranks")


class Table:
    """The CSV of one kind of row."""

    def __init__(self, path: Path, source: Path, kind: str) -> None:
        self._path, self._source, self._kind = path, source, kind
        self._columns: list[str] = []
        self._lines: Appender | None = None

    def add(self, row: dict[str, Any]) -> None:
        flat = _flat(row)
        if self._lines is None or not flat.keys() <= set(self._columns):
            self._write_anew()  # the row is in the source already
        else:
            self._lines.append(_csv_line([flat.get(name) for name in self._columns]))

    def _write_anew(self) -> None:
        self.close()
        rows = [_flat(row) for row in read_rows(self._source) if row["kind"] == self._kind]
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        lines: list[list[Any]] = [self._columns, *([row.get(name) for name in self._columns] for row in rows)]
        durable.replace(self._path, "".join(_csv_line(line) + "\n" for line in lines).encode(), alone=True)
        self._lines = Appender(self._path)

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
