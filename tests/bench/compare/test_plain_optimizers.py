"""LAMB and Lookahead of stock's side: plain torch, and the same steps as ours to rounding."""

import pytest
import torch

from fullstride import optim
from fullstride.bench.compare import plain_optimizers
from tests.optim.training import parameters, run

OPTIONS = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-5, "weight_decay": 0.05}


def assert_same_weights(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, OPTIONS])
def test_a_hundred_steps_of_lamb_are_ours_to_rounding(options):
    ours, theirs = parameters(), parameters()
    run(optim.Lamb(ours, **options), ours, range(100))
    run(plain_optimizers.Lamb(theirs, **options), theirs, range(100))
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("kind", ["Lamb", "AdamW"])
def test_lookahead_is_ours_to_rounding(kind):
    ours, theirs = parameters(), parameters()
    inner = plain_optimizers.Lamb if kind == "Lamb" else torch.optim.AdamW
    run(optim.Lookahead(getattr(optim, kind)(ours, lr=0.01), 0.3, 4), ours, range(50))
    run(plain_optimizers.Lookahead(inner(theirs, lr=0.01), 0.3, 4), theirs, range(50))
    assert_same_weights(ours, theirs)


def test_weights_at_zero_get_adams_step_and_missing_gradients_none():
    zero, idle = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    zero.grad = torch.tensor([1.0, -2.0, 3.0])
    plain_optimizers.Lamb([zero, idle], lr=0.1).step()
    torch.testing.assert_close(zero.detach(), torch.tensor([-0.1, 0.1, -0.1]), rtol=1e-5, atol=0)
    assert torch.equal(idle.detach(), torch.ones(3))


def test_torch_compile_makes_the_same_steps(monkeypatch):
    def compile_without_a_compiler(function, **options):
        return original(function, backend="aot_eager", **options)

    original = torch.compile
    monkeypatch.setattr(torch, "compile", compile_without_a_compiler)
    eager, compiled = parameters(), parameters()
    run(plain_optimizers.Lamb(eager), eager, range(5))
    run(plain_optimizers.Lamb(compiled, compiled=True), compiled, range(5))
    assert_same_weights(compiled, eager)
