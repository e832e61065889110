"""What memory is for, measured in real runs."""

import contextlib

import pytest
import torch
from torch import nn

import fullstride
from fullstride.machine import heap
from fullstride.run_folder.metrics import read
from fullstride.train.progress.memory_use import MemoryUse
from fullstride.train.trainer import Trainer

from ..runs import assert_same_run, small, train

WIDE = {"model": {"hidden": (256, 256), "dropout": 0.0}, "steps": 3}
NUM_WEIGHTS = 12 * 256 + 256 + 256 * 256 + 256 + 256 * 5 + 5

needs_malloc = pytest.mark.skipif(heap.in_use() is None, reason="malloc does not tell what it has handed out")


def measured(folder):
    return [row for row in read(folder) if row.get("event") == "memory"]


def run(folder, **changes):
    train(folder, small(**WIDE | changes))
    (found,) = measured(folder)
    return found


def test_parameters_states_and_gradients_are_their_bytes(tmp_path):
    found = run(tmp_path / "run")
    assert found["step"] == 2
    assert found["parameters"] == found["gradients"] == 4 * NUM_WEIGHTS
    assert found["optimizer"] == pytest.approx(8 * NUM_WEIGHTS, abs=100)  # and the number of the step
    assert found["peak"] >= found["resident"] > found["parameters"]


def test_split_weights_are_parameters_and_their_sum_of_gradients_is_fp32(tmp_path):
    one = run(tmp_path / "one", precision="bf16", accumulate=1)
    two = run(tmp_path / "two", precision="bf16", accumulate=2)
    assert one["parameters"] == two["parameters"] == 4 * NUM_WEIGHTS
    assert one["gradients"] < 2.1 * NUM_WEIGHTS
    assert two["gradients"] >= 4 * NUM_WEIGHTS


@needs_malloc
def test_activations_grow_with_the_micro_batch_and_not_with_their_number(tmp_path):
    small_one = run(tmp_path / "64", micro_batch=64, accumulate=1)["activations"]
    twice = run(tmp_path / "128", micro_batch=128, accumulate=1)["activations"]
    in_turns = run(tmp_path / "64x2", micro_batch=64, accumulate=2)["activations"]
    assert small_one >= 64 * 2 * 256 * 4  # two hidden layers
    assert twice == pytest.approx(2 * small_one, rel=0.05)
    assert in_turns == pytest.approx(small_one, rel=0.05)


@needs_malloc
def test_activations_in_bf16_are_measured_as_what_they_take(tmp_path):
    same, half = (run(tmp_path / wish, micro_batch=256, activations=wish)["activations"] for wish in ("same", "bf16"))
    assert 0.4 * same < half < 0.7 * same  # the data is not rounded


def test_without_malloc_to_ask_activations_are_the_saved_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(heap, "in_use", lambda: None)
    found = run(tmp_path / "run", micro_batch=64)
    assert found["activations"] >= 64 * 2 * 256 * 4
    assert found["activations"] < found["parameters"]  # the weights themselves are saved, too, and left out
    assert found["temporary"] is None


@pytest.mark.parametrize(
    "changes", [{"precision": "fp32"}, {"precision": "bf16"}, {"activations": "bf16", "micro_batch": 64}]
)
def test_measuring_changes_no_bit(tmp_path, monkeypatch, changes):
    config = small(**WIDE | changes)
    train(tmp_path / "measured", config)
    assert measured(tmp_path / "measured")
    monkeypatch.setattr(MemoryUse, "forward", lambda *_: contextlib.nullcontext())
    train(tmp_path / "plain", config)
    assert not measured(tmp_path / "plain")
    assert_same_run(tmp_path / "measured", tmp_path / "plain")


def test_a_run_of_one_step_is_measured_in_it(tmp_path):
    assert run(tmp_path / "run", steps=1)["step"] == 1


def test_every_process_of_a_run_is_measured(tmp_path):
    train(tmp_path / "run", small(steps=12, checkpoints={"every": 5, "keep": 9}))
    (tmp_path / "run" / "checkpoints" / "step-00000012").rename(tmp_path / "gone")
    Trainer.resume(tmp_path / "run").fit()
    assert [row["step"] for row in measured(tmp_path / "run")] == [2, 12]


class Slopes(nn.Module):
    """The gradient of a small network with respect to its inputs, a sample at a time."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        def height(point):
            return self.out(torch.tanh(self.hidden(point))).sum()

        return torch.func.vmap(torch.func.grad(height))(x)


@pytest.mark.parametrize("malloc", ["as it is", "does not tell"])
def test_a_model_that_differentiates_in_its_forward_trains_and_is_measured(tmp_path, monkeypatch, malloc):
    if malloc == "does not tell":
        monkeypatch.setattr(heap, "in_use", lambda: None)
    batches = [(torch.randn(6, 4), torch.randn(6, 4))] * 4
    fullstride.fit(
        Slopes(), batches, nn.functional.mse_loss, epochs=1, precision="fp32", threads=1, run=tmp_path / "run",
        report=False,
    )  # fmt: skip
    (found,) = measured(tmp_path / "run")
    assert found["activations"] > 0
