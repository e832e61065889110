"""The formula, with rates that are given: every term by hand."""

import json

import pytest
import torch
from torch import nn

from fullstride.studies.advise.calls import Call, Counted, Form
from fullstride.studies.advise.prediction import (
    BANDWIDTH,
    CALLS,
    COMPUTE,
    OPTIMIZER,
    OVERHEAD,
    PASSES,
    PRODUCTS,
    Prediction,
    Step,
    predict,
)
from fullstride.studies.advise.rates import Given
from fullstride.studies.advise.watching import count

from . import tiny

RATES = Given(gflops=1e-3, gbs={"read": 2e-3, "write": 4e-3, "update": 8e-3}, overhead=1e-5)  # 1 MFLOP/s, MB/s


def counted(*calls, num_asked=0):
    return Counted(tuple(calls), num_asked)


def norm():
    form = Form((10, 10), torch.float32, (10, 1))
    return Call("layer_norm", "a.norm", {"x": form}, {"y": form}, wants=frozenset({"x"}))


def test_a_product_takes_its_operations_by_its_rate():
    found = predict(count(tiny.mlp(), tiny.loss, tiny.batch()), Step(), RATES)
    flops = 2 * 32 * (8 * 16 * 2 + 16 * 4 * 3)
    assert found.flops == flops
    assert found.by_kind()[PRODUCTS] == pytest.approx(flops / 1e6)


def test_a_pass_takes_its_bytes_by_the_bandwidth_of_its_mix():
    found = predict(counted(norm()), Step(), RATES)
    assert {line.phase: line.seconds for line in found.lines} == pytest.approx(
        {"forward": 800 / 4e6, "backward": 1200 / 4e6}
    )
    assert found.nbytes == 2000


def test_a_reduction_has_the_bandwidth_of_reading():
    form, number = Form((100,), torch.float32, (1,)), Form((), torch.float32, ())
    found = predict(counted(Call("sum", "-", {"x0": form}, {"y0": number})), Step(), RATES)
    assert found.seconds == pytest.approx(404 / 2e6)


def test_the_optimizer_passes_once_a_step_and_the_rest_as_often_as_there_are_micro_batches():
    step = Step(accumulate=3, update_bytes=8000, norm_bytes=2000, widened_bytes=4000)
    found = predict(counted(norm()), step, RATES)
    assert found.by_kind() == pytest.approx(
        {PASSES: 3 * 2000 / 4e6, OPTIMIZER: 8000 / 8e6 + 2000 / 2e6 + 4000 / 4e6}
    )


def test_calls_cost_their_overhead():
    found = predict(counted(norm(), num_asked=7), Step(accumulate=2, num_tensors=5), RATES)
    assert found.by_kind()[CALLS] == pytest.approx((2 * 7 + 5) * 1e-5)


def test_a_step_is_the_sum_of_its_lines():
    step = Step(accumulate=2, update_bytes=10_000)
    found = predict(count(tiny.Layer(), lambda model, x: model(x).sum(), torch.zeros(2, 4, 16)), step, RATES)
    assert found.seconds == pytest.approx(sum(line.seconds for line in found.lines))
    assert [line.seconds for line in found.lines] == sorted((line.seconds for line in found.lines), reverse=True)
    assert sum(found.by_kind().values()) == pytest.approx(found.seconds)


@pytest.mark.parametrize(("gflops", "limit"), [(1e-6, COMPUTE), (1.0, BANDWIDTH)])
def test_the_limit_is_that_which_takes_longer(gflops, limit):
    """2 * 4 * 8 * 16 operations and 4 (4 * 8 + 8 * 16 + 4 * 16) bytes."""

    class Fixed(Given):
        def seconds(self, call, adds=False):
            return 1.1 * max(1024 / gflops / 1e9, 896 / 4e6), 0.0

    call = count(nn.Linear(8, 16, bias=False), lambda model, x: model(x).detach(), torch.zeros(4, 8)).calls[0]
    (line,) = predict(counted(call), Step(), Fixed(gflops, RATES.gbs)).lines
    assert line.limit == limit
    assert line.of_limit == pytest.approx(1 / 1.1)


def test_what_comes_near_no_limit_is_bound_by_being_called():
    class Slow(Given):
        def seconds(self, call, adds=False):
            return 1.0, 0.0

    call = count(nn.Linear(8, 16, bias=False), lambda model, x: model(x).detach(), torch.zeros(4, 8)).calls[0]
    (line,) = predict(counted(call), Step(), Slow(1.0, RATES.gbs)).lines
    assert line.limit == OVERHEAD


def test_the_bandwidth_is_that_of_all_that_a_micro_batch_makes():
    class Cached(Given):
        def bandwidth(self, mix, size):
            return 4e-3 if size > 1000 else 1.0

    form = Form((50,), torch.float32, (1,))
    call = Call("tanh", "-", {"x0": form}, {"y0": form})
    few, many = (predict(counted(*[call] * number), Step(), Cached(1.0, {})) for number in (1, 10))
    assert few.seconds == pytest.approx(400 / 1e9)
    assert many.seconds == pytest.approx(10 * 400 / 4e6)


def test_gradients_are_added_in_all_micro_batches_but_the_first():
    class Adding(Given):
        def seconds(self, call, adds=False):
            return 1.0, 5.0 if adds else 3.0

    call = next(call for call in count(tiny.mlp(), tiny.loss, tiny.batch()).calls if call.name == "linear")
    found = predict(counted(call), Step(accumulate=4), Adding(1.0, RATES.gbs))
    assert {line.phase: line.seconds for line in found.lines} == {"forward": 4.0, "backward": 3.0 + 3 * 5.0}


def test_layers_of_a_stack_are_one_line():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    found = predict(count(model, lambda model, x: model(x).sum(), torch.zeros(4, 8)), Step(), RATES)
    forward = [line for line in found.lines if line.kind == PRODUCTS and line.phase == "forward"]
    assert [(line.what, line.num_calls) for line in forward] == [("linear 4 x 8 -> 8, *", 5)]


def test_a_prediction_survives_json():
    found = predict(count(tiny.mlp(), tiny.loss, tiny.batch()), Step(update_bytes=5), RATES)
    assert Prediction.from_json(json.loads(json.dumps(found.as_json()))) == found
