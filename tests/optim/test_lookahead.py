"""Lookahead folded into our kernels and around torch's optimizers."""

import copy

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from fullstride.optim import SGD, AdamW, Lookahead

from .training import assert_close, assert_equal, parameters, run, set_gradients, split, whole


def by_hand(params, steps, alpha, k, **options):
    """torch's AdamW with Lookahead written out."""
    optimizer = torch.optim.AdamW(params, lr=1e-2, **options)
    slow = [p.detach().clone() for p in params]
    for step in steps:
        set_gradients(params, step)
        optimizer.step()
        if (step + 1) % k == 0:
            with torch.no_grad():
                for p, s in zip(params, slow, strict=True):
                    s += alpha * (p - s)
                    p.copy_(s)


@pytest.mark.parametrize("kind", [AdamW, torch.optim.AdamW])
@pytest.mark.parametrize(("alpha", "k"), [(0.5, 5), (0.8, 3), (0.3, 1)])
def test_a_hundred_steps_follow_the_formula(kind, alpha, k):
    params, expected = parameters(), parameters()
    run(Lookahead(kind(params, lr=1e-2), alpha, k), params, range(100))
    by_hand(expected, range(100), alpha, k)
    assert_close(params, expected)


def test_folded_and_outside_agree_for_sgd():
    folded, outside = parameters(), parameters()
    run(Lookahead(SGD(folded, lr=0.1, momentum=0.9)), folded, range(50))
    run(Lookahead(torch.optim.SGD(outside, lr=0.1, momentum=0.9)), outside, range(50))
    assert_close(folded, outside)


def test_split_weights_look_ahead_as_fp32_does():
    wholes, halves = parameters(), parameters()
    lower_halves = split(halves)
    fp32, optimizer = Lookahead(AdamW(wholes, lr=1e-2)), Lookahead(AdamW(halves, lr=1e-2))
    optimizer.use_split(lower_halves)
    for step in range(20):
        set_gradients(wholes, step)
        for p, q in zip(wholes, halves, strict=True):
            q.grad = p.grad.clone()
        fp32.step()
        optimizer.step()
    assert_equal(whole(halves, optimizer), wholes)


def test_slow_weights_of_bf16_parameters_outside_are_fp32():
    params = parameters(dtype=torch.bfloat16)
    optimizer = Lookahead(torch.optim.SGD(params, lr=1e-3))
    run(optimizer, params, range(5))
    assert all(slow.dtype is torch.float32 for slow in optimizer.slow.values())


@pytest.mark.parametrize("kind", [AdamW, torch.optim.AdamW])
def test_schedulers_take_it(kind):
    params, expected = parameters(), parameters()
    optimizer = Lookahead(kind(params, lr=1e-4))
    assert isinstance(optimizer, torch.optim.Optimizer)
    run(optimizer, params, range(30), OneCycleLR(optimizer, max_lr=0.05, total_steps=31))
    inner = torch.optim.AdamW(expected, lr=1e-4)
    schedule = OneCycleLR(inner, max_lr=0.05, total_steps=31)
    slow = [p.detach().clone() for p in expected]
    for step in range(30):
        run(inner, expected, [step])
        if (step + 1) % 5 == 0:
            with torch.no_grad():
                for p, s in zip(expected, slow, strict=True):
                    p.copy_(s.lerp_(p, 0.5))
        schedule.step()
    assert_close(params, expected)
    assert optimizer.param_groups is optimizer.optimizer.param_groups


@pytest.mark.parametrize("kind", [AdamW, torch.optim.AdamW])
@pytest.mark.parametrize("copied", [copy.deepcopy, None], ids=["deepcopy", "state_dict"])
def test_a_run_continues_to_the_bit_in_the_middle_of_a_round(kind, copied):
    params = parameters()
    optimizer = Lookahead(kind(params, lr=1e-2), k=5)
    run(optimizer, params, range(8))
    if copied is not None:
        others, other = copied((params, optimizer))
    else:
        others = copy.deepcopy(params)
        other = Lookahead(kind(others, lr=1e-2), k=5)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, params, range(8, 16))
    run(other, others, range(8, 16))
    assert_equal(others, params)


def test_a_skipped_step_does_not_count():
    params, expected = parameters(), parameters()
    optimizer = Lookahead(AdamW(params, lr=1e-2, skip_nonfinite=True))
    for step in range(10):
        set_gradients(params, 0)
        params[0].grad[0, 0] = float("inf")
        optimizer.step()
        run(optimizer, params, [step])
    by_hand(expected, range(10), 0.5, 5)
    assert_close(params, expected)
    assert optimizer.skipped_steps == 10


def test_the_inner_optimizers_attributes_are_its_own():
    params = parameters()
    inner = AdamW(params, clip=1.0)
    optimizer = Lookahead(inner)
    optimizer.clip = 0.5
    run(optimizer, params, range(1))
    assert inner.clip == 0.5
    assert optimizer.last_grad_norm > 1
    optimizer.zero_grad()
    assert params[0].grad is None
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = optimizer.no_such_thing


def test_groups_can_be_added():
    params = parameters()
    optimizer = Lookahead(torch.optim.SGD(params[:2], lr=0.1), k=2)
    run(optimizer, params, range(2))
    optimizer.add_param_group({"params": params[2:]})
    run(optimizer, params, range(2, 4))
    assert not torch.equal(params[3], parameters()[3])


def test_bad_calls_are_told():
    optimizer = AdamW(parameters())
    with pytest.raises(TypeError, match="expected an optimizer to look ahead with, got list"):
        Lookahead(parameters())
    with pytest.raises(ValueError, match=r"got alpha=0.0 and k=5"):
        Lookahead(optimizer, alpha=0.0)
    with pytest.raises(ValueError, match=r"got alpha=0.5 and k=0"):
        Lookahead(optimizer, k=0)
    with pytest.raises(ValueError, match="wrap it once"):
        Lookahead(Lookahead(optimizer))
    with pytest.raises(ValueError, match="wrap it once"):
        Lookahead(optimizer)
