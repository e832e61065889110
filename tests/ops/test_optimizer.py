"""What all optimizers ask of their lists, and what they tell autograd."""

import pytest
import torch

from fullstride import _native
from fullstride.ops._optimizer import ParamList, make_slot
from fullstride.ops.adam import AdamGroup, adam_step
from fullstride.ops.lamb import LAMBGroup, lamb_step
from fullstride.ops.sgd import SGDGroup, sgd_step

from .cases import random
from .optimizers import slot_of

STEPS = {adam_step: AdamGroup, sgd_step: SGDGroup, lamb_step: LAMBGroup}
for_optimizers = pytest.mark.parametrize(("step", "group"), STEPS.items(), ids=["adam", "sgd", "lamb"])


@for_optimizers
@pytest.mark.parametrize("no_grad", [False, True])
def test_a_step_between_forward_and_backward_is_noticed(isa, step, group, no_grad):
    weight = torch.nn.Parameter(random(5))
    tensors = ParamList([make_slot(weight)])
    loss = (weight * random(5).requires_grad_()).sum()
    with torch.set_grad_enabled(not no_grad):
        step(tensors, [random(5, seed=1)], [group(lr=0.1)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@for_optimizers
def test_references_step_parameters_that_require_a_gradient(monkeypatch, step, group):
    monkeypatch.setattr(_native, "available", lambda: False)
    weight = torch.nn.Parameter(random(5))
    slot = make_slot(weight, lookahead=True)
    step(ParamList([slot]), [random(5).requires_grad_()], [group(lr=0.1)])
    assert not any(tensor.requires_grad for tensor in (slot.m, slot.v, slot.slow))
    assert not torch.equal(weight, random(5))


@for_optimizers
def test_groups_of_another_optimizer_are_refused(step, group):
    other = next(kind for kind in STEPS.values() if kind is not group)
    with pytest.raises(TypeError, match=f"expected groups of type {group.__name__}, got {other.__name__}"):
        step(ParamList([slot_of(random(3))]), [torch.ones(3)], [other()])


@pytest.mark.parametrize("gradient", [torch.ones(2, 2, device="meta"), torch.ones(2, 2).to_sparse()])
def test_gradients_elsewhere_or_sparse_are_refused(gradient):
    tensors = ParamList([slot_of(random(2, 2))])
    with pytest.raises(ValueError, match="expected dense CPU gradients, got"):
        sgd_step(tensors, [gradient], [SGDGroup()])
    assert not tensors.steps.any()


def test_a_step_follows_a_weight_to_its_new_memory(isa):
    weight, old = torch.nn.Parameter(torch.ones(5)), torch.ones(5)
    weight.data = old
    tensors = ParamList([make_slot(weight, states=())])
    weight.data = torch.full((5,), 2.0)
    sgd_step(tensors, [torch.ones(5)], [SGDGroup(lr=0.5)])
    assert weight.tolist() == [1.5] * 5
    assert old.tolist() == [1.0] * 5


def test_a_weight_that_became_another_is_named():
    weight = torch.nn.Parameter(torch.ones(5))
    tensors = ParamList([make_slot(weight, states=())])
    weight.data = torch.ones(7)
    with pytest.raises(ValueError, match=r"weight 0 to stay a contiguous torch.float32 CPU tensor of 5 elements, got"):
        sgd_step(tensors, [torch.ones(7)], [SGDGroup()])


def test_the_same_memory_twice_is_refused():
    weight = random(5)
    with pytest.raises(ValueError, match="expected each weight once"):
        ParamList([make_slot(weight), make_slot(weight)])
    ParamList([make_slot(torch.empty(0)), make_slot(torch.empty(0))])
