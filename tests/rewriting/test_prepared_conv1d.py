"""Convolutions in a prepared model: the feed-forward block of FastSpeech 2, trained as without prepare()."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullstride
from fullstride.nn.conv1d import Conv1d

pytestmark = pytest.mark.usefixtures("quiet")


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.narrow = nn.Conv1d(48, 96, 5, padding=2), nn.Conv1d(96, 48, 1)
        self.norm = nn.LayerNorm(48)

    def forward(self, x):
        hidden = F.relu(self.wide(x.transpose(1, 2)))
        return self.norm(self.narrow(hidden).transpose(1, 2) + x)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(FeedForward(), FeedForward())
        self.strided = nn.Conv1d(48, 8, 3, stride=2)

    def forward(self, x):
        return self.strided(self.blocks(x).transpose(1, 2))


X, TARGET = torch.randn(2, 6, 80, 48, generator=torch.Generator().manual_seed(1))


def train(model, optimizer, steps=12, accumulation=2):
    losses = []
    for _ in range(steps):
        for part in range(accumulation):
            x, target = X[part::accumulation], TARGET[part::accumulation, ::2, :8].mT[..., :39]
            loss = F.mse_loss(model(x), target)
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def make():
    model = Stack()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


@pytest.mark.parametrize(("precision", "band"), [("fp32", 1e-4), ("bf16", 2e-2)])
def test_losses_follow_stock_pytorch(precision, band):
    stock = train(*make())
    ours = train(*fullstride.prepare(*make(), precision=precision))
    assert max(abs(a - b) for a, b in zip(stock, ours, strict=True)) < band
    assert ours[-1] < ours[0] - 0.05


def test_our_kernel_runs_the_convolutions_and_explain_says_so():
    model, optimizer = fullstride.prepare(*make(), precision="bf16")
    text = str(fullstride.explain(model, trace=lambda: train(model, optimizer, steps=1)))
    assert "4 x Conv1d: fullstride.nn.Conv1d (class_swap)" in text
    assert "2 x FeedForward: Conv1d + ReLU, residual + LayerNorm (fusion)" in text
    assert "stride is 2; the kernel takes 1" in text
    assert "aten::convolution_backward" in text  # of the strided one
    assert text.count("aten::conv1d") == 1


def test_weights_are_split_and_saved_exactly_and_restored():
    model, optimizer = make()
    before = copy.deepcopy(model.state_dict())
    model, optimizer = fullstride.prepare(model, optimizer, precision="bf16")
    assert type(model.blocks[0].wide) is Conv1d
    assert model.blocks[0].wide.weight.dtype is torch.bfloat16
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    train(model, optimizer, steps=2)
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    assert not torch.equal(trained["blocks.0.wide.weight"], before["blocks.0.wide.weight"])
    model.load_state_dict(trained)
    fullstride.restore(model)
    assert type(model.blocks[0].wide) is nn.Conv1d
    assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())


def test_the_operations_of_a_plain_and_a_restored_model_are_counted_alike():
    model, optimizer = make()
    before = fullstride.flops(model, X)
    fullstride.restore(fullstride.prepare(model, optimizer, precision="bf16")[0])
    assert fullstride.flops(model, X) == before
    assert before.convolutions > 2 * 6 * 80 * 2 * (48 * 96 * 5 + 96 * 48)


def test_it_compiles_to_torchs_convolution():
    model, _ = make()
    expected = model(X)
    fullstride.prepare(model, precision="fp32")
    compiled = torch.compile(model.blocks[0].wide, backend="eager", fullgraph=True)
    y = F.relu(compiled(X.transpose(1, 2)))
    torch.testing.assert_close(y, F.relu(model.blocks[0].wide(X.transpose(1, 2))), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(X), expected, rtol=1e-3, atol=1e-4)
