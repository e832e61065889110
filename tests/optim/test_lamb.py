"""LAMB through its optimizer class. torch has none: it is compared with the formula, written out."""

import pytest
import torch

from fullstride.optim import Lamb

from .training import parameters, run, set_gradients


def lamb_by_hand(p, m, v, g, t, lr=0.01, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01):
    m.mul_(beta1).add_(g, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    u = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + eps) + weight_decay * p
    ratio = p.norm() / u.norm() if p.norm() > 0 and u.norm() > 0 else 1.0
    p.sub_(lr * ratio * u)


def test_a_hundred_steps_follow_the_formula():
    params, expected = parameters(), [p.detach().double() for p in parameters()]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in expected]
    optimizer = Lamb(params)
    for step in range(100):
        set_gradients(params, step)
        for p, (m, v), ours in zip(expected, moments, params, strict=True):
            lamb_by_hand(p, m, v, ours.grad.double(), step + 1)
        optimizer.step()
    for p, ours in zip(expected, params, strict=True):
        torch.testing.assert_close(ours.detach().double(), p, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("state_precision", ["fp32", "bf16", "8bit"])
def test_the_length_of_a_step_is_lr_times_the_weight_in_every_format(state_precision):
    params = [p for p in parameters() if p.numel()]
    optimizer = Lamb(params, lr=0.1, state_precision=state_precision)
    for step in range(5):
        before = [p.detach().clone() for p in params]
        run(optimizer, params, range(step, step + 1))
        for p, old in zip(params, before, strict=True):
            assert ((p - old).norm() / old.norm()).item() == pytest.approx(0.1, rel=1e-3)


def test_maximize_goes_the_other_way():
    ups, downs = parameters(), parameters()
    run(Lamb(ups, weight_decay=0.0, maximize=True), ups, range(1))
    run(Lamb(downs, weight_decay=0.0), downs, range(1))
    for start, up, down in zip(parameters(), ups, downs, strict=True):
        torch.testing.assert_close(up - start, start - down, rtol=1e-3, atol=1e-6)
