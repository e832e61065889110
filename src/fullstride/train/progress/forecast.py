"""How long a run still takes.

The time left is what the steps, evaluations and checkpoints to come will take if they go on like the ones before:

    left = steps left * (median seconds of a recent step + seconds of an evaluation / steps between two + the same of
           checkpoints)

The first row, in which memory is first touched and data first read, counts only as long as it is the only one.
"""

from collections import deque
from statistics import median
from time import monotonic
from typing import Any

_NUM_RECENT = 20  # rows


class Forecast:
    """Seconds left, from rows."""

    def __init__(self, total: int, start: int) -> None:
        self.evaluations, self._checkpoints = _Periodic(start), _Periodic(start)
        self._total = total
        self._last = (start, 0.0, 0.0)  # step, seconds of the attempt, and when that was on our own clock
        self._first: float | None = None  # seconds a step of the first row
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)

    def add(self, row: dict[str, Any]) -> None:
        step, seconds, parts = row["step"], row.get("seconds") or 0.0, row.get("time") or {}
        num_steps = step - self._last[0]
        passed = sum(parts[name] for name in parts if name != "wall") if parts else seconds - self._last[1]
        self._last = (step, seconds, monotonic())
        if num_steps <= 0:
            return
        if parts.get("checkpoint"):
            self._checkpoints.add(step, parts["checkpoint"])
        a_step = (passed - parts.get("evaluate", 0.0) - parts.get("checkpoint", 0.0)) / num_steps
        if self._first is None:
            self._first = a_step
        else:
            self._recent.append(a_step)

    def seconds_left(self, step: int) -> float | None:
        """None before the first row. Counts down between rows."""
        if self._first is None:
            return None
        a_step = median(self._recent) if self._recent else self._first
        a_step += self.evaluations.a_step() + self._checkpoints.a_step()
        counted_down = (self._total - self._last[0]) * a_step - (monotonic() - self._last[2])
        return max(0.0, min(counted_down, (self._total - step) * a_step))


class _Periodic:
    """Seconds a step of something that happens every so many steps, from its first time to its last."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._first: tuple[int, float] | None = None  # step, seconds
        self._last, self._later = start, 0.0  # step of the last, seconds of all but the first

    def add(self, step: int, seconds: float) -> None:
        if self._first is None:
            self._first = (step, seconds)
        else:
            self._later += seconds
        self._last = step

    def a_step(self) -> float:
        if self._first is None:
            return 0.0
        step, seconds = self._first
        if self._last > step:
            return self._later / (self._last - step)
        return seconds / (step - self._start) if step > self._start else 0.0
