"""What is told of a run's frozen layers: a line and an event when some freeze or thaw, and their part of each row."""

import logging
from typing import Any

from ...optim import DynamicFreezer, FreezeReport

logger = logging.getLogger(__name__)


class FrozenLayers:
    def __init__(self, freezer: DynamicFreezer | None) -> None:
        self._freezer = freezer
        self._num_frozen, self._saved_steps = 0, 0.0
        if freezer is not None:
            report = freezer.report()
            self._num_frozen, self._saved_steps = report.num_frozen, report.saved_compute * report.steps

    def change(self, step: int) -> dict[str, Any] | None:
        """The event, if the freezer froze or thawed something in this step."""
        if self._freezer is None or self._freezer.num_frozen == self._num_frozen:
            return None
        report, before = self._freezer.report(), self._num_frozen
        self._num_frozen = now = report.num_frozen
        stages = report.stages[min(before, now) : max(before, now)]
        event, word = ("freeze", "froze") if now > before else ("thaw", "thawed")
        logger.info(
            "step %d: %s %s; %d of %d layers frozen, %.1f%% of the compute saved so far",
            step, word, ", ".join(stages), now, report.num_layers, 100 * report.saved_compute,
        )  # fmt: skip
        return {"step": step, "event": event, "layers": stages, "stages": report.stages, **_shares(report)}

    def row(self) -> dict[str, Any]:
        """Columns of a row of metrics; none without a freezer."""
        return {} if self._freezer is None else _shares(self._freezer.report())

    def work(self, num_steps: float) -> float:
        """The share of the products of the last so many steps that was really computed."""
        if self._freezer is None or not num_steps:
            return 1.0
        report = self._freezer.report()
        before, self._saved_steps = self._saved_steps, report.saved_compute * report.steps
        return 1.0 - (self._saved_steps - before) / num_steps


def _shares(report: FreezeReport) -> dict[str, Any]:
    return {
        "frozen": report.num_frozen,
        "num_layers": report.num_layers,
        "saved_compute": report.saved_compute,
        "saved_updates": report.saved,
    }
