"""How far a run is: a bar on a terminal, a line a row elsewhere. It knows rows of metrics alone.

     120/1000 ------                                     12%  0:01:10 gone, 0:08:35 left
    loss 2.3103, 103 ms/step, 1,234 samples/s, 0.31 TFLOP/s (62% of peak), data wait 0.2%, 812 MB
    evaluated at step 100: loss 2.3812, accuracy 0.9120 (best)
"""

import contextlib
import logging
import math
import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

from . import terminal
from .forecast import Forecast

if TYPE_CHECKING:
    from rich.console import RenderableType

logger = logging.getLogger(__name__)

_REFRESHES_PER_SECOND = 2  # the bar is drawn in a thread that takes turns with the training's Python


class Progress:
    """`start` is the step that the run goes on from. Rows go to the log in any case, so that log.txt has them."""

    def __init__(self, total: int, start: int = 0, unit: str = "samples", quiet: bool = False) -> None:
        self._step, self._total, self._unit = start, total, unit
        self._forecast = Forecast(total, start)
        self._row: dict[str, Any] = {}
        self._evaluation = ""
        self._begin = monotonic()
        self._stack = contextlib.ExitStack()
        if terminal.has_bar() and not quiet:
            self._draw()

    def step(self, step: int) -> None:
        """A step is done: the bar moves on before the next row. Costs nothing."""
        self._step = step

    def train(self, row: dict[str, Any]) -> None:
        self._step, self._row = row["step"], row
        self._forecast.add(row)
        left = self._forecast.seconds_left(row["step"])
        logger.info("%s", _train_line(row, self._total, self._unit, left), extra=terminal.ROW)

    def evaluated(self, row: dict[str, Any]) -> None:
        self._evaluation = _evaluation(row)
        self._forecast.evaluations.add(row["step"], row.get("seconds") or 0.0)
        logger.info("%s", self._evaluation, extra=terminal.ROW)

    def close(self) -> None:
        """The bar stays on the screen as it is now, and the cursor comes back."""
        self._stack.close()

    def _draw(self) -> None:
        from rich.live import Live

        console = self._stack.enter_context(terminal.draw_on())
        live = Live(
            console=console, get_renderable=self._bar, refresh_per_second=_REFRESHES_PER_SECOND,
            redirect_stdout=sys.stdout.isatty(),  # or what is printed to a file would come here
        )  # fmt: skip
        self._stack.enter_context(live)
        live.refresh()

    def _bar(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        step, total = self._step, self._total
        left = self._forecast.seconds_left(step)
        gone = monotonic() - self._begin
        ahead = f", {_duration(left)} left" if left is not None and step < total else ""
        first = Table.grid(padding=(0, 1), expand=True)
        first.add_column(no_wrap=True)
        first.add_column(ratio=1)
        first.add_column(no_wrap=True, justify="right")
        first.add_row(
            Text(f"{step:>{len(str(total))}}/{total}"),
            ProgressBar(total=max(total, 1), completed=step, complete_style="green", finished_style="green"),
            Text(f"{_percent(step, total)}  {_duration(gone)} gone{ahead}"),
        )
        row, facts = self._row, ["waiting for the first steps"]
        if row:
            facts = [_loss(row), *_speed(row, self._unit), *_frozen(row)]
        lines = [", ".join(facts)] + ([self._evaluation] if self._evaluation else [])
        return Group(first, *(Text(line) for line in lines))  # a narrow terminal breaks them: nothing is lost


def _train_line(row: dict[str, Any], total: int, unit: str, left: float | None) -> str:
    facts = [f"step {row['step']:>{len(str(total))}}/{total}", _loss(row)]
    if row.get("lr") is not None:
        facts.append(f"lr {row['lr']:.3g}")
    facts += _speed(row, unit) + _frozen(row)
    if left is not None and row["step"] < total:
        facts.append(f"{_duration(left)} left")
    return "  ".join(facts)


def _loss(row: dict[str, Any]) -> str:
    skipped = f" ({row['skipped']} skipped)" if row.get("skipped") else ""
    return f"loss {_number(row.get('loss'))}{skipped}"


def _speed(row: dict[str, Any], unit: str) -> list[str]:
    facts = []
    if row.get("step_ms") is not None:
        facts.append(f"{_short(row['step_ms'])} ms/step")
    if row.get("per_second") is not None:
        facts.append(f"{_short(row['per_second'])} {unit}/s")
    if row.get("gflops") is not None:
        share = row.get("share_of_peak")
        of_peak = f" ({100 * share:.{0 if share >= 0.1 else 1}f}% of peak)" if share is not None else ""
        facts.append(f"{row['gflops'] / 1000:.3g} TFLOP/s{of_peak}")
    parts = row.get("time") or {}
    training = sum(seconds for name, seconds in parts.items() if name not in ("wall", "evaluate", "checkpoint"))
    if training > 0:
        facts.append(f"data wait {100 * parts.get('data', 0.0) / training:.1f}%")
    if row.get("resident_mb") is not None:
        facts.append(f"{row['resident_mb']:,.0f} MB")
    return facts


def _frozen(row: dict[str, Any]) -> list[str]:
    if not row.get("frozen") and not row.get("saved_compute"):
        return []
    return [f"{row['frozen']} of {row['num_layers']} layers frozen ({100 * row['saved_compute']:.1f}% saved)"]


def _evaluation(row: dict[str, Any]) -> str:
    hidden = ("kind", "attempt", "step", "seconds", "best")
    values = ", ".join(f"{name} {_number(value)}" for name, value in row.items() if name not in hidden)
    took = f" in {row['seconds']:.1f} s" if row.get("seconds") is not None else ""
    return f"evaluated at step {row['step']}{took}: {values}{' (best)' if row.get('best') else ''}"


def _number(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4f}" if 0.01 <= abs(value) < 1000 else f"{value:.4g}"
    return str(value)


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _percent(step: int, total: int) -> str:
    """Rounded down: 100 % only when all is done."""
    return f"{100 * step // total if total else 100:>3}%"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}d " if days else "") + f"{hours}:{minutes:02}:{rest:02}"
