"""Convolutions of three taps with fewer products: equal to the formula for every length, padding and layout."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fullstride.ops import _winograd
from fullstride.ops._unfolding import Unfolding
from fullstride.ops.conv1d import conv1d, conv1d_reference

from .cases import assert_close, gradients, random
from .test_conv1d import assert_equals_reference, for_activations, inner, inputs, part_of_wider, whole_numbers

# (batch, in, time, out, padding)
SHAPES = [
    (1, 1, 1, 1, 1),
    (1, 5, 3, 2, 0),  # one row of results
    (2, 4, 2, 3, 1),
    (3, 7, 5, 4, 1),  # half a tile at the end
    (3, 7, 6, 4, 2),  # longer than its input
    (2, 33, 17, 9, "valid"),
    (4, 16, 40, 65, "same"),
    (1, 9, 31, 130, 1),
]


@pytest.fixture
def always(monkeypatch):
    """Small shapes go this way, too; the list of calls tells that they did."""
    calls, forward = [], _winograd.forward

    def counted(*given):
        calls.append(given)
        return forward(*given)

    monkeypatch.setattr(_winograd, "LEAST_WORK", 0)
    monkeypatch.setattr(_winograd, "_LEAST_CHANNELS", 0)
    monkeypatch.setattr(_winograd, "forward", counted)
    return calls


@for_activations
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference_forward_and_backward(shape, activation, always):
    *sizes, padding = shape
    tensors = (whole_numbers if activation == "relu" else inputs)(*sizes, 3)
    assert_equals_reference(tensors, padding, activation)
    assert always


@pytest.mark.parametrize("time", [20, 21])
def test_every_variant_equals_reference(isa, time, always):
    assert_equals_reference(inputs(3, 33, time, 19, 3), 1, "silu")
    assert always


@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, inner, part_of_wider])
def test_layout_does_not_matter(layout, always):
    x, weight, bias = inputs(3, 9, 8, 7, 3)
    assert_equals_reference((layout(x), weight, bias), 1, "gelu")
    assert_equals_reference((layout(x), weight, None), 1)
    assert always


@pytest.mark.parametrize("wants", [(True, False), (False, True)])
def test_one_gradient_alone_is_that_of_both(wants, always):
    tensors = inputs(3, 9, 11, 7, 3)[:2]
    both = gradients(lambda *t: conv1d(*t, padding=1), tensors)[1]
    one = [t.clone().requires_grad_(want) for t, want in zip(tensors, wants, strict=True)]
    y = conv1d(*one, padding=1)
    y.backward(random(*y.shape, dtype=torch.bfloat16, seed=9).float())  # as gradients() has it
    for tensor, want, expected in zip(one, wants, both, strict=True):
        assert torch.equal(tensor.grad, expected) if want else tensor.grad is None
    assert always


def test_a_second_micro_batch_adds_to_the_gradient_of_a_large_weight_in_place(always):
    weight = nn.Parameter(random(160, 144, 3, seed=1) / 20)
    assert weight.numel() >= 1 << 16
    expected, seen = torch.zeros(weight.shape, dtype=torch.float64), None
    for seed in range(3):
        x = inner(random(2, 144, 12, seed=seed))
        conv1d(x, weight, padding=1).sum().backward()
        wide = weight.detach().double().requires_grad_()
        expected += torch.autograd.grad(F.conv1d(x.double(), wide, padding=1).sum(), wide)[0]
        assert seen is None or weight.grad.data_ptr() == seen
        seen = weight.grad.data_ptr()
    assert_close(weight.grad, expected, ulps=16)
    assert len(always) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", range(9))
def test_what_is_not_finite_reaches_the_results_and_gradients_that_the_formula_says(at, value, always):
    x, weight, bias = inputs(2, 5, 9, 4, 3)
    x[0, 2, at] = value
    (y,), (dx, _, _) = gradients(lambda *t: conv1d(*t, padding=1), (x, weight, bias))
    assert torch.equal(y.isfinite(), conv1d_reference(x, weight, bias, 1).isfinite())
    assert dx.isfinite().all()
    y = conv1d(x.nan_to_num(0, 0).requires_grad_(), weight, bias, 1)
    dy = torch.zeros_like(y)
    dy[1, 3, at] = value
    (dx,) = torch.autograd.grad(y, y.grad_fn.next_functions[0][0].variable, dy)
    near = torch.zeros(2, 5, 9, dtype=torch.bool)
    near[1, :, max(0, at - 1) : at + 2] = True
    assert torch.equal(~dx.isfinite(), near)
    assert always


def test_second_derivatives_are_those_of_torch(always):
    found = []
    for function in (conv1d, conv1d_reference):
        x, weight = inner(random(2, 6, 9)).requires_grad_(), random(4, 6, 3, seed=1).requires_grad_()
        y = function(x, weight, None, 1, "silu")
        dx, dweight = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum() + dweight.square().sum(), (x, weight)))
    for actual, expected in zip(*found, strict=True):
        assert (actual - expected).norm() < 1e-5 * expected.norm()
    assert always


def test_same_threads_same_bits(always):
    first, second = (gradients(lambda *t: conv1d(*t, 1, "silu"), inputs(4, 65, 70, 34, 3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip((*first[0], *first[1]), (*second[0], *second[1]), strict=True))
    assert always


def test_it_is_as_exact_as_the_direct_product(monkeypatch):
    tensors = inputs(4, 192, 64, 160, 3)
    exact = gradients(lambda *t: conv1d(*t, padding=1), [t.double() for t in tensors])
    errors = []
    for least in (0, 1 << 60):
        monkeypatch.setattr(_winograd, "LEAST_WORK", least)
        found = gradients(lambda *t: conv1d(*t, padding=1), tensors)
        pairs = zip((*found[0], *found[1]), (*exact[0], *exact[1]), strict=True)
        errors.append([((a.double() - e).norm() / e.norm()).item() for a, e in pairs])
    assert errors[0] != errors[1]  # they are two ways
    assert all(a < 1.5 * b for a, b in zip(*errors, strict=True))  # measured: 0.77 to 1.28


def test_bf16_is_never_added_up_beforehand(always):
    x, weight, bias = inputs(2, 9, 8, 7, 3)
    conv1d(x.bfloat16(), weight.bfloat16(), bias.bfloat16(), 1)
    with torch.autocast("cpu", torch.bfloat16):
        conv1d(x, weight, bias, 1)
    assert not always


def test_it_pays_for_many_rows_of_many_channels():
    shape, fp32 = Unfolding(16, 260, 3, 1, 1), torch.float32
    assert _winograd.pays(shape, torch.Size((768, 256, 3)), fp32, fp32)
    assert not _winograd.pays(shape, torch.Size((768, 256, 5)), fp32, fp32)
    assert not _winograd.pays(shape, torch.Size((768, 64, 3)), fp32, fp32)
    assert not _winograd.pays(shape, torch.Size((768, 256, 3)), fp32, torch.bfloat16)
    assert not _winograd.pays(Unfolding(1, 40, 3, 1, 1), torch.Size((256, 256, 3)), fp32, fp32)
