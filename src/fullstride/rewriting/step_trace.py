"""Every operation of one real training step, who computed it, and its time: why is this model not faster?

    print(trace(model, lambda: train_step(batch)))

The step runs three times: to warm up, to be timed as it is, and under torch's profiler, which knows the operations of
torch and, by the marks of trace_marks.py, modules and kernels. Bits are those of an ordinary step; it takes longer.
"""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import profile

from .trace_marks import THE_MODEL, Mark, mark_of, marks

NOBODY = "-"
_OURS = "our kernel"
_EVALUATE = "autograd::engine::evaluate_function: "
_MOST_LINES = 40


@dataclass(frozen=True)
class Row:
    phase: str  # forward, backward, optimizer; other is what a step does outside of them: the loss, the batch
    module: str  # path in the model, of the forward operation in backward; a class in brackets if it is not in there
    operation: str  # of torch as it was called, or a kernel of ours
    who: str
    mechanism: str  # that sent it to us, or NOBODY
    calls: int
    milliseconds: float  # without those of our kernels that it called


@dataclass(frozen=True)
class Trace:
    rows: list[Row]  # the longest first
    step_milliseconds: float  # of a step that nobody looked at
    traced_milliseconds: float

    def total(self, chosen: Callable[[Row], bool] = lambda row: True) -> float:
        """Milliseconds of the rows that are chosen."""
        return sum(row.milliseconds for row in self.rows if chosen(row))

    def __str__(self) -> str:
        """A table of at most 40 rows, in which layers that differ in their number alone are one, and its sums."""
        rows = _merged(replace(row, module=re.sub(r"\b\d+\b", "*", row.module)) for row in self.rows)
        total = self.total() or 1.0
        lines = _table(rows[:_MOST_LINES], total)
        if len(rows) > _MOST_LINES:
            rest = sum(row.milliseconds for row in rows[_MOST_LINES:])
            lines.append(f"... and {rest:.2f} ms in {len(rows) - _MOST_LINES} more rows")
        ours = self.total(lambda row: row.who.startswith(_OURS))
        nobodys = self.total(lambda row: row.mechanism == NOBODY)
        lines.append(
            f"{sum(row.calls for row in self.rows)} operations, {self.total():.1f} ms; {100 * ours / total:.0f} % by"
            f" our kernels, {100 * nobodys / total:.0f} % caught by nobody; the step takes"
            f" {self.step_milliseconds:.1f} ms, traced {self.traced_milliseconds:.1f} ms"
        )
        return "\n".join(lines)


def _table(rows: list[Row], total: float) -> list[str]:
    lines = [("ms", "%", "calls", "phase", "module", "operation", "computed by", "caught by")]
    for row in rows:
        numbers = f"{row.milliseconds:.2f}", f"{100 * row.milliseconds / total:.1f}", str(row.calls)
        lines.append((*numbers, row.phase, row.module, row.operation, row.who, row.mechanism))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    pattern = "  ".join(f"{{:{'>' if i < 3 else '<'}{width}}}" for i, width in enumerate(widths))
    return [pattern.format(*line).rstrip() for line in lines]


def trace(model: nn.Module, step: Callable[[], Any]) -> Trace:
    """The account of a step: forward, loss, backward and optimizer step of this model.

    step() is called three times: the first warms up, the second is timed as it is, the third is looked at. That one
    takes longer than the second, and the shorter an operation, the more of its time is the looking.
    """
    inner = getattr(model, "_orig_mod", model)
    step()
    untraced = _milliseconds(step)
    threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)  # weight gradients may have their own
    with marks(inner), profile(use_kineto=True, use_cpu=True, experimental_config=threads) as recorded:
        traced = _milliseconds(step)
    reader = _Reader()
    for event in recorded.function_events or ():
        if event.cpu_parent is None:
            reader.read(event, _Context())
    return Trace(_merged(reader.rows), untraced, traced)


def _milliseconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - start)


def _merged(rows: Iterable[Row]) -> list[Row]:
    """One row for all that differ in calls and time alone, the longest first."""
    sums: dict[Row, list[float]] = defaultdict(lambda: [0, 0.0])
    for row in rows:
        total = sums[replace(row, calls=0, milliseconds=0.0)]
        total[0] += row.calls
        total[1] += row.milliseconds
    merged = [replace(row, calls=int(calls), milliseconds=ms) for row, (calls, ms) in sums.items()]
    return sorted(merged, key=lambda row: -row.milliseconds)


@dataclass(frozen=True)
class _Context:
    """What runs around an operation."""

    phase: str = "other"
    module: str = ""
    mechanism: str = NOBODY
    is_ours: bool = False  # inside of an autograd Function of this package, or of its optimizer

    def caught_by(self) -> str:
        if self.mechanism == "fusion" and not self.is_ours:
            return NOBODY  # a fused method runs the rest of its code as it is
        return "direct call" if self.mechanism == NOBODY and self.is_ours else self.mechanism


class _Reader:
    """Rows from the tree of the profiler's events, which are read in the order in which they began."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.origins: dict[tuple[int, int], _Context] = {}  # of autograd's nodes, by thread and number
        self.functions = {kind.__name__ for kind in _subclasses(torch.autograd.Function) if _is_ours(kind)}

    def read(self, event: Any, context: _Context, inside: bool = False) -> float:
        """Adds rows, and returns the time that kernels took. inside: of an operation that has its row already."""
        mark, name = mark_of(event.name), event.name
        if mark is not None and mark.kind == "kernel":
            self._add(event, replace(context, is_ours=True), mark.name, f"{_OURS} ({mark.detail})", 0.0)
            return float(event.cpu_time_total)
        context = self._context(event, mark, context)
        is_operation = mark is None and "::" in name and not name.startswith(_EVALUATE)
        kernels = sum(self.read(child, context, inside or is_operation) for child in event.cpu_children)
        if is_operation and not inside:
            library = "oneDNN via torch" if any("mkldnn" in e.name for e in _tree(event)) else "torch"
            self._add(event, context, name, library, kernels)
        return kernels

    def _add(self, event: Any, context: _Context, name: str, who: str, kernels: float) -> None:
        time = (event.cpu_time_total - kernels) / 1000
        self.rows.append(Row(context.phase, context.module, name, who, context.caught_by(), 1, time))

    def _context(self, event: Any, mark: Mark | None, context: _Context) -> _Context:
        """That of what the event calls."""
        name = event.name
        if name.startswith(_EVALUATE):
            origin = self.origins.get((event.thread, event.sequence_nr), _Context())
            is_ours = name.removeprefix(_EVALUATE).removesuffix("Backward") in self.functions
            context = replace(origin, phase="backward", is_ours=is_ours)
            tied = is_ours and any(e.name == str(Mark("mechanism", "tied_gradients")) for e in _tree(event))
            return replace(context, mechanism="tied_gradients") if tied else context
        if mark is not None and mark.kind == "module":
            is_of_model = not mark.name.startswith("(") or mark.name == THE_MODEL
            phase = "forward" if is_of_model and context.phase == "other" else context.phase
            context = _Context(phase, mark.name, mark.detail)
        elif mark is not None:
            context = replace(context, mechanism=mark.name)
        elif name.startswith("Optimizer.step#"):
            inner = [mark_of(e.name) for e in _tree(event)]
            is_ours = any(m is not None and m.kind == "kernel" for m in inner)
            context = _Context("optimizer", "", "optimizer" if is_ours else NOBODY, is_ours)
        elif name in self.functions:
            context = replace(context, is_ours=True)
        if event.sequence_nr >= 0:  # the last operation before a node was made is the one that made it
            self.origins[event.thread, event.sequence_nr] = context
        return context


def _tree(event: Any) -> Iterator[Any]:
    yield event
    for child in event.cpu_children:
        yield from _tree(child)


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]
