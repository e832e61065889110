"""Small runs for the tests: the real recipe, generated data, a network that takes milliseconds."""

from dataclasses import replace
from typing import Any

from fullstride.recipes.mlp import Data, MlpConfig, Model
from fullstride.train import config_files
from fullstride.train.config import Checkpoints, Evaluation, Logging, Optimizer, Schedule
from fullstride.train.metrics import read

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
    return config_files.overlay(SMALL, changes)


def losses(run) -> list[tuple[int, float]]:
    """(step, loss) of every step, in full precision."""
    return [(row["step"], row["loss"]) for row in read(run) if row["kind"] == "train"]


def evaluations(run) -> list[dict[str, Any]]:
    rows = [row for row in read(run) if row["kind"] == "eval"]
    return [{name: row[name] for name in ("step", "loss", "accuracy", "best")} for row in rows]


__all__ = ["SMALL", "evaluations", "losses", "replace", "small"]
