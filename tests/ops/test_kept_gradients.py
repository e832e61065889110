"""That memory of gradients is used again, and never while somebody can see it."""

import gc
import weakref

import pytest
import torch

from fullstride.ops import _kept_gradients
from fullstride.ops._kept_gradients import empty_gradient
from fullstride.ops.linear import linear
from fullstride.ops.products import backend, set_backend

P = (300, 300)


@pytest.fixture
def p():
    return torch.nn.Parameter(torch.zeros(P))


def test_memory_is_used_again_once_the_gradient_is_gone(p):
    first = empty_gradient(p, P, torch.float32)
    place = first.data_ptr()
    del first
    assert empty_gradient(p, P, torch.float32).data_ptr() == place


@pytest.mark.parametrize("hold", [lambda g: g, lambda g: g.detach(), lambda g: g[3:5], lambda g: g.untyped_storage()])
def test_memory_that_somebody_holds_is_left_alone(p, hold):
    first = empty_gradient(p, P, torch.float32).fill_(1)
    held, place = hold(first), first.data_ptr()
    del first
    assert empty_gradient(p, P, torch.float32).fill_(2).data_ptr() != place
    assert held is not None


def test_another_dtype_or_size_gets_memory_of_its_own(p):
    empty_gradient(p, P, torch.float32)
    assert empty_gradient(p, P, torch.bfloat16).dtype is torch.bfloat16
    assert empty_gradient(p, (3, 4), torch.float32).shape == (3, 4)


def test_every_use_is_another_version(p):
    first = empty_gradient(p, P, torch.float32)
    version = first._version
    del first
    assert empty_gradient(p, P, torch.float32)._version > version


def test_memory_goes_with_its_parameter():
    mine = torch.nn.Parameter(torch.zeros(P))
    empty_gradient(mine, P, torch.float32)
    buffer = weakref.ref(_kept_gradients._buffers[mine])
    del mine
    gc.collect()
    assert buffer() is None


@pytest.mark.parametrize("name", ["torch", "native"])
def test_gradients_of_earlier_steps_stay_what_they_were(name):
    before = backend(torch.float32)
    set_backend(torch.float32, name)
    try:
        weight = torch.nn.Parameter(torch.randn(P))
        kept: list[torch.Tensor] = []
        places: set[int] = set()
        for i in range(4):
            weight.grad = None
            linear(torch.full((2, 300), float(i + 1)), weight).sum().backward()
            assert weight.grad is not None
            assert torch.equal(weight.grad, torch.full(P, 2.0 * (i + 1)))
            places.add(weight.grad.data_ptr())
            kept.append(weight.grad)
        assert [g[0, 0].item() for g in kept] == [2.0, 4.0, 6.0, 8.0]
        assert len(places) == 4
        kept.clear()
        for _ in range(3):
            weight.grad = None
            linear(torch.ones(2, 300), weight).sum().backward()
            assert weight.grad is not None
            places.add(weight.grad.data_ptr())
        assert len(places) == 4  # the last one, again and again
    finally:
        set_backend(torch.float32, before)
