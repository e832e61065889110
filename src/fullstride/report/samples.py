"""The section with what the model wrote in the course of training: an event row "sample" after each evaluation."""

import re

from . import words
from .run import Run, number
from .section import Section, Table

EVENT = "sample"
_MOST_SHOWN = 5
_MOST_CHARACTERS = 1000
_COLUMNS = ("step", "validation loss", "text")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a browser has no picture of them


def section(run: Run) -> Section | None:
    """The first, the last and some between; all of them behind a fold."""
    losses = {row["step"]: number(row, "loss") for row in run.evals}
    texts = {row["step"]: str(row.get("text", "")) for row in run.events if row.get("event") == EVENT}
    if not texts:
        return None
    rows = []
    for step in sorted(texts):
        loss = losses.get(step)
        rows.append((words.count(step), "-" if loss is None else f"{loss:.3f}", _CONTROLS.sub("\ufffd", texts[step])))
    shown = [(step, loss, _cut(text)) for step, loss, text in _spread(rows)]
    caption = "What the model wrote, by the step after which it did."
    tables = [Table(caption, _COLUMNS, shown, len(_COLUMNS), keeps_lines=True)]
    if shown != rows:
        fold = f"All {len(rows)} samples" if len(rows) > 1 else "The whole sample"
        tables.append(Table("Everything it wrote.", _COLUMNS, rows, len(_COLUMNS), keeps_lines=True, fold=fold))
    return Section("Samples", "Text that the model wrote after each evaluation, always from the same seed.", [], tables)


def _spread(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """So many of them, evenly, the first and the last among them."""
    if len(rows) <= _MOST_SHOWN:
        return rows
    return [rows[round(i * (len(rows) - 1) / (_MOST_SHOWN - 1))] for i in range(_MOST_SHOWN)]


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + " ..."
