"""A script as timm's, with timm's own averages of weights: those of a bf16 run are of the exact fp32 weights."""

import copy

import pytest
import torch

import fullstride

from .small_module import loss_of, make_loader, make_net
from .timm_alone import import_model_ema

pytestmark = pytest.mark.usefixtures("quiet", "one_thread")
DECAY = 0.9


@pytest.fixture
def model_ema(monkeypatch):
    return import_model_ema(monkeypatch)


def train(net, optimizer, update, epochs=2):
    """The exact state after each step: what restore() would give."""
    seen = []
    for batch in [batch for _ in range(epochs) for batch in make_loader()]:
        loss_of(net, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        update(net)
        seen.append(fullstride.restore(copy.deepcopy(net)).state_dict())
    return seen


def prepared():
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    return fullstride.prepare(net, optimizer, precision="bf16", threads=1)


def followed(make, start, seen):
    """The same class of averages over an ordinary fp32 model that is given those states, one after the other."""
    net = make_net()
    net.load_state_dict(start)
    ema = make(net)
    for state in seen:
        net.load_state_dict(state)
        ema.update(net)
    return ema.module.state_dict()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("ModelEmaV3", {}, id="V3"),
        pytest.param("ModelEmaV3", {"foreach": False}, id="V3 one by one"),
        pytest.param("ModelEmaV3", {"use_warmup": True}, id="V3 with warm-up"),
        pytest.param("ModelEmaV2", {}, id="V2"),
    ],
)
def test_averages_are_those_of_whole_weights(name, options, model_ema):
    def make(net):
        return getattr(model_ema, name)(net, decay=DECAY, **options)

    net, optimizer = prepared()
    start = copy.deepcopy(net).state_dict()
    ema = make(net)
    seen = train(net, optimizer, ema.update)
    average = ema.module.state_dict()
    assert net[0].weight.dtype is torch.bfloat16
    assert all(torch.equal(value, average[key]) for key, value in followed(make, start, seen).items())
    assert ema.module(torch.zeros(2, 16)).isfinite().all()


def test_averages_that_read_parameters_are_exact_inside_whole_weights(model_ema):
    def make(net):
        return model_ema.ModelEmaV3(net, decay=DECAY, exclude_buffers=True)

    def update(net):
        with fullstride.whole_weights(net):
            ema.update(net)

    net, optimizer = prepared()
    start = copy.deepcopy(net).state_dict()
    ema = make(net)
    average = ema.module.state_dict()
    seen = train(net, optimizer, update)
    assert all(torch.equal(value, average[key]) for key, value in followed(make, start, seen).items())


def test_an_average_is_saved_and_goes_on_exactly(model_ema):
    net, optimizer = prepared()
    ema = model_ema.ModelEmaV3(net, decay=DECAY)
    train(net, optimizer, ema.update)
    saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "ema": ema.state_dict()}
    saved = copy.deepcopy(saved)
    train(net, optimizer, ema.update)

    other, other_optimizer = prepared()
    other_ema = model_ema.ModelEmaV3(other, decay=DECAY)
    other.load_state_dict(saved["model"])
    other_optimizer.load_state_dict(saved["optimizer"])
    other_ema.load_state_dict(saved["ema"])
    train(other, other_optimizer, other_ema.update)
    expected = ema.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in other_ema.state_dict().items())
