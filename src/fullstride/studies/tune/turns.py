"""What a trial does: it trains with the real trainer while it is asked to, and rests between two requests (trial.py).

The trainer is stopped between two steps by a hook that waits for the next line, so memory, workers and caches stay as
they are. Nothing is evaluated or saved unless it is asked for. Without "seconds" only the speed counts: no layer is
frozen, so that all trials compute the same. With it the learning rate follows the time: when so many seconds of
training are over, the schedule is, however many steps that were.

Of several processes the first has the clock: after each step it tells the others how long that took, which the
schedule of all follows, and whether the turn is over.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from ... import runtime
from ...distributed.world import World, joined
from ...machine import memory
from ...optim.schedules import Schedule
from ...recipes import config_files
from ...recipes.config import Config
from ...train import evaluation
from ...train.hooks import Hook
from ...train.trainer import Trainer
from .ranks import say

_PARTS = 8  # of the time of an answer, whose rates tell the spread
_STEPS = 10**9  # more than any trial takes
_REST = 30 * 86400.0  # seconds that the others wait for a request: longer than any study
_PATIENCE, _LONG = 4, 15.0  # times the wished-for seconds, and seconds: then fewer steps than wished for must do


class ByTime(Schedule):
    """What `schedule` has after a share of its steps, when that share of the time is over."""

    def __init__(self, schedule: Schedule, steps: int, share: Callable[[], float]) -> None:
        self._schedule, self._steps, self._share = schedule, steps, share

    def __call__(self, step: int) -> float:
        return self._schedule(min(self._steps - 1, int(self._share() * self._steps)))


class Turns(Hook):
    """Trains while it is asked to. seconds: of all training, None: only speed counts."""

    def __init__(self, out: TextIO, seconds: float | None, full_steps: int) -> None:
        self._out, self._total, self._full_steps = out, seconds, full_steps
        self._world = World()
        self.trained = 0.0  # seconds so far, by the clock of the first process
        self._mark = self._turn_began = self._asked = 0.0
        self._samples = 0
        self._wish, self._settle, self._least = 0.0, 0, 1
        self._seconds: list[float] = []
        self._units: list[float] = []

    def on_start(self, trainer: Trainer) -> None:
        self._world = trainer.together.world
        if self._total is not None:
            total = self._total
            trainer.schedule = ByTime(trainer.schedule, trainer.length.steps, lambda: self.trained / total)
        task = trainer.task
        self._say({
            "unit": task.unit, "steps": self._full_steps, "threads": torch.get_num_threads(),
            "precision": trainer.environment["precision"], "overlaps": runtime.current().overlaps,
        })  # fmt: skip
        self._serve(trainer)

    def on_step(self, trainer: Trainer, loss: float) -> None:
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        samples, self._samples = trainer.state.samples - self._samples, trainer.state.samples
        is_over = self._count(now, seconds, samples * trainer.task.units_per_sample)
        if not self._world.is_alone:
            seconds, is_over = self._of_first(seconds, is_over)
        self.trained += seconds
        if is_over:
            self._say_turn()
            self._serve(trainer)

    def _count(self, now: float, seconds: float, units: float) -> bool:
        """A step; whether it was the last of the turn."""
        if self._settle and now - self._asked < _LONG:
            self._settle -= 1
            self._turn_began = now
            return False
        self._seconds.append(seconds)
        self._units.append(units)
        passed = now - self._turn_began
        is_enough = len(self._seconds) >= self._least or passed >= max(_LONG, _PATIENCE * self._wish)
        return passed >= self._wish and is_enough

    def _of_first(self, seconds: float, is_over: bool) -> tuple[float, bool]:
        told = [seconds, float(is_over)] if self._world.is_first else [0.0, 0.0]
        seconds, ends = self._world.sum(told)
        return seconds, bool(ends)

    def _say_turn(self) -> None:
        peaks = self._world.gather(memory.peak_bytes())
        if self._world.is_first:
            say(self._out, self._turn(None if None in peaks else sum(peaks)))

    def _turn(self, peak: int | None) -> dict[str, Any]:
        num = min(_PARTS, len(self._seconds))
        seconds, units = (np.array_split(np.array(values), num) for values in (self._seconds, self._units))
        return {
            "rates": [float(u.sum() / s.sum()) for u, s in zip(units, seconds, strict=True)],
            "steps": len(self._seconds), "seconds": sum(self._seconds), "units": sum(self._units),
            "peak": peak,
        }  # fmt: skip

    def _serve(self, trainer: Trainer) -> None:
        """Until it is to train again."""
        while request := self._request():
            if "train" in request:
                self._wish, self._least = request["train"], request.get("least", 1)
                self._settle = request["settle"] + _made_ahead(trainer) if request.get("settle") else 0
                self._seconds, self._units = [], []
                self._mark = self._turn_began = self._asked = time.perf_counter()
                return
            self._say(_inter_op() if "inter_op" in request else _evaluate(trainer))
        os._exit(0)  # nobody will ask any more, and nothing is to be saved

    def _request(self) -> Any:
        """None if nobody will ask any more."""
        line = sys.stdin.readline() if self._world.is_first else ""
        return self._world.from_first(json.loads(line) if line else None)

    def _say(self, answer: dict[str, Any]) -> None:
        if self._world.is_first:
            say(self._out, answer)


def _made_ahead(trainer: Trainer) -> int:
    """Steps whose data workers have made while nobody trained."""
    num: int = getattr(trainer.loader, "num_workers", 0) * getattr(getattr(trainer.config, "data", None), "prefetch", 0)
    return -(-num // trainer.share.micros)


def _evaluate(trainer: Trainer) -> dict[str, Any]:
    began = time.perf_counter()
    config = trainer.config
    scores = evaluation.run(
        trainer.model, trainer.task, config.evaluation.batch, seed=config.seed, world=trainer.together.world
    )
    loss = scores["loss"]
    return {"loss": loss if math.isfinite(loss) else None, "seconds": time.perf_counter() - began}


def _inter_op() -> dict[str, Any]:
    """torch takes a number of threads for that pool once, and only as long as nothing was ever computed in it."""
    try:
        torch.set_num_interop_threads(torch.get_num_interop_threads())
    except RuntimeError:
        return {"started": True}
    return {"started": False}


def for_trial(config: Config, full_steps: int, freezes: bool) -> Config:
    """Without an end, evaluations and checkpoints; what the schedule counts in steps grows as the run does."""
    schedule = {}
    for name in ("warmup", "over", "every", "decay"):
        value = getattr(config.schedule, name)
        if value is not None and value >= 1:
            schedule[name] = max(1, round(value * _STEPS / full_steps))
    return config.replace(
        steps=_STEPS, schedule=schedule, evaluation={"every": 0, "patience": 0},
        checkpoints={"every": 0, "background": False}, logging={"tensorboard": False},
        freeze={"enabled": config.freeze.enabled and freezes},
    )  # fmt: skip


def train(wish: dict[str, Any], out: TextIO) -> None:
    config = config_files.from_yaml(wish["config"]).located()
    with joined(config.distributed.backend, _REST):
        task = config.task()
        full_steps = task.length(config).steps
        hook = Turns(out, wish["seconds"], full_steps)
        trainer = Trainer(for_trial(config, full_steps, wish["seconds"] is not None), Path(wish["run"]), [hook], task)
        trainer.quiet = True
        trainer.fit()
