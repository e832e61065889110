"""Rates that are measured: of real products, for real, with nothing said of how fast they are."""

import json

import pytest
import torch
from torch import nn

from fullstride import runtime
from fullstride.backends import choosing
from fullstride.machine import streams
from fullstride.studies.advise import overhead, rates, replay
from fullstride.studies.advise.calls import Call, Form
from fullstride.studies.advise.rates import Measured, interpolated
from fullstride.studies.advise.watching import count

from . import tiny


def total(model, x):
    return model(x).float().sum()


def replayed(model, x, dtype=None, adds=False):
    """Seconds of every kind of product of the model."""
    calls = {call.key: call for call in count(model, total, x, dtype).calls if call.is_product}
    with replay.setting("bf16" if dtype else "fp32", 1):
        return {key: replay.timed(call, dtype, adds, seconds=0.001) for key, call in calls.items()}


class Conv(nn.Module):
    def __init__(self, kind, activates):
        super().__init__()
        self.conv, self.activates = kind(4, 8, 3, padding=1), activates

    def forward(self, x):
        y = self.conv(x.transpose(1, 2) if x.dim() == 3 else x)
        return torch.relu(y) if self.activates else y


class Times(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 5))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize(
    ("model", "x"),
    [
        pytest.param(tiny.Layer, torch.zeros(2, 4, 16), id="layer"),
        pytest.param(lambda: Conv(nn.Conv1d, True), torch.zeros(2, 9, 4), id="conv1d"),
        pytest.param(lambda: Conv(nn.Conv2d, False), torch.zeros(2, 4, 5, 5), id="conv2d"),
        pytest.param(lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU()), torch.zeros(4, 8), id="gelu"),
        pytest.param(Times, torch.zeros(3, 6), id="matmul"),
    ],
)
def test_every_product_can_be_run_alone(model, x, dtype, quiet):
    found = replayed(model(), x, dtype)
    assert found
    for times in found.values():
        assert times is not None
        assert times[0] > 0
        assert times[1] >= 0


def test_a_large_head_is_run_with_its_loss(quiet):
    x, weight = Form((6, 8), torch.float32, (8, 1)), Form((4096, 8), torch.float32, (8, 1))
    call = Call("linear_cross_entropy", "head", {"x": x, "weight": weight}, wants=frozenset({"x", "weight"}))
    with replay.setting("fp32", 1):
        assert replay.timed(call, None, seconds=0.001)[0] > 0


def test_what_torch_calls_by_itself_is_not_run_alone(quiet):
    x = Form((2, 2, 4, 8), torch.float32, (64, 32, 8, 1))
    call = Call("attention", "-", {"x0": x}, {"y0": x}, flops=3_000_000, is_of_torch=True)
    measured = Measured(None, peak=1.0)
    with replay.setting("fp32", 1):
        assert measured.seconds(call) == (0.003, 0.0)  # at the peak
    assert measured.unknown == {call.key}


def test_products_are_measured_once_and_kept_as_json(quiet):
    counted = count(tiny.mlp(), tiny.loss, tiny.batch())
    measured = Measured(None, peak=1e-9)
    with replay.setting("fp32", 1):
        measured.measure(counted.calls, (False, True))
    assert len(measured.products) == 4
    assert sum("adding" in key for key in measured.products) == 2
    assert measured.peak > 1e-9  # one of them has reached more
    again = Measured.from_json(json.loads(json.dumps(measured.as_json())), None)
    assert again == measured
    call = next(call for call in counted.calls if call.is_product)
    assert again.seconds(call) == tuple(measured.products[call.key])  # outside of a prepared process: not measured


def test_the_process_is_as_it_was(quiet, num_threads):
    num_threads(2)
    with replay.setting("fp32", 1) as precision:
        assert (precision, torch.get_num_threads()) == ("fp32", 1)
        assert runtime.current().users
    assert torch.get_num_threads() == 2
    assert not runtime.current().users


def test_nothing_is_said_while_probing(capfd, monkeypatch):
    monkeypatch.delenv("FULLSTRIDE_QUIET", raising=False)
    with replay.setting("fp32", 1):
        pass
    assert capfd.readouterr() == ("", "")


def test_a_precision_that_cannot_be_is_refused(quiet):
    with pytest.raises(ValueError, match="precision"), replay.setting("fp8"):
        pass


def test_a_call_costs_something(quiet):
    with replay.setting("fp32", 1):
        peak = choosing.choose("fp32").peak("fp32")
        assert 0 <= overhead.measure("fp32", None, peak) < 0.1
        assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("size", "rate"),
    [(50, 5.0), (100, 10.0), (1000, 20.0), (10_000, 40.0), (1e9, 40.0)],
)
def test_between_sizes_the_bandwidth_goes_along_a_line_of_logarithms(size, rate):
    """Below the smallest the time of a call stays."""
    assert interpolated([[100.0, 10.0], [10_000.0, 40.0]], size) == pytest.approx(rate)


def test_a_curve_rises_in_size_to_beyond_the_caches(monkeypatch):
    small = torch.ones(3, 1 << 20)
    monkeypatch.setattr(streams, "_buffer", small.__getitem__)
    streams.stream.cache_clear()
    try:
        found = rates.curve("write", seconds=0.0)
    finally:
        streams.stream.cache_clear()
    sizes = [size for size, _ in found]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 3 * 4 * (1 << 20)
    assert all(rate > 0 for _, rate in found)
