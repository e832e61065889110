"""Small runs for the tests: the real recipe, generated data, a network that takes milliseconds."""

import os
from typing import Any

import torch

from fullstride.recipes import strict
from fullstride.recipes.config import Checkpoints, Evaluation, Logging, Optimizer, Schedule
from fullstride.recipes.mlp import Data, MlpConfig, Model
from fullstride.run_folder.metrics import read
from fullstride.train.checkpoints.store import Store
from fullstride.train.hooks import Hook
from fullstride.train.trainer import Trainer

SMALL = MlpConfig(
    recipe="mlp",
    steps=12,
    micro_batch=8,
    accumulate=2,
    precision="fp32",
    threads=1,
    model=Model(hidden=(16, 16), dropout=0.1),
    data=Data(num_samples=50, num_features=12, num_classes=5, num_valid=20, workers=0),
    optimizer=Optimizer(lr=1e-2),
    schedule=Schedule(warmup=0.2),
    evaluation=Evaluation(every=4, batch=8),
    checkpoints=Checkpoints(every=5, background=False),  # a busy machine keeps its thread waiting
    logging=Logging(every=1),
)


def small(**changes: Any) -> MlpConfig:
    """SMALL with fields changed; nested ones as optimizer={"lr": 0.1}."""
    return strict.overlay(SMALL, changes)


def train(folder, config, hooks=()):
    return Trainer(config, folder, hooks).fit()


class Signal(Hook):
    """Sends a signal to this process after a micro-batch, in a step or in an evaluation."""

    def __init__(self, number, step, micro=None, evaluating=False):
        self.number, self.place, self.evaluating = number, (step, micro), evaluating

    def on_start(self, trainer):
        task = trainer.task
        loss, score = task.loss, task.score

        def loss_and_signal(model, batch):
            if (trainer.state.step, trainer.state.micro) == self.place:
                self.send()
            return loss(model, batch)

        def score_and_signal(model, batch):
            if self.evaluating and trainer.state.step == self.place[0]:
                self.send()
            return score(model, batch)

        task.loss, task.score = loss_and_signal, score_and_signal

    def send(self):
        os.kill(os.getpid(), self.number)


def losses(run) -> list[tuple[int, float]]:
    """(step, loss) of every step, in full precision."""
    return [(row["step"], row["loss"]) for row in read(run) if row["kind"] == "train"]


def evaluations(run) -> list[dict[str, Any]]:
    rows = [row for row in read(run) if row["kind"] == "eval"]
    return [{name: row[name] for name in ("step", "loss", "accuracy", "best")} for row in rows]


def final(folder):
    """Everything in the newest checkpoint that must not depend on how often the run was interrupted."""
    snapshot = Store(folder / "checkpoints").newest()
    document = dict(snapshot.documents["state"])
    best = document["best"]
    document["best"] = best and {**best, "seconds": None}
    optimizer = snapshot.documents["optimizer"]
    for group in optimizer["param_groups"]:
        group.pop("differentiable", None)  # torch adds it when a state is loaded; False, and not used
    return snapshot.tensors, {"optimizer": optimizer, "state": document}


def assert_same_run(one, other):
    """Bit for bit: weights, optimizer, counters, the best weights, every loss and every evaluation."""
    (tensors, documents), (other_tensors, other_documents) = final(one), final(other)
    assert documents == other_documents
    assert_same_tensors(tensors, other_tensors)
    best, other_best = (Store(folder / "checkpoints").best() for folder in (one, other))
    assert (best and best.step) == (other_best and other_best.step)
    if best:
        assert_same_tensors(best.tensors, other_best.tensors)
    assert losses(one) == losses(other)
    assert evaluations(one) == evaluations(other)


def assert_same_tensors(parts, other_parts):
    assert parts.keys() == other_parts.keys()
    for part, named in parts.items():
        assert named.keys() == other_parts[part].keys()
        for name, tensor in named.items():
            assert torch.equal(tensor, other_parts[part][name]), f"{part}: {name}"
