"""fullstride.advise() for models of one's own, and what an advice says."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullstride
from fullstride.machine import energy
from fullstride.recipes.config import Optimizer
from fullstride.studies.advise import advice, any_model, changes, check, devices, text
from fullstride.studies.advise.prediction import Prediction, Step, predict
from fullstride.studies.advise.rates import Given
from fullstride.studies.advise.watching import count

from . import tiny

GIVEN = Given(100.0, {"read": 10.0, "write": 20.0, "update": 40.0}, 1e-6)
CHECKED = {
    "milliseconds": {"median": 2.0, "lowest": 1.0, "highest": 3.0}, "turns": 3, "steps": 5, "watts": 50.0,
    "energy": "measured", "load": 0.0, "cores": 2, "peak_bytes": 1000,
}  # fmt: skip


@pytest.fixture(scope="module")
def advised():
    """The advice on a small classifier, and its model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FULLSTRIDE_QUIET", "1")
        model = tiny.mlp()
        optimizer = torch.optim.AdamW(model.parameters())
        found = fullstride.advise(
            model, tiny.batch(), F.cross_entropy, optimizer=optimizer, precision="fp32", threads=1, seconds=0.02
        )
        return found, model, optimizer


def predicted(**step):
    return predict(count(tiny.mlp(), tiny.loss, tiny.batch()), Step(**step), GIVEN)


def names(content):
    """Of the changes; where bf16 is faster, it is one of them."""
    return [entry["name"] for entry in content["changes"] if "precision auto" not in entry["name"]]


# ---- from Python -----------------------------------------------------------------------------------------------------


def test_any_model_is_advised_on(advised):
    content = advised[0].content
    assert content["recipe"] == "Sequential"
    assert (content["parameters"], content["micro_batch"], content["accumulate"]) == (8 * 16 + 16 + 16 * 4 + 4, 32, 1)
    assert content["precision"] == "fp32"
    assert content["prediction"]["flops"] == 2 * 32 * (8 * 16 * 2 + 16 * 4 * 3)
    assert content["memory"]["parts"]["optimizer"] == 8 * content["parameters"]
    assert content["check"]["turns"] >= 3
    ms = content["check"]["milliseconds"]
    assert content["errors"]["time"] == pytest.approx(1e3 * content["prediction"]["seconds"] / ms["median"] - 1)
    assert content["errors"]["memory"] is None
    assert names(content)[:2] == ["micro-batch 64", "micro-batch 128"]
    assert f"{names(content)[0]}: " in str(advised[0])
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_the_model_and_its_optimizer_stay_as_they_were(advised):
    _, model, optimizer = advised
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not optimizer.state
    assert type(optimizer) is torch.optim.AdamW
    assert type(model[0]) is nn.Linear


def test_the_text_names_prediction_check_bottleneck_changes_and_devices(advised):
    lines = str(advised[0]).splitlines()
    assert lines[0] == "Sequential: 212 parameters, 32 samples a step (1 x 32 samples), fp32"
    labels = [line.split()[0] for line in lines[2:] if line and not line.startswith(" ")]
    assert labels == [
        "predicted", "memory", "energy", "checked", "passes", "bottleneck", "change", "data", "devices"
    ]  # fmt: skip
    assert isinstance(advised[0].prediction, Prediction)


def test_a_model_that_gives_its_loss_and_a_dictionary_of_inputs(quiet):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x, scale):
            return self.layer(x).sum() * scale

    found = fullstride.advise(
        Model(), {"x": torch.zeros(3, 4), "scale": 2.0}, precision="fp32", threads=1, seconds=0, changes=False
    )
    assert found.content["micro_batch"] == 3
    assert found.content["check"] is None
    assert "not by a run: a prediction alone" in str(found)
    assert found.content["energy"] == {"measured": False, "why": "no short run was made"}


def test_a_loss_of_ones_own_and_micro_batches(quiet):
    def batch_loss(model, batch):
        return model(batch["x"]).square().mean()

    found = fullstride.advise(
        nn.Linear(4, 2), {"x": torch.zeros(8, 4)}, batch_loss=batch_loss, accumulate=2, precision="fp32", threads=1,
        seconds=0.001, optimizer=None,
    )  # fmt: skip
    assert found.content["accumulate"] == 2
    assert names(found.content) == ["micro-batch 16, accumulate 1"]


def test_code_that_looks_at_values_is_advised_on_too(quiet):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x):
            return self.layer(x) if float(x.sum()) > 0 else x[:, :1]

    found = fullstride.advise(
        Model(), (torch.ones(3, 4), torch.ones(3, 1)), F.mse_loss, precision="fp32", threads=1, seconds=0, changes=False
    )
    assert found.content["prediction"]["flops"] == 2 * 2 * 3 * 4


def test_another_device_is_measured_against_the_cpu(quiet, monkeypatch):
    """The CPU stands in for it."""
    monkeypatch.setattr(devices, "found", lambda: torch.device("cpu"))
    monkeypatch.setattr(devices, "_SECONDS", 0.01)
    monkeypatch.setattr(devices, "COMPILER", "eager")
    found = fullstride.advise(
        tiny.mlp(), tiny.batch(), F.cross_entropy, precision="fp32", threads=1, seconds=0, changes=False
    )
    assert [row["samples"] for row in found.content["devices"]["rows"]] == [8, 16, 32, 64]
    assert all(row["cpu_seconds"] > 0 for row in found.content["devices"]["rows"])
    assert "devices     cpu: a launch takes " in str(found)


@pytest.mark.parametrize(
    ("changed", "error", "line"),
    [
        ({"model": 3}, TypeError, "model: expected an nn.Module, got int"),
        ({"model": nn.ReLU()}, ValueError, "model: expected parameters to train, got none"),
        ({"batch_loss": tiny.loss}, ValueError, "advise: expected loss or batch_loss, got both"),
        ({"loss": lambda y, t: y}, ValueError, r"expected one number as loss, got a tensor of shape \(32, 4\)"),
        ({"batch": (1, 2)}, ValueError, "batch: expected tensors, got none"),
        ({"seconds": -1}, ValueError, "seconds: expected 0 or more, got -1"),
        ({"carbon": -1}, ValueError, "carbon: expected grams of CO2 a kWh, 0 or more, got -1"),
        ({"precision": "fp8"}, ValueError, "precision: expected one of auto, fp32, bf16, fp16, got 'fp8'"),
        ({"optimizer": torch.optim.Rprop([torch.zeros(1)])}, ValueError, "optimizer: expected one of adamw, adam"),
        ({"batch": (torch.zeros(2, 9), torch.zeros(2).long())}, ValueError, "the batch does not go through the model"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(changed, error, line, quiet):
    arguments = {"model": tiny.mlp(), "batch": tiny.batch(), "loss": F.cross_entropy, "seconds": 0} | changed
    with pytest.raises(error, match=line):
        fullstride.advise(**arguments)


def test_a_prepared_model_is_refused(quiet):
    model, _ = fullstride.prepare(tiny.mlp(), precision="fp32", threads=1)
    with pytest.raises(ValueError, match="advise: expected a plain model, got a prepared one"):
        fullstride.advise(model, tiny.batch(), F.cross_entropy)


def test_an_optimizer_is_known_by_what_it_moves():
    weights = [torch.zeros(1, requires_grad=True)]
    assert any_model._as_fields(torch.optim.SGD(weights, lr=0.1)).momentum == 0
    lamb = fullstride.optim.Lookahead(fullstride.optim.Lamb(weights, state_precision="bf16"))
    found = any_model._as_fields(lamb)
    assert (found.name, found.state_precision, found.lookahead) == ("lamb", "bf16", True)


def test_rates_of_a_busy_machine_are_said_to_be_such(advised):
    content = advised[0].content
    line = "others used this machine meanwhile (load 7.0)"
    assert line in str(advice.Advice(content | {"busy": 7.0}))
    assert "others used" not in str(advice.Advice(content | {"busy": None}))


# ---- energy ----------------------------------------------------------------------------------------------------------


def test_energy_is_the_power_of_the_run_times_the_predicted_time():
    found = predicted()
    content = advice._energy(found, CHECKED, 32, carbon=400.0)
    joules = 50 * found.seconds
    assert content == pytest.approx({
        "measured": True, "watts": 50.0, "joules": joules, "joules_a_sample": joules / 32,
        "carbon_grams": joules / 3.6e6 * 400, "grams_a_kwh": 400.0,
    })  # fmt: skip
    assert any("g of CO2 a step, at 400 g a kWh" in line for line in text.energy(content))


def test_without_a_meter_there_is_neither_energy_nor_carbon():
    checked = CHECKED | {"watts": None, "energy": "unavailable: this system has no /sys/class/powercap"}
    content = advice._energy(predicted(), checked, 32, carbon=400.0)
    assert content == {"measured": False, "why": "this system has no /sys/class/powercap"}
    assert text.energy(content) == ["not measured: this system has no /sys/class/powercap"]


def test_carbon_is_not_guessed():
    assert "carbon_grams" not in advice._energy(predicted(), CHECKED, 32, carbon=None)


@pytest.mark.parametrize(("joules", "watts"), [(3.0, 3.0 / 0.5), (None, None)])
def test_the_power_is_that_of_the_steps_alone(monkeypatch, joules, watts):
    class Meter:
        label = "measured"

        def read(self):
            return joules

    monkeypatch.setattr(energy, "Meter", Meter)
    found = check._turns(lambda count: [0.5] * count, first=0.5, most=1, seconds=0.1)
    assert found["watts"] == watts
    assert (found["turns"], found["steps"]) == (3, 1)
    assert found["milliseconds"] == {"median": 500, "lowest": 500, "highest": 500}


# ---- bottleneck and changes ------------------------------------------------------------------------------------------


def test_the_bottleneck_is_the_kind_with_the_largest_share():
    content = advice._bottleneck(predicted(update_bytes=10**9), None)
    assert (content["kind"], content["limit"]) == ("optimizer", "bandwidth")
    assert content["share"] > 0.9
    assert content["of_limit"] == pytest.approx(1.0)
    lines = text.bottleneck({"bottleneck": content, "check": None})
    assert lines[0].startswith("the optimizer's pass: ")
    assert "bound by the bandwidth of the memory and at 100 % of it" in lines[0]


def candidates(config, precision="fp32", memory=1, **step):
    return [change.options for change in changes.candidates(config, precision, predicted(**step), memory, 100)]


def test_several_micro_batches_are_made_fewer_and_larger():
    assert candidates(tiny.config(accumulate=8), "bf16") == [
        "--micro-batch 64 --accumulate 4", "--micro-batch 128 --accumulate 2"
    ]  # fmt: skip
    assert candidates(tiny.config(accumulate=3), "bf16") == ["--micro-batch 96 --accumulate 1"]


def test_an_optimizer_that_takes_long_gets_fewer_updates_and_smaller_states():
    found = candidates(tiny.config(), "bf16", update_bytes=10**9)
    assert found == [
        "--micro-batch 64", "--micro-batch 128", "--accumulate 4", "--optimizer.state-precision bf16"
    ]  # fmt: skip
    sgd = tiny.config(optimizer=Optimizer(name="sgd"))
    assert "--optimizer.state-precision bf16" not in candidates(sgd, "bf16", update_bytes=10**9)


def test_memory_that_does_not_suffice_comes_first():
    assert candidates(tiny.config(), "bf16", memory=95) == ["--micro-batch 16 --accumulate 2"]
    found = [options for options in candidates(tiny.config(), memory=95) if "precision" not in options]  # by machine
    assert found == ["--activations bf16", "--micro-batch 16 --accumulate 2"]


def test_a_change_that_does_not_pay_is_said_to_be_one():
    entry = {"options": "--a 1", "why": "b", "trouble": "", "gain": 0.9, "memory": 1, "fits": True}
    assert text.change_line(entry | {"saves_memory": False}) == (
        "--a 1: would not pay, 0.90x samples a second, predicted"
    )
    assert text.change_line(entry | {"saves_memory": True}).endswith("; about 1 bytes; b")
    assert text.change_line(entry | {"trouble": "no", "name": "a 1"}, as_options=False) == "a 1: cannot be: no"


def test_an_error_beyond_the_goal_is_named():
    content = {"check": CHECKED, "errors": {"time": -0.3, "memory": 0.1}}
    assert text.checked(content)[1:] == [
        "  the predicted time is 30.0 % too low, more than the 20 % that were aimed at",
        "  1000 bytes held at most: the predicted memory is 10.0 % too high",
    ]
