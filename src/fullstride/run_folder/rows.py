"""Rows as lines of JSON: written whole, read back as they were, half a line taken off.

NaN and infinity are not JSON; they are the strings "NaN", "Infinity" and "-Infinity", and read back as numbers.
"""

import json
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import durable

logger = logging.getLogger(__name__)

_LONGEST_ROW = 1 << 20  # bytes
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows as they were written, without lines that are none (zeros after a power cut, say): those get a warning."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row = from_json(line)
            if row is not None:
                yield row
            elif line.endswith(b"\n"):  # else it is being written right now
                logger.warning("%s: line %d is not a row and was passed over", path, number)


def as_json(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, allow_nan=False, default=_plain)
    except ValueError:  # rare, so that the usual row is not walked through in Python
        return json.dumps(_without_nan(row), allow_nan=False, default=_plain)


def from_json(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not {"kind", "attempt", "step"} <= row.keys() or not isinstance(row["step"], int):
        return None
    found: dict[str, Any] = with_nan(row)
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


def with_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: with_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_nan(inner) for inner in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def heal(path: Path) -> None:
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
        if from_json(content[end:]) is not None:
            file.write(b"\n")  # only the line end was missing
            return
        file.truncate(start + end)
        logger.warning("%s ended in half a row, which was taken off", path)


class Appender:
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
