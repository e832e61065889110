"""A config that trains a step in a millisecond, and a study to keep parts in."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fullstride import recipes
from fullstride.bench import study
from fullstride.recipes.config import Config


def config(**changes: Any) -> Config:
    fields = {
        "model": {"hidden": (8,)}, "steps": 40, "schedule": {"warmup": 0}, "threads": 1, "precision": "fp32",
        "data": {"num_samples": 64, "num_features": 6, "num_classes": 3, "num_valid": 16, "workers": 0},
        "accumulate": 1,
    }  # fmt: skip
    return recipes.get("mlp")().replace(**fields | changes)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[study.Study]:
    with study.opened(folder, "tune mlp", {}, {}, say=lambda text: None) as found:
        yield found
