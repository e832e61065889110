"""Columns of a row on each layer, on models and in a run."""

import pytest
import torch
from torch import nn

import fullstride
from fullstride.run_folder.metrics import read
from fullstride.train.progress.layer_gradients import LayerNorms
from fullstride.train.trainer import Trainer
from tests.train.runs import small, train


class Scaled(nn.Module):
    """A parameter of a single number, and one that nothing is learnt of."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(60, 80)
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.fixed = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x):
        return self.scale * self.linear(x)


class Plain:
    scaler = None


def norm(module):
    return float(torch.cat([p.detach().flatten() for p in module.parameters()]).norm())


def test_weights_have_their_norm_within_a_tenth_and_layers_without_a_gradient_have_none():
    torch.manual_seed(0)
    model = Scaled()
    model(torch.randn(4, 60)).sum().backward()
    row = LayerNorms(model).row(Plain())
    assert row["weight_norms"] == {"linear": pytest.approx(norm(model.linear), rel=0.1), "scale": 3.0}
    assert row["grad_norms"].keys() == {"linear", "scale"}


def test_split_weights_have_the_norm_of_their_fp32_value():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64))
    expected = norm(model)
    model, _ = fullstride.prepare(model, torch.optim.AdamW(model.parameters()), precision="bf16")
    model(torch.randn(4, 64)).float().sum().backward()
    row = LayerNorms(model).row(Plain())
    assert model[0].weight.dtype is torch.bfloat16
    assert row["weight_norms"]["0"] == pytest.approx(expected, rel=0.1)
    fullstride.restore(model)


def test_a_run_says_how_large_its_layers_are_and_both_norms_of_each(tmp_path):
    train(tmp_path / "run", small())
    rows = read(tmp_path / "run")
    start = next(row for row in rows if row["kind"] == "event" and row["event"] == "start")
    assert start["layers"] == {"1": 12 * 16 + 16, "4": 16 * 16 + 16, "7": 16 * 5 + 5}
    trained = [row for row in rows if row["kind"] == "train"]
    assert all(row["weight_norms"].keys() == row["grad_norms"].keys() == {"1", "4", "7"} for row in trained)
    assert all(value > 0 for row in trained for value in row["weight_norms"].values())


def test_a_resumed_run_writes_the_norms_of_the_uninterrupted_one(tmp_path):
    train(tmp_path / "whole", small())

    class Halt(fullstride.Hook):
        def on_step(self, trainer, loss):
            if trainer.state.step == 7:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "halted", small(), [Halt()])
    Trainer.resume(tmp_path / "halted").fit()
    whole, halted = (
        [(row["step"], row["weight_norms"]) for row in read(tmp_path / name) if row["kind"] == "train"]
        for name in ("whole", "halted")
    )
    assert halted == whole


def test_without_gradient_norms_there_are_no_norms_at_all(tmp_path):
    train(tmp_path / "run", small(logging={"grad_norms": False}))
    rows = [row for row in read(tmp_path / "run") if row["kind"] == "train"]
    assert all(row["grad_norms"] == row["weight_norms"] == {} for row in rows)


def test_use_of_cores_is_in_the_rows_and_the_table_has_no_column_a_core(tmp_path):
    train(tmp_path / "run", small())
    rows = [row for row in read(tmp_path / "run") if row["kind"] == "train"]
    assert all("cores" in row and "own_cores" in row for row in rows)
    columns = (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert "own_cores" in columns
    assert not [name for name in columns if name.startswith(("cores", "weight_norms"))]
