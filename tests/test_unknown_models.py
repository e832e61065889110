"""Models that nobody adapted train under prepare() as they do in stock fp32 PyTorch.

Same weights, same data, AdamW on both sides; the losses of every step are compared. The bands leave room for the
rounding of other machines, not for a wrong gradient.
"""

from functools import cache

import pytest
import torch

import fullstride
from tests.rewriting.models import CASES

NUM_STEPS = 100
BANDS = {"fp32": 1e-4, "bf16": 5e-2}
"""How far a step's loss may be from that of stock fp32 PyTorch, as a share of the first loss. Measured: up to 7e-6
(ResNet, LSTM) and 1.6e-2 (LSTM, ViT)."""


@pytest.fixture(autouse=True)
def _one_thread(num_threads, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_QUIET", "1")
    num_threads(1)  # the models are too small for more


def train(case, model, optimizer, steps):
    batches = case.make_batches()
    losses = []
    for step in steps:
        loss = case.loss(model, batches[step % len(batches)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def make(name):
    model = CASES[name].make_model()
    return model, torch.optim.AdamW(model.parameters(), lr=CASES[name].learning_rate)


@cache
def stock_losses(name):
    model, optimizer = make(name)
    return train(CASES[name], model, optimizer, range(NUM_STEPS))


def assert_follows(losses, name, steps, precision):
    stock = stock_losses(name)
    torch.testing.assert_close(losses, stock[steps], rtol=0, atol=BANDS[precision] * stock[0].item())


@pytest.mark.parametrize("name", CASES)
def test_stock_pytorch_learns(name):
    """Otherwise there is nothing to follow."""
    losses = stock_losses(name)
    assert losses[-4:].mean() < 0.75 * losses[:4].mean()


@pytest.mark.parametrize("precision", BANDS)
@pytest.mark.parametrize("name", CASES)
def test_loss_follows_stock_fp32(name, precision):
    model, optimizer = fullstride.prepare(*make(name), precision=precision, threads=1)
    losses = train(CASES[name], model, optimizer, range(NUM_STEPS))
    assert_follows(losses, name, slice(NUM_STEPS), precision)


@pytest.mark.parametrize("precision", BANDS)
@pytest.mark.parametrize("name", CASES)
def test_restored_weights_continue_in_stock_pytorch(name, precision):
    model, optimizer = fullstride.prepare(*make(name), precision=precision, threads=1)
    train(CASES[name], model, optimizer, range(20))
    trained = model.state_dict()
    restored = fullstride.restore(model)
    assert restored is model
    stock = CASES[name].make_model()
    assert [type(m) for m in model.modules()] == [type(m) for m in stock.modules()]
    assert not any("forward" in m.__dict__ for m in model.modules())
    assert {key: t.dtype for key, t in trained.items()} == {key: t.dtype for key, t in stock.state_dict().items()}
    assert all(torch.equal(t, trained[key]) for key, t in model.state_dict().items())
    losses = train(CASES[name], model, optimizer.to_torch(), range(20, 30))
    assert_follows(losses, name, slice(20, 30), precision)


@pytest.mark.parametrize("precision", BANDS)
@pytest.mark.parametrize("name", ["llama", "whisper"])
def test_gradient_checkpointing_follows_stock_fp32(name, precision):
    model, optimizer = make(name)
    model.gradient_checkpointing_enable()
    model, optimizer = fullstride.prepare(model, optimizer, precision=precision, threads=1)
    losses = train(CASES[name], model, optimizer, range(10))
    assert_follows(losses, name, slice(10), precision)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch.compile looks at it
def test_compiled_after_prepare_follows_stock_fp32():
    """GPT-2, whose code breaks the graph of torch.compile in the middle."""
    model, optimizer = fullstride.prepare(*make("gpt2"), precision="fp32", threads=1)
    losses = train(CASES["gpt2"], torch.compile(model, backend="eager"), optimizer, range(4))
    assert_follows(losses, "gpt2", slice(4), "fp32")
