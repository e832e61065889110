"""When a wrapper calls its kernel, and when the reference answers instead."""

import pytest
import torch
from torch.autograd import forward_ad

from fullstride import _native
from fullstride.ops._tensors import needs_grad, takes_kernel
from fullstride.ops.layer_norm import layer_norm
from fullstride.ops.rms_norm import rms_norm

from .cases import assert_close, random

norms = pytest.mark.parametrize("norm", [layer_norm, rms_norm])


def test_kernels_take_plain_cpu_tensors_of_one_dtype():
    assert takes_kernel(torch.ones(2), None, torch.nn.Parameter(torch.ones(3))) == _native.available()
    assert takes_kernel() == _native.available()
    assert not takes_kernel(torch.ones(2), torch.ones(2, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, dtype=torch.float64),
        torch.ones(2, dtype=torch.float16),
        torch.ones(2, device="meta"),
        torch.ones(2, 2).to_sparse(),
        torch.ones(2).as_subclass(type("Tagged", (torch.Tensor,), {})),
    ],
    ids=["fp64", "fp16", "meta", "sparse", "subclass"],
)
def test_kernels_refuse_other_tensors_in_any_place(tensor):
    assert not takes_kernel(tensor)
    assert not takes_kernel(torch.ones(2), tensor)


def test_autograd_records_only_where_a_gradient_is_wanted():
    leaf = torch.ones(2, requires_grad=True)
    assert needs_grad(torch.ones(2), None, leaf)
    assert not needs_grad(torch.ones(2), None)
    with torch.no_grad():
        assert not needs_grad(leaf)


@norms
def test_result_is_the_same_with_and_without_recording(norm):
    x, residual = random(5, 33), random(5, 33, seed=1)
    weight = random(33, seed=2)
    with_grad = norm(x.clone().requires_grad_(), weight, residual=residual)
    without = norm(x, weight, residual=residual)
    assert all(torch.equal(a, b) for a, b in zip(with_grad, without, strict=True))
    assert with_grad[0].requires_grad
    assert not without[0].requires_grad


@norms
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is ")  # torch's own use of it, on its first dual tensor
def test_forward_mode_differentiation_is_not_lost(norm):
    x, tangent = random(3, 8), random(3, 8, seed=1)
    with forward_ad.dual_level():
        actual = forward_ad.unpack_dual(norm(forward_ad.make_dual(x, tangent))).tangent
    assert actual is not None
    step = 1e-4
    expected = (norm((x + step * tangent).double()) - norm((x - step * tangent).double())) / (2 * step)
    assert_close(actual, expected, ulps=2000)  # the difference quotient's own error


@norms
def test_function_transforms_go_through_the_reference(norm):
    x = random(4, 3, 8)
    assert_close(torch.func.vmap(norm)(x), norm(x))
    leaf = x.clone().requires_grad_()
    norm(leaf).square().sum().backward()
    assert leaf.grad is not None
    assert_close(torch.func.grad(lambda x: norm(x).square().sum())(x), leaf.grad, ulps=32)


def test_a_negated_view_is_read_as_negated():
    x = torch.complex(random(3, 8), random(3, 8, seed=1)).conj().imag
    assert x.is_neg()
    assert not takes_kernel(x)
    assert_close(layer_norm(x), layer_norm(x.resolve_neg()))


@norms
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_trace_follows_its_input(norm):
    traced = torch.jit.trace(norm, random(3, 8))
    assert_close(traced(random(3, 8, seed=1)), norm(random(3, 8, seed=1)))
