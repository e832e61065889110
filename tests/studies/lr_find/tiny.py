"""A classifier small enough for a range test in a second, whose loss falls and then diverges."""

from typing import Any

from fullstride import recipes
from fullstride.recipes.config import Config

WORDS = [
    "--model.hidden", "32", "--data.num-samples", "512", "--data.num-features", "8", "--data.num-classes", "3",
    "--data.num-valid", "32", "--data.workers", "0", "--micro-batch", "32", "--accumulate", "1",
    "--schedule.warmup", "0", "--logging.every", "1", "--threads", "1", "--precision", "fp32",
    "--optimizer.lr", "0.01",
]  # fmt: skip


def config(**changes: Any) -> Config:
    return recipes.get("mlp")().replace(
        model={"hidden": (32,)},
        data={"num_samples": 512, "num_features": 8, "num_classes": 3, "num_valid": 32, "workers": 0},
        **{
            "micro_batch": 32, "accumulate": 1, "schedule": {"warmup": 0}, "logging": {"every": 1}, "threads": 1,
            "precision": "fp32", "optimizer": {"lr": 0.01},
        } | changes,
    )  # fmt: skip
