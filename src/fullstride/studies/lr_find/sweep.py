"""One range test (Smith, https://arxiv.org/abs/1506.01186): a step at each rate, from the lowest to the highest.

Everything is as in the first steps of a training: the weights, the data in its order, the optimizer, clipping,
precision, accumulation. Only the schedule is another, and nothing is evaluated, saved or frozen.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...data.order import seed_of
from ...optim.schedules import Schedule
from ...preparation import explain, prepare, restore
from ...recipes.config import Config
from ...recipes.task import Task
from ...train import assembly
from ...train.errors import Diverged, worker_deaths
from ...train.progress.terminal import set_up_logging
from . import rule
from .span import Span, as_text

_SAY_EVERY = 10.0  # seconds

Say = Callable[[str], object]


@dataclass(frozen=True)
class Growing(Schedule):
    """The factor that makes of the optimizer's rate that of the span."""

    lr: float
    span: Span

    def __call__(self, step: int) -> float:
        return self.span.rate(step) / self.lr


def sweep(config: Config, span: Span, say: Say = lambda text: None) -> dict[str, Any]:
    """What was found, fit for JSON: the rates that were tried, the loss before each step, and how it ended.

    say: is told now and then how far it is.
    """
    began = time.perf_counter()
    with _quiet():
        task = config.task()
        model, optimizer = _build(config, task)
        try:
            with worker_deaths(), closing(task.train_batches(config, 0, None)) as batches:
                found = climb(_Steps(config, task, model, optimizer, batches).take, config, span, say)
            return found | {
                "seed": config.seed, "precision": explain(model).precision, "seconds": time.perf_counter() - began
            }  # fmt: skip
        finally:
            restore(model)


def _build(config: Config, task: Task) -> tuple[nn.Module, Any]:
    torch.manual_seed(config.seed)
    model = task.build_model()
    task.load_weights(model)
    optimizer = task.build_optimizer(model) or assembly.build_optimizer(config, model)
    model, optimizer = prepare(
        model, optimizer, precision=config.precision, activations=config.activations, clip=config.clip,
        skip_nonfinite=True, threads=config.threads, overlap_weight_grads=config.overlap_weight_grads,
        loss_scaler=assembly.build_scaler(config, config.precision),
    )  # fmt: skip
    model.train()
    return model, optimizer


class _Steps:
    """Optimizer steps, one after the other."""

    def __init__(self, config: Config, task: Task, model: nn.Module, optimizer: Any, batches: Any) -> None:
        self._config, self._task, self._model, self._optimizer = config, task, model, optimizer
        self._batches = batches

    def take(self, schedule: Schedule, step: int) -> tuple[float, bool]:
        """The loss, and whether the weights were changed: they are not by a gradient that is not finite."""
        schedule.set(self._optimizer, step)
        total, share = 0.0, self._config.accumulate
        for _ in range(share):
            torch.default_generator.manual_seed(seed_of(self._config.seed, self._batches.position))  # of dropout
            loss = self._task.loss(self._model, self._batches.next())
            (loss / share if share > 1 else loss).backward()
            total += loss.item()
        skipped = self._optimizer.skipped_steps
        self._optimizer.step()
        self._optimizer.zero_grad()
        return total / share, self._optimizer.skipped_steps == skipped


def climb(
    take: Callable[[Schedule, int], tuple[float, bool]], config: Config, span: Span, say: Say = lambda text: None
) -> dict[str, Any]:
    """Until the highest rate, or until it has diverged. A skipped step is none: its rate gets the next batch.

    take: a step of a schedule -> its loss, and whether the weights were changed.
    """
    schedule, course = Growing(config.optimizer.lr, span), Course(rule.window_of(span.steps), config.max_nonfinite)
    said = time.monotonic()
    while len(course.losses) < span.steps and not course.why:
        course.add(*take(schedule, len(course.losses)))
        if time.monotonic() - said >= _SAY_EVERY:
            said = time.monotonic()
            say(_so_far(config, span, course))
    num_steps = len(course.losses)
    last = span.rate(min(num_steps, span.steps - 1))
    if course.why and num_steps <= rule.window_of(span.steps):
        raise Diverged(
            f"lr-find: {course.why} after {num_steps} steps, at the rate {as_text(last)}: check the data, or give a"
            " lower --lowest or --precision fp32"
        )
    return {
        "rates": [span.rate(step) for step in range(num_steps)], "losses": course.losses,
        "diverged": last if course.why else None, "why": course.why, "skipped": course.num_skipped,
    }  # fmt: skip


def _so_far(config: Config, span: Span, course: "Course") -> str:
    num_steps = len(course.losses)
    where = f"range test, seed {config.seed}: step {num_steps} of {span.steps}"
    if not num_steps:
        return f"{where}, {course.num_skipped} skipped"
    return f"{where}, rate {as_text(span.rate(num_steps - 1))}, smoothed loss {course.smooth:.4g}"


class Course:
    """The losses so far, and why there will be no more."""

    def __init__(self, window: int, most_skipped: int) -> None:
        self.losses: list[float] = []
        self.num_skipped, self.why = 0, ""
        self.smooth = math.nan  # the running mean of the losses
        self._window, self._most_skipped, self._in_a_row = window, most_skipped, 0
        self._mean, self._best = rule.RunningMean(window), math.inf

    def add(self, loss: float, is_taken: bool) -> None:
        if not math.isfinite(loss):
            self.why = f"the loss is {loss}"
        elif is_taken:
            self._in_a_row = 0
            self._add(loss)
        else:
            self.num_skipped, self._in_a_row = self.num_skipped + 1, self._in_a_row + 1
            if self._in_a_row >= self._most_skipped:
                self.why = f"{self._in_a_row} steps in a row had a gradient that is not finite"

    def _add(self, loss: float) -> None:
        self.losses.append(loss)
        self.smooth = self._mean.add(loss)
        self._best = min(self._best, self.smooth)
        first = self.losses[: self._window]
        if len(self.losses) > self._window and self.smooth > rule.limit(sum(first) / len(first), self._best):
            self.why = "the loss is far above where it began"


@contextmanager
def _quiet() -> Iterator[None]:
    """Warnings alone: what prepare() says is the same each time."""
    undo = set_up_logging(None, quiet=True)
    try:
        yield
    finally:
        undo()
