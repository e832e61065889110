"""Another device against the CPU, for real, with the CPU in the place of the other."""

import pytest
import torch
from torch import nn

from fullstride.studies.advise import devices
from fullstride.studies.advise.devices import Trained, compare, crossover, lines

from . import tiny

CPU = torch.device("cpu")


def batches(*sizes):
    return {size: (torch.zeros(size, 8), torch.zeros(size, dtype=torch.int64)) for size in sizes}


@pytest.fixture(scope="module")
def compared():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "COMPILER", "eager")  # the other compiles C++ for half a minute
        other = Trained(tiny.mlp(), tiny.loss, CPU)
        return compare(lambda batch: 1e-9 * len(batch[0]) ** 3, other, batches(64, 8, 32))


def test_a_device_is_measured_part_by_part(compared):
    assert compared["device"] == "cpu"
    assert compared["launch_seconds"] > 0
    assert compared["synchronise_seconds"] >= 0
    assert compared["to_device_gbs"] > 0
    assert compared["from_device_gbs"] > 0
    assert compared["compile_seconds"] >= 0
    assert [row["samples"] for row in compared["rows"]] == [8, 32, 64]
    assert all(row["device_seconds"] > 0 for row in compared["rows"])


def test_the_model_of_the_caller_is_not_trained():
    model = tiny.mlp()
    before = [parameter.clone() for parameter in model.parameters()]
    other = Trained(model, tiny.loss, CPU)
    other.step(batches(8)[8])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(other.model.parameters(), before, strict=True))


def test_a_device_that_cannot_is_named(monkeypatch):
    monkeypatch.setattr(devices, "COMPILER", "nobody's")

    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x):
            if len(x) > 8:
                raise RuntimeError("out of memory\nand more")
            return self.layer(x)

    found = compare(lambda batch: 1.0, Trained(Broken(), tiny.loss, CPU), batches(8, 16, 32))
    assert [row["samples"] for row in found["rows"]] == [8]
    assert found["trouble"] == "16 samples: out of memory"
    assert "not measured: 16 samples: out of memory" in lines(found)
    assert found["compile_seconds"] is None
    assert lines(found)[1].startswith("torch.compile does not work there: ")


@pytest.mark.parametrize(
    ("rows", "size"),
    [
        ([(8, 1.0, 2.0), (32, 4.0, 2.0)], 16.0),  # half as fast, then twice: the middle of the logarithms
        ([(8, 1.0, 2.0), (16, 1.0, 1.0), (32, 2.0, 1.0)], 16.0),
        ([(8, 3.0, 2.0), (32, 8.0, 2.0)], 8.0),
        ([(8, 1.0, 2.0), (32, 1.9, 2.0)], None),
        ([(8, 3.0, 2.0), (32, 1.0, 2.0)], None),
        ([], None),
    ],
)
def test_the_crossover_lies_where_the_curves_meet(rows, size):
    assert crossover(rows) == (None if size is None else pytest.approx(size))


def test_the_text_names_the_parts_and_the_crossover(compared):
    found = lines(compared | {"crossover": 12.0})
    assert found[0].startswith("cpu: a launch takes ")
    assert "torch.compile takes" in found[1]
    assert found[2].startswith("8 samples: CPU 0.000512 ms, cpu ")
    assert found[-1] == "crossover: cpu is faster from a micro-batch of about 12 samples on"
    assert lines(compared | {"crossover": None})[-1].startswith("no crossover: the CPU is faster")


def test_without_a_device_none_is_found(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert devices.found() is None
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.found() == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.found() == torch.device("cuda")
