"""Recipes that train a step in a millisecond, and what a study of them would have found."""

from pathlib import Path
from typing import Any

from fullstride import recipes
from fullstride.recipes.config import Config
from fullstride.studies.ablate.switching import ALL, STOCK, Subject
from fullstride.studies.ablate.timing import Plan, Speed

TEXT = "the quick brown fox jumps over the lazy dog and runs away from it. " * 40
MLP_USES = frozenset({"class_swap", "fusion", "linear", "activations", "products"})


def mlp(**changes: Any) -> Config:
    fields = {
        "model": {"hidden": (8,)}, "steps": 400, "schedule": {"warmup": 0}, "threads": 1, "precision": "fp32",
        "data": {"num_samples": 64, "num_features": 6, "num_classes": 3, "num_valid": 16, "workers": 0},
        "micro_batch": 8, "accumulate": 1,
    }  # fmt: skip
    return recipes.get("mlp")().replace(**fields | changes)


def llama(folder: Path, **changes: Any) -> Config:
    (folder / "text.txt").write_text(TEXT)
    fields = {
        "model": {"width": 16, "layers": 1, "heads": 2, "hidden": 32, "context": 16}, "micro_batch": 2, "steps": 400,
        "data": {"path": str(folder / "text.txt"), "tokenizer": "characters", "workers": 0}, "threads": 1,
        "precision": "fp32",
    }  # fmt: skip
    return recipes.get("llama")().replace(**fields | changes)


def subject(config: Config | None = None, precision: str = "fp32", used: frozenset[str] = MLP_USES) -> Subject:
    return Subject(config or mlp(), precision, used, frozenset(), threads=2)


def plan(step: float = 1.0, start: float = 4.0, **changes: Any) -> Plan:
    speeds = {STOCK: Speed(start, 2 * step), ALL: Speed(start, step)}
    found: dict[str, Any] = {
        "bytes_of_step": 1000, "is_fresh": False, "precision": "fp32", "used": sorted(MLP_USES), "functions": [],
        "threads": 2,
    }  # fmt: skip
    return Plan(speeds, **found | changes)
