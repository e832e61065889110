"""The gradient of a table that is both embedding and head: summed in one place, and the same as ever."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullstride
from fullstride.ops import embedding as embedding_op


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(5000, 16)
        self.head = nn.Linear(16, 5000, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, targets):
        return F.cross_entropy(self.head(self.embedding(tokens)).flatten(0, 1), targets.flatten())


def tied_gradients(model, steps=1):
    """Of one or several micro-batches."""
    for seed in range(steps):
        generator = torch.Generator().manual_seed(seed)
        tokens, targets = torch.randint(5000, (2, 3, 8), generator=generator)
        model(tokens, targets).backward()
    return model.head.weight.grad.float()


@pytest.fixture
def tables(monkeypatch):
    """For each backward of an embedding: whether it added to the gradient that was there."""
    seen, original = [], embedding_op._sum_rows

    def record(*args, accumulate):
        seen.append(accumulate)
        original(*args, accumulate=accumulate)

    monkeypatch.setattr(embedding_op, "_sum_rows", record)
    return seen


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_tied_embedding_adds_its_rows_to_the_gradient_of_the_head(precision, steps, tables):
    expected = tied_gradients(Tied(), steps)
    model = Tied()
    fullstride.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), precision=precision)
    gradient = tied_gradients(model, steps)
    assert (gradient - expected).norm() < (1e-5 if precision == "fp32" else 2**-6) * expected.norm()
    assert tables == [True] * steps


def test_adding_to_a_tied_gradient_that_backward_needs_is_noticed(tables):
    model = Tied()
    fullstride.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32")
    leaf = torch.ones(16, requires_grad=True)
    products = []

    @torch.enable_grad()
    def use_gradient(_):
        """After the head has given its gradient, before the embedding adds to it."""
        assert model.head.weight.grad is not None
        products.append((leaf * model.head.weight.grad).sum())

    tokens = torch.arange(24).view(3, 8)
    hidden = model.embedding(tokens)
    hidden.register_hook(use_gradient)
    F.cross_entropy(model.head(hidden).flatten(0, 1), tokens.flatten()).backward()
    assert tables == [True]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        products[0].backward()


def test_somebody_who_watches_the_tied_gradient_sees_all_of_it(tables):
    expected = tied_gradients(Tied())
    model = Tied()
    seen: list[torch.Tensor] = []
    fullstride.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32")
    model.head.weight.register_hook(seen.append)
    tied_gradients(model)
    torch.testing.assert_close(seen[0], expected)
    assert tables == [False]


def test_a_tied_gradient_that_was_given_away_is_not_used_twice():
    model = Tied()
    fullstride.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32")
    tokens = torch.arange(24).view(3, 8)
    logits = model.head(model.embedding(tokens))
    logits.retain_grad()
    F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward(retain_graph=True)
    once, dlogits = model.head.weight.grad.clone(), logits.grad
    logits.backward(dlogits)
    torch.testing.assert_close(model.head.weight.grad, 2 * once)
