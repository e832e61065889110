import pytest
import torch

from fullstride.ops._optimizer import ParamList
from fullstride.ops.sgd import SGDGroup, sgd_reference, sgd_step

from .cases import random
from .optimizers import (
    NUMELS,
    check_alignment_and_strides_do_not_matter,
    check_lookahead_interpolates_when_due,
    check_skip_and_missing_gradients_change_nothing,
    check_split_follows_fp32_to_the_bit,
    check_threads_and_cut_do_not_matter,
    fields_in_header,
    fields_of,
    for_formats,
    gradient,
    run,
    slot_of,
)

GROUPS = [SGDGroup(lr=0.1, momentum=0.9, weight_decay=0.1), SGDGroup(lr=0.01, momentum=0.5, nesterov=True)]


@for_formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_first_step_equals_reference(isa, weight_format, state_format, dtype):
    """States to the bit: without decay m is the gradient."""
    group = SGDGroup(lr=0.1, momentum=0.9, nesterov=True)
    for numel in NUMELS:
        weight, grad = random(numel), gradient(numel, dtype=dtype, seed=1)
        ours, theirs = (slot_of(weight, weight_format, state_format, states=("m",), stream=5) for _ in range(2))
        run(sgd_step, [ours], [grad], group, seed=7)
        sgd_reference(theirs, grad, group, step=1, seed=7)
        assert torch.equal(ours.m, theirs.m), numel
        ulp = torch.finfo(ours.weight.dtype if weight_format == "bf16" else torch.float32).eps
        error = (ours.load_weight() - theirs.load_weight()).abs()
        assert (error <= 2 * ulp * (weight.abs() + 0.19 * grad.float().abs())).all()  # of the terms: they may cancel


@for_formats
def test_later_steps_follow_the_reference(isa, weight_format, state_format):
    """Fused products round differently now and then, so a code may differ by one where chance was that close."""
    group = SGDGroup(lr=0.01, momentum=0.9, dampening=0.3, weight_decay=0.1, maximize=True)
    ours, theirs = (slot_of(random(1001), weight_format, state_format, states=("m",), stream=5) for _ in range(2))
    tensors = ParamList([ours])
    for step in range(1, 6):
        grad = random(1001, seed=step)
        sgd_step(tensors, [grad], [group], grad_scale=0.5, seed=7)
        sgd_reference(theirs, grad, group, step, grad_scale=0.5, seed=7)
    if state_format == "fp32":
        torch.testing.assert_close(ours.m, theirs.m, rtol=1e-5, atol=1e-6)
    else:
        assert (ours.m != theirs.m).sum() <= 5
    tolerance = 2**-6 if weight_format == "bf16" else 1e-3
    torch.testing.assert_close(ours.load_weight(), theirs.load_weight(), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.01, "maximize": True},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ],
    ids=str,
)
def test_fp32_follows_torchs_formula_over_200_steps(isa, options):
    """Within 4 roundings of 1, or of the value where that is larger; 8 where there is no FMA."""
    weight = random(1501)
    momentum = "momentum" in options
    ours = slot_of(weight, states=("m",) if momentum else ())
    tensors, group, m = ParamList([ours]), SGDGroup(lr=1e-3, **options), None
    for step in range(200):
        grad = random(1501, seed=step)
        sgd_step(tensors, [grad], [group])
        weight, m = torchs_step(weight, m, grad, group)
    pairs = [(ours.weight, weight), (ours.m, m)] if momentum else [(ours.weight, weight)]
    for actual, expected in pairs:
        bound = (8 if isa == "portable" else 4) * torch.finfo(torch.float32).eps * expected.abs().clamp(min=1)
        assert ((actual - expected).abs() <= bound).all()


def torchs_step(weight, m, g, group):
    """(weight, m) as torch.optim.SGD makes them where it has FMA; its code for CPUs without rounds more often."""

    def fused(a, factor, b):
        return (a.double() * torch.tensor(factor, dtype=torch.float32) + b.double()).float()

    g = -g if group.maximize else g
    g = fused(weight, group.weight_decay, g) if group.weight_decay else g
    if group.momentum:
        m = g if m is None else fused(g, 1 - group.dampening, group.momentum * m)
        g = fused(m, group.momentum, g) if group.nesterov else m
    return fused(g, -group.lr, weight), m


def test_split_weights_follow_the_fp32_ones_to_the_bit(isa):
    check_split_follows_fp32_to_the_bit(sgd_step, GROUPS[0], ("m",))


@for_formats
def test_lookahead_interpolates_when_due(isa, weight_format, state_format):
    check_lookahead_interpolates_when_due(sgd_step, SGDGroup(lr=0.1, momentum=0.9), weight_format, state_format)


def test_threads_and_the_cut_of_the_list_do_not_matter(isa):
    check_threads_and_cut_do_not_matter(sgd_step, GROUPS, ("m",))


def test_skip_and_missing_gradients_change_nothing(isa):
    check_skip_and_missing_gradients_change_nothing(sgd_step, GROUPS, ("m",))


@for_formats
def test_alignment_and_strides_do_not_matter(isa, weight_format, state_format):
    formats = weight_format, state_format
    check_alignment_and_strides_do_not_matter(sgd_step, GROUPS[0], *formats, states=("m",))


@for_formats
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_gradient_spoils_its_weight_and_no_other(isa, weight_format, state_format, value):
    slot, grad = slot_of(random(600), weight_format, state_format, states=("m",)), random(600, seed=1)
    grad[300] = value
    run(sgd_step, [slot], [grad], GROUPS[0])
    bad = ~slot.weight.isfinite()
    assert bad[300]
    assert bad.sum() == 1
    assert (~slot.load_state("m").isfinite()).sum() == (256 if state_format == "8bit" else 1)


def test_a_step_of_no_tensors_counts_nothing_and_takes_no_gradient(isa):
    empty = ParamList([])
    for groups in ([], [SGDGroup()]):
        sgd_step(empty, [], groups)
    assert list(empty.steps) == []
    with pytest.raises(ValueError, match="expected a gradient or None for each of 0 tensors, got 1"):
        sgd_step(empty, [torch.ones(3)], [SGDGroup()])


def test_group_mirrors_the_header():
    assert fields_of(SGDGroup) == fields_in_header("fs_sgd_group")


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="expected m for a group with momentum"):
        sgd_step(ParamList([slot_of(random(3), states=())]), [torch.ones(3)], [SGDGroup(momentum=0.9)])
    with pytest.raises(ValueError, match="expected a group below 0, got 0"):
        sgd_step(ParamList([slot_of(random(3), states=())]), [torch.ones(3)], [])
    with pytest.raises(ValueError, match=r"with Nesterov, got momentum=0\.0"):
        SGDGroup(nesterov=True)
