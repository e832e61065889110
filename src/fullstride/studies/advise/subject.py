"""What is advised on: a config, its task, the plain model and a micro-batch of usual size; and what they come to."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...backends import choosing, square_products
from ...recipes.config import Config
from ...recipes.task import Task
from ...train import dry_run
from . import watching
from .calls import Counted
from .prediction import Prediction, Step, predict
from .rates import Measured

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_LOOKED_AT = 16  # micro-batches, where their sizes differ


@dataclass(frozen=True)
class Subject:
    config: Config
    task: Task
    model: nn.Module  # plain, without memory where that can be
    batch: Any
    batch_seconds: float  # that it took to make it, on one core

    @property
    def num_samples(self) -> int:
        """Of a step."""
        return self.config.micro_batch * self.config.accumulate

    @property
    def num_elements(self) -> int:
        """Of the batches of a step: where samples differ in length, speeds are compared by these."""
        return _size(self.batch) * self.config.accumulate

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self.task.loss(model.train(), batch)

    def count(self, precision: str) -> Counted:
        try:
            return watching.count(self.model, self.loss, self.batch, DTYPES[precision])
        except ValueError:  # it looks at values, of which a model without memory has none
            return watching.count(self.task.build_model(), self.loss, self.batch, DTYPES[precision])


def of(config: Config) -> Subject:
    """ValueError if the recipe's data is not there, say."""
    task = config.task()
    start = time.perf_counter()
    batches = [_batch(task, config, 0), _batch(task, config, 1)]
    seconds = (time.perf_counter() - start) / len(batches)
    if _size(batches[0]) != _size(batches[1]):
        batches += [_batch(task, config, number) for number in range(2, _LOOKED_AT)]
    return Subject(config, task, _without_memory(task), _usual(batches), seconds)


def _batch(task: Task, config: Config, number: int) -> Any:
    return task.train_data.batch(*task.order(config).micro_batch(number))


def _size(batch: Any) -> int:
    return sum(leaf.numel() for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))


def _usual(batches: Sequence[Any]) -> Any:
    """The one whose size is nearest to the mean."""
    mean = sum(map(_size, batches)) / len(batches)
    return min(batches, key=lambda batch: abs(_size(batch) - mean))


def _without_memory(task: Task) -> nn.Module:
    try:
        with torch.device("meta"):
            return task.build_model()
    except (NotImplementedError, RuntimeError):  # it looks at values while it is built
        return task.build_model()


# ---- what it comes to ------------------------------------------------------------------------------------------------


def rates_of(precision: str) -> Measured:
    """Nothing measured yet but the peak of products."""
    peak = choosing.choose(precision).peak(precision)
    return Measured(DTYPES[precision], peak or square_products.rates()["fp32"])


def estimate_memory(config: Config, process: int | None = None) -> tuple[dict[str, int], int]:
    """Bytes by what they are for, as --dry-run estimates them, and how many there are.

    Without what a checkpoint is written from: a few steps write none. process: that of the program itself, if known.
    """
    found = dry_run.estimate(config)
    memory = {name: size for name, size in found.memory.items() if name != "checkpoint" and size}
    return memory | ({} if process is None else {"process": process}), found.available


def step_of(subject: Subject, memory: dict[str, int], precision: str) -> Step:
    """The passes of a step beside its micro-batches, from the sizes of what stays from step to step."""
    config = subject.config
    moved = memory["gradients"] + 2 * (memory["parameters"] + memory.get("optimizer", 0))
    norm = memory["gradients"] if config.clip is not None or precision == "fp16" else 0
    widened = 6 * subject.num_parameters if precision == "bf16" and config.accumulate > 1 else 0  # 2 read, 4 written
    return Step(config.accumulate, moved, norm, widened, len(list(subject.model.parameters())))


def prediction_of(subject: Subject, memory: dict[str, int], precision: str, rates: Measured) -> Prediction:
    """Measures what is not known yet of its products."""
    return predict(subject.count(precision), step_of(subject, memory, precision), rates)
