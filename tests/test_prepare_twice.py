"""Prepared models whose gradients are differentiated again: penalties, Hessians, forces inside of a forward."""

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import fullstride
from tests.rewriting.models import CASES

TOLERANCES = {"fp32": 1e-5, "bf16": 0.1}
"""Of the norm of all gradients together. Measured: up to 8e-7 (tied weights) and 0.05 (ResNet), others below 0.02."""


@pytest.fixture(autouse=True)
def _one_thread(num_threads, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_QUIET", "1")
    num_threads(1)  # the models are too small for more


def penalised(case, model):
    """The gradient of loss + |gradient of the loss|^2 for all parameters, as one vector."""
    params = [p for p in model.parameters() if p.requires_grad]
    with sdpa_kernel(SDPBackend.MATH):  # torch's fast attention has no second derivative
        loss = case.loss(model, case.make_batches()[0])
        gradients = torch.autograd.grad(loss, params, create_graph=True)
        (loss + sum(g.float().square().sum() for g in gradients)).backward()
    return torch.cat([p.grad.float().flatten() for p in params])


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("name", CASES)
def test_a_penalty_on_gradients_has_the_gradient_of_stock(name, precision):
    case = CASES[name]
    model = case.make_model()
    torch.manual_seed(0)
    expected = penalised(case, model)
    model = case.make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model, _ = fullstride.prepare(model, optimizer, precision=precision, threads=1)
    torch.manual_seed(0)
    actual = penalised(case, model)
    assert (actual - expected).norm() <= TOLERANCES[precision] * expected.norm()


def test_a_critic_is_penalised_for_the_gradient_of_its_input():
    """As in WGAN-GP. Of the gradient for the input of a linear critic only the weights are to blame."""

    def gradients(model):
        x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        score = model(x).mean()
        (gradient,) = torch.autograd.grad(score, x, create_graph=True)
        (score + (gradient.norm(dim=-1) - 1).square().mean()).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
    expected = gradients(critic)
    critic.zero_grad()
    critic, _ = fullstride.prepare(critic, torch.optim.AdamW(critic.parameters()), precision="fp32")
    torch.testing.assert_close(gradients(critic), expected)


class Forces(nn.Module):
    """Differentiates inside of its forward, as potentials of molecules do."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.LayerNorm(16), nn.Linear(16, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        energy = F.gelu(self.energy(x))
        return torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("precision", TOLERANCES)
def test_a_model_that_returns_a_gradient_can_be_trained(precision):
    def gradients(model):
        model(torch.linspace(-1, 1, 24).view(4, 6)).square().sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    torch.manual_seed(0)
    model = Forces()
    expected = gradients(model)
    model.zero_grad()
    model, _ = fullstride.prepare(model, torch.optim.AdamW(model.parameters()), precision=precision)
    assert (gradients(model) - expected).norm() <= TOLERANCES[precision] * expected.norm()


class Head(nn.Module):
    """With logits that nobody computes unless somebody looks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4096, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4096)

    def forward(self, tokens, again=lambda block, x: block(x)):
        return self.head(again(self.mix, self.embed(tokens)))


def hessian_product(model, again=None):
    tokens = torch.arange(40).view(4, 10)
    logits = model(tokens) if again is None else model(tokens, again)
    loss = F.cross_entropy(logits.view(-1, 4096), tokens.view(-1), ignore_index=3)
    params = list(model.parameters())
    gradients = torch.autograd.grad(loss, params, create_graph=True)
    products = torch.autograd.grad(gradients, params, [torch.ones_like(g) for g in gradients])
    return torch.cat([p.flatten() for p in products])


@pytest.mark.parametrize("ties", [False, True])
def test_a_hessian_product_goes_through_lazy_logits(ties):
    torch.manual_seed(0)
    model = Head()
    if ties:
        model.head.weight = model.embed.weight
    expected = hessian_product(model)
    model, _ = fullstride.prepare(model, torch.optim.AdamW(model.parameters()), precision="fp32")
    assert "LazyHead" in str(fullstride.explain(model))
    torch.testing.assert_close(hessian_product(model), expected, rtol=1e-3, atol=1e-6)


def test_a_hessian_product_goes_through_checkpoints():
    torch.manual_seed(0)
    model = Head()
    expected = hessian_product(model)
    model, _ = fullstride.prepare(model, torch.optim.AdamW(model.parameters()), precision="fp32")

    def again(block, x):
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)

    torch.testing.assert_close(hessian_product(model, again), expected, rtol=1e-3, atol=1e-6)
