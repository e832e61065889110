"""Tables of pictures and captions: CSV and TSV with or without a header, and a JSON object a line."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .found import PICTURES, Skipped

SUFFIXES = (".csv", ".tsv", ".jsonl")
FILE = ("file", "file_name", "image", "filename", "path")
CAPTION = ("caption", "text", "title")
LABEL = ("label", "class")
_BROKEN = "line of a table cannot be read"


@dataclass(frozen=True)
class Row:
    where: str  # for errors
    file: str
    caption: object
    split: object
    label: object


def rows(path: Path, name: str, skipped: Skipped) -> Iterator[Row]:
    """`name`: the table's, for errors. ValueError, one line, if it is none of pictures and captions."""
    return _json_rows(path, name, skipped) if path.suffix.lower() == ".jsonl" else _csv_rows(path, name, skipped)


def is_table(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def first_of(values: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((values[key] for key in keys if values.get(key) is not None), None)


def _row(values: dict[str, Any], where: str, skipped: Skipped) -> Row | None:
    file = first_of(values, FILE)
    if not isinstance(file, str) or not file.strip():
        skipped.add(_BROKEN, f"{where}: expected {_any(FILE)}, got none")
        return None
    return Row(where, file.strip(), first_of(values, CAPTION), values.get("split"), first_of(values, LABEL))


def _json_rows(path: Path, name: str, skipped: Skipped) -> Iterator[Row]:
    is_first = True
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{name} line {number}"
            if not line.strip():
                continue
            try:
                values = json.loads(line.decode("utf-8-sig"))
            except UnicodeDecodeError:
                skipped.add("caption is not UTF-8", where)
                continue
            except (ValueError, RecursionError):
                values = None
            if not isinstance(values, dict):
                skipped.add(_BROKEN, f"{where}: expected a JSON object, got {line[:40].decode(errors='replace')!r}")
                continue
            values = {key.lower(): value for key, value in values.items()}
            if is_first and not (any(key in values for key in FILE) and any(key in values for key in CAPTION)):
                raise ValueError(
                    f"{where}: expected an object with {_any(FILE)} and {_any(CAPTION)}, got {_shown(line.decode())}"
                )
            is_first = False
            row = _row(values, where, skipped)
            if row is not None:
                yield row


def _csv_rows(path: Path, name: str, skipped: Skipped) -> Iterator[Row]:
    text = path.read_bytes().decode("utf-8-sig", "surrogateescape")  # what is not UTF-8 is found in its row
    delimiter, columns, has_header = _form(text, name, is_tsv=path.suffix.lower() == ".tsv")
    reader = _reader(text, delimiter)
    if has_header:
        next(reader)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            skipped.add(_BROKEN, f"{name} line {reader.line_num}: {error}")
            continue
        where = f"{name} line {reader.line_num}"
        if len(cells) > len(columns) and columns[-1] in CAPTION:  # commas of a caption that has no quotes around it
            cells[len(columns) - 1 :] = [delimiter.join(cells[len(columns) - 1 :])]
        if any(cells) and len(cells) != len(columns):
            skipped.add(_BROKEN, f"{where}: expected {len(columns)} columns, got {len(cells)}")
        elif any(cells):
            row = _row(dict(zip(columns, cells, strict=True)), where, skipped)
            if row is not None:
                yield row


def _reader(text: str, delimiter: str) -> Any:
    """strict: a quote that is not closed is an error, and not a caption that takes all lines after it."""
    lines = io.StringIO(text, newline="")
    if delimiter == "|":  # as LJSpeech has it
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    return csv.reader(lines, delimiter=delimiter, strict=True)


def _form(text: str, name: str, is_tsv: bool) -> tuple[str, list[str], bool]:
    """(delimiter, names of the columns, whether the first line has them)."""
    first = text.lstrip().partition("\n")[0]
    for delimiter in ("\t",) if is_tsv else (",", "\t", "|", ";"):
        try:
            cells: list[str] = next(_reader(first, delimiter), [])
        except csv.Error:
            continue
        names = [cell.strip().lower() for cell in cells]
        if any(cell in FILE for cell in names) and any(cell in CAPTION for cell in names):
            return delimiter, names, True
        is_file = [cell.endswith(PICTURES) for cell in names]
        if len(names) == 2 and sum(is_file) == 1:
            return delimiter, [FILE[0] if yes else CAPTION[0] for yes in is_file], False
    raise ValueError(
        f"{name}: expected a header with {_any(FILE)} and {_any(CAPTION)}, or two columns, a picture and a caption, "
        f"got {_shown(first)}"
    )


def _shown(line: str) -> str:
    return repr(line.strip()[:60].encode("utf-8", "backslashreplace").decode())


def _any(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
