"""Sums of squares that are remembered. Sums told here are false, where it matters to see whether they are believed."""

import gc
import math

import numpy as np
import pytest
import torch

from fullstride import _native
from fullstride.ops import _gradient_norms as norms
from fullstride.ops._gradient_norms import recall, remember
from fullstride.ops._tensors import mark_written
from fullstride.ops.grads import accumulate_, grad_norm, scale_
from fullstride.optim import AdamW, Lamb
from fullstride.optim.scaling import LossScaler

from .cases import random

FALSE = 9.0


@pytest.fixture(autouse=True)
def forget():
    norms._entries.clear()
    yield
    norms._entries.clear()


def exact(tensor):
    return tensor.double().square().sum().item()


class Product(torch.autograd.Function):
    """x w^T, whose backward remembers the sum of dw."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        dw = g.t() @ ctx.saved_tensors[0]
        remember(dw, exact(dw))
        return None, dw


def backward(w, seed=0):
    Product.apply(random(5, w.shape[1], seed=seed).to(w.dtype), w).square().sum().backward()


# ---- what is remembered --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_parameter_is_the_one_that_backward_wrote(dtype):
    w = torch.nn.Parameter(random(33, 17).to(dtype))
    backward(w)
    assert recall(w.grad) == exact(w.grad)


def test_views_of_the_same_elements_are_the_same_gradient():
    gradient = random(4, 6)
    remember(gradient, FALSE)
    for view in (gradient, gradient.detach(), gradient.t(), gradient.view(24), gradient.permute(1, 0)):
        assert recall(view) == FALSE


def test_parts_and_other_elements_of_the_storage_are_not():
    whole = random(64)
    remember(whole[:16], FALSE)
    assert recall(whole[::2][:16]) is None
    remember(whole[:16], FALSE)
    assert recall(whole[:15]) is None
    assert recall(whole[1:17]) is None


def test_a_view_of_another_type_is_not():
    gradient = random(8)
    remember(gradient, FALSE)
    assert recall(gradient.view(torch.int32)) is None


def test_what_is_not_dense_or_has_no_version_is_not_remembered():
    strided = random(8, 8)[:, :4]
    with torch.inference_mode():
        inference = torch.ones(8)
    for gradient in (strided, inference, torch.empty(0)):
        remember(gradient, FALSE)
        assert recall(gradient) is None


# ---- what makes it forget ------------------------------------------------------------------------------------------


def change_norm(p):
    torch.nn.utils.clip_grad_norm_([p], 1e-3)


def change_by_main_gradients(p):
    p.grad = p.grad.float() if p.dtype is torch.bfloat16 else p.grad.double().float()


CHANGES = {
    "mul_": lambda p: p.grad.mul_(1.0),
    "zero_": lambda p: p.grad.zero_(),
    "one element": lambda p: p.grad[3, 2:3].add_(1),
    "a view": lambda p: p.grad.view(-1).add_(1),
    "a view made before": lambda p: p.view_made_before.add_(1),
    "detach": lambda p: p.grad.detach().mul_(2),
    "clip_grad_norm_": change_norm,
    "clip_grad_value_": lambda p: torch.nn.utils.clip_grad_value_([p], 1e-3),
    "foreach": lambda p: torch._foreach_mul_([p.grad], 2.0),
    "our scale_": lambda p: scale_([p.grad], 2.0),
    "our accumulate_": lambda p: accumulate_([p.grad], [torch.ones_like(p.grad)]),
    "mark_written": lambda p: mark_written([p.grad]),
    "backward again": lambda p: backward(p, 1),
    "main gradients": change_by_main_gradients,
    "a copy": lambda p: setattr(p, "grad", p.grad.clone()),
    "zero_grad": lambda p: torch.optim.SGD([p]).zero_grad(set_to_none=False),
    "set_": lambda p: p.grad.set_(torch.ones_like(p)),
    "behind autograd: .data": lambda p: p.grad.data.mul_(0.5),
    "behind autograd: NumPy": lambda p: np.multiply(p.grad.numpy(), 0.5, out=p.grad.numpy()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_writes_to_the_gradient_makes_it_forget(change):
    p = torch.nn.Parameter(random(33, 17))
    backward(p)
    vars(p)["view_made_before"] = p.grad[0]
    assert recall(p.grad) is not None
    change(p)
    assert p.grad is not None
    assert recall(p.grad) is None
    norm = p.grad.double().norm().item()
    assert grad_norm([p.grad])[0] == pytest.approx(norm, rel=1e-12)


def test_a_hook_that_returns_another_gradient_is_seen():
    p = torch.nn.Parameter(random(33, 17))
    p.register_hook(lambda gradient: 2 * gradient)
    backward(p)
    assert recall(p.grad) is None


def test_a_hook_that_changes_the_gradient_in_place_is_seen():
    p = torch.nn.Parameter(random(33, 17))
    p.register_hook(lambda gradient: gradient.mul_(2))
    backward(p)
    assert recall(p.grad) is None


def test_tied_weights_are_summed_by_autograd_and_forgotten():
    p = torch.nn.Parameter(random(17, 17))
    Product.apply(Product.apply(random(5, 17), p), p).sum().backward()
    assert p.grad is not None
    assert recall(p.grad) is None
    assert grad_norm([p.grad])[0] == pytest.approx(p.grad.double().norm().item(), rel=1e-12)


def test_memory_that_was_freed_and_is_used_again_is_another_gradient():
    for _ in range(20):  # malloc gives the same address again, soon
        gradient = torch.zeros(100_000)
        assert recall(gradient) is None
        remember(gradient, FALSE)
        assert recall(gradient) == FALSE
        del gradient
        gc.collect()


def test_the_registry_does_not_keep_gradients_alive_nor_grow_for_ever():
    kept = [torch.zeros(4) for _ in range(10)]
    for gradient in kept:
        remember(gradient, FALSE)
    for i in range(5000):
        remember(torch.zeros(10 + i % 90), FALSE)
    assert len(norms._entries) <= 2048
    assert [recall(gradient) for gradient in kept] == [FALSE] * 10


# ---- the norm ------------------------------------------------------------------------------------------------------


def gradients():
    sizes = (70001, 0, 1, 40000, 513, 7)
    return [random(n, dtype=(torch.float32, torch.bfloat16)[n % 2], seed=n) for n in sizes]


def remember_some(tensors):
    for tensor in tensors[::2]:
        remember(tensor, exact(tensor))


def test_the_norm_with_remembered_sums_equals_that_of_a_full_read(isa):
    tensors = [t.float() for t in gradients()]
    full = grad_norm(tensors)[0]
    remember_some(tensors)
    assert grad_norm(tensors)[0] == pytest.approx(full, rel=1e-12)
    for tensor in tensors:
        remember(tensor, exact(tensor))
    assert grad_norm(tensors)[0] == pytest.approx(full, rel=1e-12)


def test_dtypes_may_be_mixed(isa):
    tensors = gradients()
    full = grad_norm(tensors)[0]
    remember_some(tensors)
    assert grad_norm(tensors)[0] == pytest.approx(full, rel=1e-7)  # bf16 is summed in fp32, in blocks


def test_what_is_remembered_is_not_read(isa):
    tensors = [torch.ones(16), torch.ones(1000)]
    remember(tensors[1], FALSE)
    assert grad_norm(tensors)[0] == pytest.approx(5.0, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_remembered_sum_that_is_not_finite_is_told(isa, bad):
    tensors = [torch.ones(4), torch.full((4,), bad)]
    remember(tensors[1], bad)
    assert not grad_norm(tensors)[1]


# ---- the optimizers ------------------------------------------------------------------------------------------------


def slots(dtype=torch.float32):
    return [torch.nn.Parameter(random(n, n + 1, seed=n).to(dtype)) for n in (3, 40, 17)]


def give(params, step, scale=1.0, known=False):
    for i, p in enumerate(params):
        p.grad = (scale * random(*p.shape, seed=100 * step + i)).to(p.dtype)
        if known:
            remember(p.grad, exact(p.grad))


@pytest.mark.parametrize("kind", [AdamW, Lamb])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_with_remembered_sums_equals_one_without(isa, kind, dtype):
    params, others = slots(dtype), slots(dtype)
    optimizers = [kind([{"params": p[:1]}, {"params": p[1:], "lr": 3e-2}], lr=1e-2, clip=1.0) for p in (params, others)]
    for optimizer in optimizers:
        optimizer.scaler = LossScaler(1024.0)
    for step in range(5):
        give(params, step, 1024.0, known=True)
        give(others, step, 1024.0)
        for optimizer in optimizers:
            optimizer.step()
        exactly = 1e-12 if dtype is torch.float32 else 1e-7  # bf16 is summed in fp32, in blocks
        assert optimizers[0].last_grad_norm == pytest.approx(optimizers[1].last_grad_norm, rel=exactly)
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6 if dtype is torch.float32 else 1e-2, atol=0)


def test_unscaled_and_clipped_gradients_are_read_again():
    params = slots()
    optimizer = AdamW(params, clip=1.0)
    optimizer.scaler = LossScaler(1024.0)
    give(params, 0, 1024.0, known=True)
    optimizer.unscale_()
    optimizer.step()
    expected = math.sqrt(sum(exact(p.grad) for p in params))
    assert optimizer.last_grad_norm == pytest.approx(expected, rel=1e-12)


def test_the_optimizer_reads_only_what_nobody_remembers():
    params = slots()
    optimizer = AdamW(params, clip=1.0)
    give(params, 0)
    remember(params[1].grad, FALSE)
    params[2].grad = None
    optimizer.step()
    assert optimizer.last_grad_norm == pytest.approx(math.sqrt(exact(params[0].grad) + FALSE), rel=1e-12)


def test_a_channels_last_gradient_is_known_in_any_order_of_its_dimensions():
    p = torch.nn.Parameter(random(4, 3, 5, 5).to(memory_format=torch.channels_last))
    p.grad = random(4, 3, 5, 5, seed=1).to(memory_format=torch.channels_last)
    remember(p.grad, FALSE)
    optimizer = AdamW([p], clip=1.0)
    optimizer.step()
    assert optimizer.last_grad_norm == pytest.approx(3.0, rel=1e-12)


def test_a_step_without_the_library_knows_them_too(monkeypatch):
    params = slots()
    optimizer = AdamW(params, clip=1.0)
    give(params, 0)
    remember(params[1].grad, FALSE)
    monkeypatch.setattr(_native, "available", lambda: False)
    optimizer.step()
    expected = exact(params[0].grad) + FALSE + exact(params[2].grad)
    assert optimizer.last_grad_norm == pytest.approx(math.sqrt(expected), rel=1e-12)
