"""Validation: a model's scores on held-out data, as a mean over all of it."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.order import seed_all, seed_of
from ..distributed.world import World
from ..preparation import prepare, restore
from ..recipes import config_files
from ..recipes.config import Config
from ..recipes.task import Task
from ..run_folder.folder import RunFolder
from .checkpoints.store import Snapshot, Store


def run(
    model: nn.Module, task: Task, batch: int, between: Callable[[], None] = lambda: None, seed: int = 0,
    world: World | None = None,
) -> dict[str, float]:  # fmt: skip
    """Mean scores. `between` is called after every batch; the model's mode is as before, whatever that raises.

    Several processes score batches of their own, and all get the means of all.

    What is drawn at random is a function of the seed: one that was broken off comes out the same when it is repeated.
    """
    was_training = model.training
    seed_all(seed)
    model.eval()
    sums: Counter[str] = Counter()
    try:
        with torch.no_grad():
            for inputs in task.valid_batches(batch):
                sums.update(task.score(model, inputs))
                between()
    finally:
        model.train(was_training)
    if world is not None and not world.is_alone:
        names = ("count", *task.metrics)
        sums = Counter(dict(zip(names, world.sum([sums[name] for name in names]), strict=True)))
    if not sums["count"]:
        raise ValueError("evaluation: expected at least one batch of held-out data, got none")
    count = sums.pop("count")
    return {name: total / count for name, total in sums.items()}


def seed_at(seed: int, step: int) -> int:
    """Of the evaluation after so many steps of a run; the numbers below 0 are no micro-batch's."""
    return seed_of(seed, ~step)


def evaluate(run_folder: Path, which: str = "best") -> dict[str, float]:
    """Of a run's checkpoint: "best", "last" or the number of a step. In fp32, whatever it was trained in."""
    return assess(run_folder, which, full=False)[0]


def assess(
    run_folder: Path, which: str = "best", full: bool = True
) -> tuple[dict[str, float], list[dict[str, Any]] | None]:
    """The scores of evaluate(), and the rows of what the task measures besides, if it does and that is wished for."""
    model, task, config, snapshot = load(run_folder, which)
    seed = seed_at(config.seed, snapshot.step)
    try:
        scores = run(model, task, config.evaluation.batch, seed=seed) | {"step": snapshot.step}
        return scores, task.assess(model, run_folder) if full else None
    finally:
        restore(model)


def load(run_folder: Path, which: str = "best") -> tuple[nn.Module, Task, Config, Snapshot]:
    """The model with the weights of a checkpoint, prepared in fp32."""
    config = config_files.from_yaml(RunFolder.read(run_folder).config_yaml, f"{run_folder}/config.yaml")
    snapshot = find(run_folder, which)
    task = config.of_run(run_folder).task()
    model = task.build_model()
    model.load_state_dict(snapshot.tensors["model"])
    model, _ = prepare(model.eval(), precision="fp32", threads=config.threads)
    return model, task, config, snapshot


def find(run_folder: Path, which: str = "best") -> Snapshot:
    store = Store(RunFolder.read(run_folder).checkpoints)
    snapshot = None
    if which == "best":
        snapshot = store.best() or store.newest()
    elif which == "last":
        snapshot = store.newest()
    elif not which.isdecimal():
        raise ValueError(f"checkpoint: expected best, last or the number of a step, got {which!r}")
    elif int(which) in store.steps():
        snapshot = store.load(store.path(int(which)))
    if snapshot is None:
        there = ", ".join(map(str, store.steps()))
        wanted = f" of step {which}" if which.isdecimal() else ""
        hint = f"there are those of: {there}" if there and wanted else f"`fullstride resume {run_folder}` makes one"
        raise ValueError(f"{run_folder} has no checkpoint{wanted} that is whole; {hint}")
    return snapshot
