"""The slope of the loss in each quarter of the run, and whether it is more than noise.

    slope    of the least-squares line through the logged losses, with its standard error s
    course   falling or rising if |slope| > t s, t being Student's for 99 %, and if the line moves by more than
             _LEAST_CHANGE of the mean loss; else flat

Noise is what a curve of the third degree (of fewer than 12 rows, of a lower one) leaves, as a bend is none. Where it
follows its neighbours (an epoch's easy and hard batches) it says less than as much that does not: s is multiplied by
sqrt((1 + r) / (1 - r)), r being the correlation from one row to the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from . import words
from .run import Floats, Row, Run, number, series
from .section import Table

_LEAST_CHANGE = 0.005
_LEAST_POINTS = 4
_MOST_CORRELATION = 0.95
_DEGREES = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 1000)
_STUDENT = (63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.355, 3.169, 2.947, 2.845, 2.750, 2.660, 2.581)
_NAMES = ("first", "second", "third", "last")

Course = Literal["falling", "rising", "flat", "unknown"]


@dataclass(frozen=True)
class Slope:
    """Of the losses after step `first` up to step `last`; begin and end are the line's."""

    first: int
    last: int
    begin: float | None = None
    end: float | None = None
    per_step: float | None = None
    course: Course = "unknown"

    @property
    def change(self) -> float:
        """As a share of where it began."""
        return (self.end - self.begin) / abs(self.begin) if self.begin and self.end is not None else 0.0


def fit(steps: Floats, losses: Floats, first: int, last: int) -> Slope:
    """Of the points after `first` up to `last`; of two points without a verdict, of one nothing."""
    inside = (steps > first) & (steps <= last) & np.isfinite(losses)
    x, y = steps[inside], losses[inside]
    if len(x) < 2:
        return Slope(first, last)
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    begin, end = (float(y.mean() + slope * (at - x.mean())) for at in (x[0], x[-1]))
    if len(x) < _LEAST_POINTS:
        return Slope(first, last, begin, end, slope)
    degree = min(3, len(x) // 4)
    bent = np.polynomial.Polynomial.fit(x, y, degree)
    rest = y - bent(x)
    squares = float(rest @ rest)
    error = np.sqrt(squares / (len(x) - degree - 1) / spread)
    correlation = float(np.clip(rest[1:] @ rest[:-1] / squares, 0.0, _MOST_CORRELATION)) if squares > 0 else 0.0
    error *= np.sqrt((1 + correlation) / (1 - correlation))
    is_real = abs(slope) > float(np.interp(len(x) - degree - 1, _DEGREES, _STUDENT)) * error
    is_large = abs(end - begin) > _LEAST_CHANGE * abs(float(y.mean()))
    course: Course = "flat" if not (is_real and is_large) else "falling" if slope < 0 else "rising"
    return Slope(first, last, begin, end, slope, course)


def by_quarter(run: Run, rows: Sequence[Row]) -> list[Slope]:
    """Quarters of the steps that were done. `rows`: those of training, or the evaluations."""
    places, losses = _points(rows)
    edges = [round(i * run.steps / 4) for i in range(5)]
    return [fit(places, losses, edges[i], edges[i + 1]) for i in range(4)]


def sentences(run: Run) -> str:
    """What the last quarter says about going on. Nothing if too little is known."""
    trained = by_quarter(run, run.train)
    validated, where = _last_of_evaluations(run)
    parts = [] if trained[3].course == "unknown" else [_told("training", trained[3], _where(trained))]
    if validated.course != "unknown":
        parts.append(_told("validation", validated, where))
    if not parts:
        return ""
    return " ".join([*parts, _advice(trained[3].course, validated.course)])


def tables(run: Run) -> list[Table]:
    """Of training and of the evaluations, where there are enough rows in a quarter for a verdict."""
    epoch = _steps_of_an_epoch(run)
    columns = ("up to step", "loss", "in 1,000 steps", *(("an epoch",) if epoch else ()), "course")
    found = []
    for name, rows in (("training", run.train), ("validation", run.evals)):
        slopes = by_quarter(run, rows)
        cells = []
        for slope in slopes:
            by = [_signed(slope.per_step, steps) for steps in (1000.0, epoch) if steps]
            cells.append((f"{slope.last:,}", _ends(slope), *by, _course(slope)))
        if any(slope.course != "unknown" for slope in slopes):
            caption = f"The {name} loss by quarter of the run: the line that fits it best, and its slope."
            found.append(Table(caption, columns, cells))
    return found


def _points(rows: Sequence[Row]) -> tuple[Floats, Floats]:
    return np.array([row["step"] for row in rows], np.float64), series(rows, "loss")


def _last_of_evaluations(run: Run) -> tuple[Slope, str]:
    """Of the last quarter; where it has too few of them, of the last half."""
    slopes = by_quarter(run, run.evals)
    if slopes[3].course != "unknown":
        return slopes[3], _where(slopes)
    return fit(*_points(run.evals), round(run.steps / 2), run.steps), "in the last half of the run"


def _where(slopes: Sequence[Slope]) -> str:
    """A loss that is flat has been so since a quarter."""
    begin = 3
    while slopes[3].course == "flat" and begin > 0 and slopes[begin - 1].course == "flat":
        begin -= 1
    if begin == 0:
        return "throughout"
    return "in the last quarter" if begin == 3 else f"since the {_NAMES[begin]} quarter"


def _told(name: str, slope: Slope, where: str) -> str:
    if slope.course == "flat":
        least = words.percent(_LEAST_CHANGE)
        return f"The {name} loss was flat {where}: what it moved by is within its noise, or below {least}."
    word = "was still falling" if slope.course == "falling" else "was rising"
    return f"The {name} loss {word} {where}, by {words.percent(abs(slope.change))}."


def _advice(training: Course, validation: Course) -> str:
    if validation == "rising":
        return "More steps make the validation loss worse: stop earlier, or regularise more."
    if training == "rising":
        return "That is no way to go on: try a lower learning rate."
    decisive = training if validation == "unknown" else validation
    if decisive == "falling":
        return "Longer training would help."
    return "Longer training of the same kind would gain little."


def _steps_of_an_epoch(run: Run) -> float | None:
    for row in reversed(run.train):
        if (epochs := number(row, "epoch")) and row["step"] > 0:
            return float(row["step"] / epochs)
    return None


def _ends(slope: Slope) -> str:
    if slope.begin is None or slope.end is None:
        return "-"
    return f"{words.significant(slope.begin)} to {words.significant(slope.end)}"


def _signed(per_step: float | None, steps: float) -> str:
    if per_step is None:
        return "-"
    value = per_step * steps
    return ("+" if value > 0 else "") + words.significant(value)


def _course(slope: Slope) -> str:
    return "too few rows" if slope.course == "unknown" else slope.course
