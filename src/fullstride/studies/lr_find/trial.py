"""`--check`: the recipe trained by the real trainer with two rates, from the same weights on the same data.

Each training is a part of the study. While it is under way it has a run folder in the study's own, from which it goes
on after it was stopped; when it is recorded the folder goes. A check of another length has other folders.
"""

import math
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...bench.study import Study, StudyStopped
from ...recipes.config import Config
from ...run_folder import metrics
from ...train import assembly
from ...train.errors import Diverged, Interrupted
from ...train.progress.terminal import has_bar
from ...train.trainer import Trainer
from .span import OWN_DIGITS, as_text

_MOST_POINTS = 200  # of a curve of training losses


@dataclass(frozen=True)
class Wish:
    """steps: None for all of the recipe's."""

    steps: int | None
    num_seeds: int = 1

    def config(self, config: Config, rate: float, seed: int) -> Config:
        """With this rate: evaluated once, at the end, and not stopped early."""
        length = {} if self.steps is None else {"steps": self.steps}
        return with_rate(config, rate).replace(seed=seed, evaluation={"every": 0, "patience": 0}, **length)

    def names(self, config: Config, rate: float) -> dict[str, tuple[float, int]]:
        """Name of a part -> (rate, seed). The pairs of a seed one after the other."""
        steps = "all" if self.steps is None else f"{self.steps:,}"
        return {
            f"check {steps} steps, seed {seed}, rate {as_text(each, OWN_DIGITS)}": (each, seed)
            for seed in range(config.seed, config.seed + self.num_seeds)
            for each in (config.optimizer.lr, rate)
        }


def with_rate(config: Config, rate: float) -> Config:
    """The floor of the schedule cannot be above it."""
    return config.replace(optimizer={"lr": rate}, schedule={"floor": min(config.schedule.floor, rate)})


def require(config: Config, wish: Wish | None) -> None:
    """ValueError, before anything is measured, for data that is missing or a length that does not fit the recipe."""
    if wish is not None:
        config = wish.config(config, config.optimizer.lr, config.seed)
    task = config.task()
    assembly.build_schedule(config, task.length(config))
    if wish is not None and task.num_valid == 0:
        raise ValueError("--check: expected held-out data to compare the rates by, got none; leave --check away")


def run(study: Study, config: Config, wish: Wish, rate: float) -> None:
    """Trains what is not trained yet."""
    trials = wish.names(config, rate)
    for name in [name for name in trials if name in study.parts]:  # of a process that ended before it was gone
        shutil.rmtree(_folder(study, wish, *trials[name]), ignore_errors=True)
    for name in study.left(list(trials)):
        folder = _folder(study, wish, *trials[name])
        found = _train(wish.config(config, *trials[name]), folder)
        study.record(name, found, said=_said(found))
        shutil.rmtree(folder)


def _folder(study: Study, wish: Wish, rate: float, seed: int) -> Path:
    steps = "all" if wish.steps is None else wish.steps
    return study.folder / f"run-{steps}-steps-{as_text(rate, OWN_DIGITS)}-{seed}"


def _train(config: Config, folder: Path) -> dict[str, Any]:
    trainer = Trainer.resume(folder) if (folder / "config.yaml").exists() else Trainer(config, folder)
    trainer.quiet = not has_bar()
    about = {"rate": config.optimizer.lr, "seed": config.seed}
    try:
        result = trainer.fit()
    except Diverged as error:
        return about | {"loss": None, "why": str(error).split(";")[0]} | _curve(folder)
    except Interrupted as error:
        number = error.code - 128
        way = f"the training is kept in {folder}: the same command goes on"
        raise StudyStopped(f"stopped by {signal.Signals(number).name}; {way}", number) from None
    loss = math.nan if result.best is None else result.best["loss"]
    if not math.isfinite(loss):
        return about | {"loss": None, "why": "the validation loss is not finite"} | _curve(folder)
    return about | {"loss": loss, "why": "", "seconds": result.seconds} | _curve(folder)


def _curve(folder: Path) -> dict[str, Any]:
    """The training loss by step, thinned."""
    rows = [row for row in metrics.read(folder) if row["kind"] == "train" and math.isfinite(row["loss"])]
    rows = rows[:: max(1, math.ceil(len(rows) / _MOST_POINTS))]
    return {"steps": [row["step"] for row in rows], "losses": [row["loss"] for row in rows]}


def _said(found: dict[str, Any]) -> str:
    return f"diverged: {found['why']}" if found["loss"] is None else f"validation loss {found['loss']:.4f}"
