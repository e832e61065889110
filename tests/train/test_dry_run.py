import dataclasses

import pytest
import torch
from torch import nn

from fullstride import recipes
from fullstride.backends import choosing
from fullstride.machine import streams
from fullstride.recipes.config import Checkpoints, Evaluation, Optimizer
from fullstride.train import dry_run


@pytest.fixture(autouse=True)
def rates(monkeypatch):
    """A machine of 100 GFLOP/s and 10 GB/s."""

    def choose(wish):
        precision = "fp32" if wish == "auto" else wish
        rates = {name: {"few rows": {"torch": 100.0}} for name in ("fp32", "bf16")}
        return choosing.Choice(precision, "why", {}, rates)

    monkeypatch.setattr(choosing, "choose", choose)
    monkeypatch.setattr(streams, "bandwidth", lambda mix, seconds: 10.0)


def config(hidden=(30, 20), **changes):
    base = recipes.mlp()
    data = dataclasses.replace(base.data, num_features=10, num_classes=5, num_samples=400, num_valid=60)
    model = dataclasses.replace(base.model, hidden=hidden)
    return base.replace(model=model, data=data, **{"threads": 1, "micro_batch": 4, "accumulate": 2, **changes})


PARAMETERS = 10 * 30 + 30 + 30 * 20 + 20 + 20 * 5 + 5


def test_parameters_are_counted_by_part():
    parts = dry_run.estimate(config()).parts
    assert list(parts.values()) == [330, 620, 105]
    assert next(iter(parts)) == "1 Linear 30 x 10"


def test_a_tied_weight_counts_once():
    model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7, bias=False))
    model[1].weight = model[0].weight
    assert dry_run._parts(model) == {"0 Embedding 7 x 3": 21}


def test_parts_are_looked_for_inside_of_a_wrapper():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
            self.scale = nn.Parameter(torch.ones(4))

    assert dry_run._parts(Wrapper()) == {"body.0 Linear 3 x 2": 9, "body.1 Linear 1 x 3": 4, "others": 4}


def test_memory_of_a_model_far_beyond_this_machine_is_told_without_taking_it():
    estimate = dry_run.estimate(config(hidden=(300_000, 300_000)))
    assert estimate.num_parameters == pytest.approx(9e10, rel=1e-3)
    assert estimate.peak > estimate.available
    assert "too much" in dry_run.as_text(config(), estimate)


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"),
    [
        (Optimizer(name="adamw"), 8),
        (Optimizer(name="adam", state_precision="bf16"), 4),
        (Optimizer(name="lamb", lookahead=True), 12),
        (Optimizer(name="sgd"), 4),
        (Optimizer(name="sgd", momentum=0.0), 0),
        (Optimizer(name="adamw", state_precision="8bit"), 2 + 2 * 4 / 256),
    ],
    ids=repr,
)
def test_memory_of_the_optimizer(optimizer, bytes_each):
    assert dry_run.estimate(config(optimizer=optimizer)).memory["optimizer"] == round(bytes_each * PARAMETERS)


@pytest.mark.parametrize(("precision", "accumulate", "bytes_each"), [("fp32", 1, 4), ("bf16", 1, 2), ("bf16", 2, 4)])
def test_memory_of_gradients(precision, accumulate, bytes_each):
    estimate = dry_run.estimate(config(precision=precision, accumulate=accumulate))
    assert estimate.memory["gradients"] == bytes_each * PARAMETERS


@pytest.mark.parametrize(
    ("precision", "background", "bytes_each"),
    [("fp32", True, 12), ("fp32", False, 0), ("bf16", True, 18), ("bf16", False, 4)],
)
def test_memory_of_a_checkpoint(precision, background, bytes_each):
    wish = config(precision=precision, checkpoints=Checkpoints(background=background))
    assert dry_run.estimate(wish).memory["checkpoint"] == pytest.approx(bytes_each * PARAMETERS, abs=4)


def test_memory_of_activations_is_what_autograd_keeps_and_two_gradients():
    # inputs, two hidden layers, scores as logarithms of probabilities; labels are int64, and cross_entropy keeps the
    # sum of their weights besides
    kept = 4 * 4 * (10 + 30 + 20 + 5) + 4 * 8 + 4
    assert dry_run.estimate(config()).memory["activations"] == kept + 4 * 4 * (30 + 20)


def test_activations_kept_in_bf16_take_half_and_their_gradients_do_not():
    kept = 4 * (2 * (30 + 20) + 4 * (10 + 5)) + 4 * 8 + 4  # inputs and logarithms of probabilities stay fp32
    assert dry_run.estimate(config(activations="bf16")).memory["activations"] == kept + 4 * 4 * (30 + 20)


def test_activations_grow_with_the_micro_batch_and_halve_in_bf16():
    one, four = (dry_run.estimate(config(micro_batch=n)).memory["activations"] for n in (100, 400))
    half = dry_run.estimate(config(micro_batch=400, precision="bf16")).memory["activations"]
    assert four == pytest.approx(4 * one, rel=0.01)
    assert half == pytest.approx(four / 2, rel=0.05)


def test_a_micro_batch_larger_than_the_data_is_possible():
    assert dry_run.estimate(config(micro_batch=1000)).memory["activations"] > 0


def test_time_is_products_and_the_optimizer_and_evaluations():
    wish = config(steps=100, evaluation=Evaluation(every=50))
    estimate = dry_run.estimate(wish)
    flops = 4 * 300 + 6 * (600 + 100)  # no gradient of the inputs
    passed = (4 + 2 * (4 + 8)) * PARAMETERS
    assert estimate.step_seconds == pytest.approx(flops * 8 / 100e9 + passed / 10e9)
    assert estimate.seconds == pytest.approx(100 * estimate.step_seconds + 3 * 60 * flops / 3 / 100e9)


def test_time_is_not_known_where_nobody_can_count(monkeypatch):
    from fullstride.recipes.mlp_task import MlpTask

    monkeypatch.setattr(MlpTask, "flops", lambda self, model: None)
    text = dry_run.as_text(config(), dry_run.estimate(config()))
    assert "time       not known: the FLOPs of a step could not be counted" in text


def test_a_busy_machine_is_mentioned(monkeypatch):
    for load, said in [((0.1, 0.0, 0.0), False), ((99.0, 0.0, 0.0), True)]:
        monkeypatch.setattr("os.getloadavg", lambda load=load: load)
        assert ("others use this machine" in dry_run.as_text(config(), dry_run.estimate(config()))) is said


def test_text_has_the_figures():
    wish = config(steps=100)
    text = dry_run.as_text(wish, dry_run.estimate(wish))
    assert f"model      {PARAMETERS:,} parameters" in text
    assert "400 samples to train on, 60 held out" in text
    assert "100 steps of 2 x 4 samples, 2 epochs" in text
    assert "An estimate" in text
    assert text.isascii()
