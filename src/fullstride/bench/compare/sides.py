"""The sides of `fullstride compare`. Each has to answer in time: stock PyTorch's that dies or hangs is left behind.

What is known decides what is in time: before the first step of a side the operations of a step, then how long its last
ones took. Without ours there is nothing to compare, so its failure is that of the command.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

from ..step.cases import Case
from ..step.process import Side, SideFailed
from ..step.table import finite

STANDING = 900.0  # seconds until a model stands: prepare() may have to try and to race every product first
LEAST = 60.0  # seconds for an answer
MOST_BYTES = 64 << 20  # of data in a turn: it lies in the memory of each side
TIMES = 20.0  # as long as the longest of its last steps
_COMPILING = 900.0  # seconds more for torch.compile, which begins anew when layers freeze or shapes change
_SLOWEST = 1.0  # GFLOP/s, at least, in the first steps
_UNCOUNTED = 3600.0  # seconds for first steps whose operations nobody could count


class Sides:
    """`running` is who is still there; `failed` says why the others are not."""

    def __init__(self, case: Case, stack: contextlib.ExitStack, failed: dict[str, str]) -> None:
        self.running: list[Side] = []
        self.failed = failed
        self._case, self._stack = case, stack
        self._longest: dict[str, float] = {}  # seconds of a step in the last turn

    def start(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """wanted: name -> settings. Those that failed before are not asked again."""
        for name, settings in wanted.items():
            if name in self.failed:
                continue
            try:
                side = Side(name, self._case.config(**settings), limit=STANDING)
            except SideFailed as error:
                self._mourn(name, error, "")
                continue
            self._stack.callback(side.close)
            self.running.append(side)

    def turn(self, num_steps: int) -> dict[str, dict[str, Any]]:
        """One round: each side takes so many steps while the others rest. Answers by name, plain JSON."""
        answers = {}
        for side in list(self.running):
            try:
                answer = side.run(num_steps, limit=self._limit(side, num_steps))
            except SideFailed as error:
                side.close()  # it may still compute
                self.running.remove(side)
                self._mourn(side.name, error, f" (after {len(side.losses)} steps)")
                continue
            side.rest()
            self._longest[side.name] = max(answer["seconds"])
            answers[side.name] = _kept(answer)
        return answers

    def _limit(self, side: Side, num_steps: int) -> float:
        more = _COMPILING if side.config.get("compile") else 0.0
        if side.name in self._longest:
            return more + max(LEAST, TIMES * num_steps * self._longest[side.name])
        return more + first_limit(side, num_steps)

    def _mourn(self, name: str, error: SideFailed, when: str) -> None:
        if name.startswith("fullstride"):
            raise error
        self.failed[name] = str(error).removeprefix(f"{name}: ") + when


def first_limit(side: Side, num_steps: int) -> float:
    """Seconds for steps of which nothing is known but their operations."""
    gflop = side.facts["gflop"]
    return _UNCOUNTED if gflop is None else max(LEAST, num_steps * gflop / _SLOWEST)


def _kept(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "seconds": answer["seconds"], "losses": [finite(loss) for loss in answer["losses"]],
        "peak_bytes": answer["peaks"][-1], "faults": answer["faults"], "frozen": answer["frozen"],
    }  # fmt: skip
