"""A recipe of 212 parameters, and sides that answer without a process."""

from dataclasses import dataclass

import torch
from torch import nn

from fullstride.bench.step.cases import Case
from fullstride.models import mlp
from fullstride.recipes.config import Config, Optimizer, Schedule
from fullstride.recipes.task import Stock, Task

OURS = "fullstride fp32"
PEAKS = {"fp32": 100.0, "bf16": None}
FACTS = {
    "unit": "samples", "units": 8, "parameters": 212, "gflop": 1.0, "precision": "fp32", "threads": 2,
    "explanation": [], "dropout": False,
}  # fmt: skip


class Points:
    """Each sample is a function of its number and epoch."""

    def __len__(self):
        return 10

    def batch(self, indices, epochs):
        inputs = torch.stack([torch.sin(torch.arange(8.0) * (1 + i) + e) for i, e in zip(indices, epochs, strict=True)])
        return inputs, torch.from_numpy(indices % 4)


class TinyTask(Task):
    def __init__(self, widths=(8, 16, 4)):
        self.widths = widths
        self.train_data = self.valid_data = Points()

    def build_model(self):
        model = mlp.build(**self.stock().arguments)
        nn.init.normal_(model[-1].weight)  # weights that the plain file alone would not give
        return model

    def loss(self, model, batch):
        return mlp.loss(model, batch)

    def stock(self):
        return Stock("mlp", {"widths": list(self.widths), "dropout": 0.0})


@dataclass(frozen=True, kw_only=True)
class TinyConfig(Config):
    widths: tuple[int, ...] = (8, 16, 4)

    def task(self):
        return TinyTask(self.widths)


CONFIG = TinyConfig(  # SGD: the steps of Adam do not show how the gradient was scaled
    recipe="tiny", seed=3, steps=8, micro_batch=4, accumulate=2, precision="fp32", clip=0.5,
    optimizer=Optimizer(name="sgd", lr=0.05, weight_decay=0.01), schedule=Schedule(warmup=0.5),
)  # fmt: skip


def case(folder):
    return Case("tiny", CONFIG.accumulate, ("fp32",), recipe=str(folder.path))


class Scripted:
    """A side whose steps take the same time; the loss of a step is one over its number."""

    def __init__(self, name, config=None, limit=None, seconds=1.0):
        self.name, self.config, self.seconds, self.facts = name, config or {}, seconds, FACTS
        self.losses, self.limits, self.closed = [], [limit], False

    def run(self, steps, limit=None):
        self.limits.append(limit)
        first = len(self.losses) + 1
        losses = [1 / number for number in range(first, first + steps)]
        self.losses += losses
        return {
            "seconds": [self.seconds] * steps, "losses": losses, "peaks": [1 << 20] * steps, "faults": 3 * steps,
            "frozen": [],
        }  # fmt: skip

    def rest(self):
        pass

    def close(self):
        self.closed = True
