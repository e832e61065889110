"""The measurement of what activations in bf16 do, with real processes and tiny models. How much is for it to tell."""

import pytest
from benchmarks import activations, own_sides

from fullstride import recipes
from fullstride.bench.step.cases import Case

TINY = recipes.mlp().replace(
    steps=4, micro_batch=64, accumulate=1, threads=1, model={"hidden": [256, 256]},
    data={"num_samples": 200, "num_features": 64, "num_classes": 5, "num_valid": 20, "workers": 0},
    evaluation={"every": 0}, checkpoints={"every": 0}, logging={"every": 1},
)  # fmt: skip


def test_memory_is_less():
    found = activations.memory(TINY, 256)["mib"]
    assert found["bf16"]["activations"] < found["same"]["activations"]


def test_both_sides_of_the_timing_take_steps(monkeypatch):
    monkeypatch.setattr(own_sides, "TURN", 0.01)
    row = activations.speed(Case("tiny-llama"), rounds=1)
    assert row["ratio"]["median"] == pytest.approx(row["ms"]["same"] / row["ms"]["bf16"])


def test_losses_are_of_the_same_training():
    (row,) = activations.loss(TINY, [3])
    assert row["seed"] == 3
    assert row["bf16"]["train"] == pytest.approx(row["same"]["train"], rel=1e-2)
    assert row["bf16"]["train"] != row["same"]["train"]
