import pytest
import torch

from fullstride.bench.kernels.rows.lamb import plain_lamb
from fullstride.ops._optimizer import ParamList
from fullstride.ops.lamb import LAMBGroup, lamb_reference, lamb_step

from .cases import random
from .optimizers import (
    NUMELS,
    check_alignment_and_strides_do_not_matter,
    check_lookahead_interpolates_when_due,
    check_skip_and_missing_gradients_change_nothing,
    check_split_follows_fp32_to_the_bit,
    check_threads_and_cut_do_not_matter,
    everything,
    fields_in_header,
    fields_of,
    for_formats,
    gradient,
    run,
    slot_of,
)

GROUPS = [LAMBGroup(lr=0.1, weight_decay=0.1), LAMBGroup(lr=0.01, beta2=0.9)]


def lamb_in_fp64(weight, gradients, group):
    """The formula, step after step, in double."""
    weight, m, v = weight.double(), torch.zeros_like(weight).double(), torch.zeros_like(weight).double()
    for t, g in enumerate(gradients, 1):
        m = group.beta1 * m + (1 - group.beta1) * g.double()
        v = group.beta2 * v + (1 - group.beta2) * g.double() ** 2
        u = (m / (1 - group.beta1**t)) / ((v / (1 - group.beta2**t)).sqrt() + group.eps) + group.weight_decay * weight
        weight = weight - group.lr * weight.norm() / u.norm() * u
    return weight


@for_formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_first_step_equals_reference(isa, weight_format, state_format, dtype):
    """States to the bit: from zero states nothing depends on whether a product and a sum are fused."""
    group = LAMBGroup(lr=0.1)
    for numel in NUMELS:
        weight, grad = random(numel), gradient(numel, dtype=dtype, seed=1)
        ours, theirs = (slot_of(weight, weight_format, state_format, stream=5) for _ in range(2))
        run(lamb_step, [ours], [grad], group, seed=7)
        lamb_reference(theirs, grad, group, step=1, seed=7)
        actual, expected = everything(ours), everything(theirs)
        for name in set(actual) - {"weight", "weight_lo"}:
            assert torch.equal(actual[name], expected[name]), (numel, name)
        ulp = torch.finfo(ours.weight.dtype if weight_format == "bf16" else torch.float32).eps
        torch.testing.assert_close(ours.load_weight(), theirs.load_weight(), rtol=4 * ulp, atol=4 * ulp)


@for_formats
def test_later_steps_follow_the_reference(isa, weight_format, state_format):
    """Fused products round differently now and then, so a code may differ by one where chance was that close."""
    group = LAMBGroup(lr=0.01, weight_decay=0.1, maximize=True)
    ours, theirs = (slot_of(random(1001), weight_format, state_format, stream=5) for _ in range(2))
    tensors = ParamList([ours])
    for step in range(1, 6):
        grad = gradient(1001, seed=step)
        lamb_step(tensors, [grad], [group], grad_scale=0.5, seed=7)
        lamb_reference(theirs, grad, group, step, grad_scale=0.5, seed=7)
    for name in ("m", "v"):
        a, b = getattr(ours, name), getattr(theirs, name)
        if state_format == "fp32":
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * float(b.abs().max()))
        else:
            assert (a != b).sum() <= 5, name
    tolerance = 2**-6 if weight_format == "bf16" else 1e-3
    torch.testing.assert_close(ours.load_weight(), theirs.load_weight(), rtol=0, atol=tolerance)


def test_fp32_follows_the_formula_in_fp64_and_plain_torch_over_200_steps(isa):
    """Within 32 roundings of the largest weight, and no farther from fp64 than twice what torch in fp32 is."""
    weight, gradients = random(1501), [random(1501, seed=step) for step in range(200)]
    group, slot, theirs = LAMBGroup(), slot_of(weight), weight.clone()
    tensors, current = ParamList([slot]), torch.empty(1501)
    plain_step = plain_lamb([theirs], [current])
    for grad in gradients:
        current.copy_(grad)
        plain_step()
        lamb_step(tensors, [grad], [group])
    exact = lamb_in_fp64(weight, gradients, group)
    error = (slot.weight - exact).abs().max()
    assert error <= 32 * torch.finfo(torch.float32).eps * exact.abs().max()
    assert error <= 2 * (theirs - exact).abs().max()


@for_formats
def test_step_has_the_length_of_lr_times_the_weight(isa, weight_format, state_format):
    slot = slot_of(random(5001), weight_format, state_format)
    before = slot.load_weight().clone()
    run(lamb_step, [slot], [gradient(5001)], LAMBGroup(lr=0.5))
    length = (slot.load_weight() - before).double().norm() / before.double().norm()
    assert length.item() == pytest.approx(0.5, rel=1e-5 if weight_format != "bf16" else 1e-3)


@pytest.mark.parametrize("weight", [torch.zeros(300), torch.randn(300, generator=torch.Generator().manual_seed(1))])
def test_ratio_is_one_where_a_norm_is_zero(isa, weight):
    """Zero weights take Adam's step; a zero update of weights that do not decay leaves them alone."""
    slot, grad = slot_of(weight), torch.zeros(300) if weight.any() else random(300, seed=2)
    run(lamb_step, [slot], [grad], LAMBGroup(lr=0.1, weight_decay=0.0))
    torch.testing.assert_close(slot.weight, weight - 0.1 * grad.sign(), rtol=1e-4, atol=1e-4)


def test_ratio_is_of_each_tensor(isa):
    """A thousand times the weights of one tensor make a thousand times its step, and change no other."""
    weights, grads = [random(700, seed=i) for i in range(3)], [random(700, seed=9 + i) for i in range(3)]
    plain, scaled = ([slot_of(w * (f if i == 1 else 1)) for i, w in enumerate(weights)] for f in (1.0, 1024.0))
    group = LAMBGroup(weight_decay=0.0)
    run(lamb_step, plain, grads, group)
    run(lamb_step, scaled, grads, group)
    assert torch.equal(plain[0].weight, scaled[0].weight)
    assert torch.equal(plain[1].weight * 1024, scaled[1].weight)
    assert torch.equal(plain[2].weight, scaled[2].weight)


def test_eps_zero_is_safe_in_a_partial_tile(isa):
    slot = slot_of(random(33))
    run(lamb_step, [slot], [random(33, seed=1)], LAMBGroup(eps=0.0))
    assert slot.weight.isfinite().all()


def test_norms_do_not_overflow(isa):
    slot = slot_of(torch.full((5000,), 1e30))
    run(lamb_step, [slot], [torch.ones(5000)], LAMBGroup(lr=0.25, weight_decay=0.0))
    torch.testing.assert_close(slot.weight, torch.full((5000,), 0.75e30))


def test_split_weights_follow_the_fp32_ones_to_the_bit(isa):
    check_split_follows_fp32_to_the_bit(lamb_step, GROUPS[0], ("m", "v"))


@for_formats
def test_lookahead_interpolates_when_due(isa, weight_format, state_format):
    check_lookahead_interpolates_when_due(lamb_step, LAMBGroup(lr=0.1), weight_format, state_format)


def test_threads_and_the_cut_of_the_list_do_not_matter(isa):
    check_threads_and_cut_do_not_matter(lamb_step, GROUPS, ("m", "v"))


def test_skip_and_missing_gradients_change_nothing(isa):
    check_skip_and_missing_gradients_change_nothing(lamb_step, GROUPS, ("m", "v"))


@for_formats
def test_alignment_and_strides_do_not_matter(isa, weight_format, state_format):
    formats = weight_format, state_format
    check_alignment_and_strides_do_not_matter(lamb_step, GROUPS[0], *formats, states=("m", "v"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_gradient_spoils_its_tensor_and_no_other(isa, value):
    slots, grads = [slot_of(random(600)) for _ in range(2)], [random(600, seed=1) for _ in range(2)]
    grads[0][300] = value
    run(lamb_step, slots, grads, GROUPS[0])
    assert slots[0].weight.isnan().all()
    assert slots[1].weight.isfinite().all()


def test_a_step_of_no_tensors_counts_nothing_and_takes_no_gradient(isa):
    empty = ParamList([])
    for groups in ([], [LAMBGroup()]):
        lamb_step(empty, [], groups)
    assert list(empty.steps) == []
    with pytest.raises(ValueError, match="expected a gradient or None for each of 0 tensors, got 1"):
        lamb_step(empty, [torch.ones(3)], [LAMBGroup()])


def test_group_mirrors_the_header():
    assert fields_of(LAMBGroup) == fields_in_header("fs_lamb_group")


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="expected m and v; make the slot with"):
        lamb_step(ParamList([slot_of(random(3), states=("m",))]), [torch.ones(3)], [LAMBGroup()])
    with pytest.raises(ValueError, match="expected a group below 0, got 0"):
        lamb_step(ParamList([slot_of(random(3))]), [torch.ones(3)], [])
