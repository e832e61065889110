"""Main gradients of bf16 parameters, clipping inside the step, steps skipped for what is not finite."""

import copy
import gc
import math
import weakref

import pytest
import torch
from torch import nn

from fullstride.optim import SGD, AdamW, Lamb, drop_main_gradients, keep_main_gradients

from .training import assert_close, assert_equal, parameters, set_gradients


def small_model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 8)).to(dtype)


def gradients_of(model, num_micro_batches, dtype=torch.float32):
    """Of one batch of 64, taken whole or in parts."""
    x = torch.randn(64, 24, generator=torch.Generator().manual_seed(1)).to(dtype)
    model.zero_grad()
    for part in x.chunk(num_micro_batches):
        (model(part).float().square().sum() / 64).backward()
    return [p.grad for p in model.parameters()]


# ---- accumulation --------------------------------------------------------------------------------------------------


def test_eight_micro_batches_equal_one_batch_in_fp32():
    model = small_model()
    AdamW(model.parameters())
    whole = [g.clone() for g in gradients_of(model, 1)]
    assert_close(gradients_of(model, 8), whole, tolerance=1e-6)


def test_eight_micro_batches_in_bf16_are_closer_to_exact_than_torchs():
    exact = gradients_of(small_model(torch.bfloat16).float(), 8)  # of the same rounded weights
    stock, ours = small_model(torch.bfloat16), small_model(torch.bfloat16)
    AdamW(ours.parameters())

    def error(gradients):
        pairs = zip(gradients, exact, strict=True)
        return math.sqrt(sum((g.float() - e).square().sum().item() for g, e in pairs))

    x = gradients_of(stock, 8, torch.bfloat16)
    assert all(g.dtype is torch.bfloat16 for g in x)
    theirs, mine = error(x), error(gradients_of(ours, 8, torch.bfloat16))
    assert mine < 0.8 * theirs


def test_bf16_gradients_are_summed_exactly():
    p = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    keep_main_gradients([p])
    for value in (1.0, 2**-10, 2**-10):
        (p * value).sum().backward()
    assert p.grad.tolist() == [1 + 2**-9] * 3


def test_one_micro_batch_keeps_its_bf16_gradient():
    p = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    AdamW([p])
    (p * 2).sum().backward()
    assert p.grad.dtype is torch.bfloat16
    (p * 2).sum().backward()
    assert p.grad.dtype is torch.float32


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_begins_the_sum_anew(set_to_none):
    p = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    optimizer = AdamW([p])
    for _ in range(2):
        optimizer.zero_grad(set_to_none)
        assert (p.grad is None) or not p.grad.any()
        for _ in range(3):
            (p * 2).sum().backward()
        assert p.grad.tolist() == [6.0] * 3


def test_main_gradients_are_visible_to_clip_grad_norm_():
    p = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    AdamW([p])
    for _ in range(2):
        (p * 2).sum().backward()
    assert nn.utils.clip_grad_norm_([p], 1.0).item() == pytest.approx(8.0)
    assert p.grad.tolist() == pytest.approx([0.5] * 4)


def test_a_step_with_main_gradients_equals_one_with_the_same_in_bf16():
    params, others = parameters(dtype=torch.bfloat16), parameters(dtype=torch.bfloat16)
    optimizer, other = AdamW(params, lr=1e-2), AdamW(others, lr=1e-2)
    set_gradients(params, 0)
    for p, q in zip(params, others, strict=True):
        q.grad = p.grad.float()
    optimizer.step()
    other.step()
    assert_equal(params, others)


def test_copies_of_parameters_get_main_gradients_with_their_optimizer():
    p = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    q, _ = copy.deepcopy((p, AdamW([p])))
    for _ in range(2):
        q.sum().backward()
    assert q.grad.dtype is torch.float32


def test_a_parameter_thawed_later_gets_main_gradients():
    p, frozen = (nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)) for _ in range(2))
    frozen.requires_grad_(False)
    optimizer = AdamW([p, frozen])
    p.sum().backward()
    optimizer.step()
    frozen.requires_grad_(True)
    for _ in range(2):  # its first gradient makes the optimizer know it
        optimizer.zero_grad()
        for _ in range(2):
            (p + frozen).sum().backward()
        optimizer.step()
    assert frozen.grad.dtype is torch.float32


def test_dropped_main_gradients_are_torchs_again():
    p = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    keep_main_gradients([p])
    for _ in range(2):
        p.sum().backward()
    drop_main_gradients([p])
    assert p.grad.dtype is torch.bfloat16
    p.sum().backward()
    assert p.grad.dtype is torch.bfloat16


def test_main_gradients_keep_no_parameter_alive():
    p = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    keep_main_gradients([p])
    reference = weakref.ref(p)
    del p
    gc.collect()
    assert reference() is None


# ---- clipping ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [AdamW, SGD, Lamb])
@pytest.mark.parametrize("clip", [0.5, 1000.0])
def test_clip_inside_the_step_equals_clip_grad_norm_outside(kind, clip, dtype):
    params, others = parameters(), parameters()
    optimizer, other = kind(params, lr=0.1, clip=clip), kind(others, lr=0.1)
    for step in range(10):
        set_gradients(params, step)
        for p, q in zip(params, others, strict=True):
            p.grad_dtype = q.grad_dtype = None
            p.grad = p.grad.to(dtype)
            q.grad = p.grad.float().clone()
        norm = nn.utils.clip_grad_norm_(others, clip).item()
        optimizer.step()
        other.step()
        assert optimizer.last_grad_norm == pytest.approx(norm, rel=1e-5)
    assert_close(params, others)


def test_the_norm_is_known_without_clipping_where_steps_may_be_skipped():
    params = parameters()
    optimizer = AdamW(params, skip_nonfinite=True)
    assert optimizer.last_grad_norm is None
    set_gradients(params, 0)
    optimizer.step()
    norm = torch.cat([p.grad.flatten() for p in params]).norm().item()
    assert optimizer.last_grad_norm == pytest.approx(norm, rel=1e-6)


# ---- not finite ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("kind", [AdamW, SGD, Lamb])
def test_gradients_that_are_not_finite_skip_the_step_and_are_counted(kind, clip, bad):
    params, others = parameters(), parameters()
    optimizer = kind(params, lr=0.1, clip=clip, skip_nonfinite=True if clip is None else None)
    other = kind(others, lr=0.1, clip=clip)
    for step in range(6):
        set_gradients(params, step)
        if step in (1, 3):
            params[3].grad[2, 1, 0] = bad
        else:
            set_gradients(others, step)
            other.step()
        optimizer.step()
    assert optimizer.skipped_steps == 2
    assert_equal(params, others)
    assert optimizer.state[params[0]]["step"] == 4


@pytest.mark.parametrize("skip", [None, False])
def test_without_the_check_nan_goes_into_the_weights_and_no_norm_is_computed(skip):
    params = parameters()
    optimizer = AdamW(params, skip_nonfinite=skip)
    set_gradients(params, 0)
    params[0].grad[0, 0] = math.nan
    optimizer.step()
    assert params[0].isnan().sum() == 1
    assert optimizer.last_grad_norm is None
    assert optimizer.skipped_steps == 0


def test_clipping_without_the_check_lets_nan_pass():
    params = parameters()
    optimizer = AdamW(params, clip=1.0, skip_nonfinite=False)
    set_gradients(params, 0)
    params[0].grad[0, 0] = math.nan
    optimizer.step()
    assert params[0].isnan().sum() == 1
    assert math.isnan(optimizer.last_grad_norm)
    assert optimizer.skipped_steps == 0


def test_a_step_without_any_gradient_changes_nothing():
    params = parameters()
    optimizer = AdamW(params, clip=1.0)
    optimizer.step()
    assert_equal(params, parameters())
    assert optimizer.last_grad_norm == 0.0
