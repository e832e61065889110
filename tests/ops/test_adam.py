import copy

import pytest
import torch

from fullstride.ops import _formats as formats
from fullstride.ops._optimizer import Param, ParamList, make_slot
from fullstride.ops.adam import AdamGroup, adam_reference, adam_step

from .cases import DTYPES, random
from .optimizers import (
    NUMELS,
    assert_same_bits,
    check_alignment_and_strides_do_not_matter,
    check_lookahead_interpolates_when_due,
    check_skip_and_missing_gradients_change_nothing,
    check_threads_and_cut_do_not_matter,
    everything,
    fields_in_header,
    fields_of,
    for_formats,
    gradient,
    mixed_list,
    run,
    slot_of,
)

STATES = ("m", "v", "v_max")

@pytest.fixture
def one_thread(num_threads):
    num_threads(1)


# ---- kernel and reference ----------------------------------------------------------------------------------------


@for_formats
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
@pytest.mark.parametrize("amsgrad", [False, True], ids=["plain", "amsgrad"])
def test_first_step_equals_reference(isa, weight_format, state_format, dtype, amsgrad):
    """States to the bit: from zero states nothing depends on whether a product and a sum are fused."""
    group = AdamGroup(lr=0.1, weight_decay=0.1, amsgrad=amsgrad)
    states = STATES if amsgrad else STATES[:2]
    for numel in NUMELS:
        weight, grad = random(numel), gradient(numel, dtype=dtype, seed=1)
        ours, theirs = (slot_of(weight, weight_format, state_format, states=states, stream=5) for _ in range(2))
        run(adam_step, [ours], [grad], group, seed=7)
        adam_reference(theirs, grad, group, step=1, seed=7)
        actual, expected = everything(ours), everything(theirs)
        for name in set(actual) - {"weight", "weight_lo"}:
            assert torch.equal(actual[name], expected[name]), (numel, name)
        ulp = torch.finfo(ours.weight.dtype if weight_format == "bf16" else torch.float32).eps
        torch.testing.assert_close(ours.load_weight(), theirs.load_weight(), rtol=2 * ulp, atol=2 * ulp)


@for_formats
@pytest.mark.parametrize("decoupled", [False, True], ids=["adam", "adamw"])
def test_later_steps_follow_the_reference(isa, weight_format, state_format, decoupled):
    """Fused products round differently now and then, so a code may differ by one where chance was that close."""
    group = AdamGroup(lr=0.01, weight_decay=0.1, decoupled=decoupled, maximize=True)
    ours, theirs = (slot_of(random(1001), weight_format, state_format, stream=5) for _ in range(2))
    tensors = ParamList([ours])
    for step in range(1, 6):
        grad = gradient(1001, seed=step)
        adam_step(tensors, [grad], [group], grad_scale=0.5, seed=7)
        adam_reference(theirs, grad, group, step, grad_scale=0.5, seed=7)
    for name in ("m", "v"):
        a, b = getattr(ours, name), getattr(theirs, name)
        if state_format == "fp32":
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * float(b.abs().max()))
        else:
            assert (a != b).sum() <= 5, name
    tolerance = 2**-6 if weight_format == "bf16" else 1e-4
    torch.testing.assert_close(ours.load_weight(), theirs.load_weight(), rtol=0, atol=tolerance)


@for_formats
def test_lookahead_interpolates_when_due(isa, weight_format, state_format):
    check_lookahead_interpolates_when_due(adam_step, AdamGroup(lr=0.1), weight_format, state_format)


# ---- torch.optim -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "options"),
    [
        (torch.optim.AdamW, {"weight_decay": 0.01}),
        (torch.optim.AdamW, {"weight_decay": 0.01, "fused": True}),
        (torch.optim.Adam, {"weight_decay": 0.01}),
        (torch.optim.Adam, {"weight_decay": 0.01, "amsgrad": True}),
        (torch.optim.AdamW, {"weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    ],
)
def test_fp32_equals_torch_over_200_steps(isa, one_thread, peer, options):
    """Weights and m within 2 roundings of 1 or their own size, v within 8 ulp of each element."""
    weight = random(1501)
    theirs = torch.nn.Parameter(weight.clone())
    optimizer = peer([theirs], lr=1e-3, **options)
    shared = {k: v for k, v in options.items() if k != "fused"}
    group = AdamGroup(lr=1e-3, decoupled=peer is torch.optim.AdamW, **shared)
    amsgrad = options.get("amsgrad", False)
    ours = slot_of(weight, states=STATES if amsgrad else STATES[:2])
    tensors = ParamList([ours])
    for step in range(200):
        theirs.grad = random(1501, seed=step)
        optimizer.step()
        adam_step(tensors, [theirs.grad], [group])
    state, eps = optimizer.state[theirs], torch.finfo(torch.float32).eps
    for actual, expected in ((ours.weight, theirs.detach()), (ours.m, state["exp_avg"])):
        assert ((actual - expected).abs() <= 2 * eps * expected.abs().clamp(min=1)).all()
    torch.testing.assert_close(ours.v, state["exp_avg_sq"], rtol=8 * eps, atol=0)
    if amsgrad:
        torch.testing.assert_close(ours.v_max, state["max_exp_avg_sq"], rtol=8 * eps, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
@pytest.mark.parametrize("decoupled", [False, True], ids=["adam", "adamw"])
def test_split_weights_follow_the_fp32_ones_to_the_bit(isa, one_thread, dtype, decoupled):
    group = AdamGroup(lr=0.01, weight_decay=0.01, decoupled=decoupled)
    whole, halves = slot_of(random(1337)), slot_of(random(1337), "split")
    pairs = ParamList([whole]), ParamList([halves])
    for step in range(200):
        grad = gradient(1337, seed=step, dtype=dtype)
        for tensors in pairs:
            adam_step(tensors, [grad], [group])
    assert torch.equal(halves.load_weight(), whole.weight)
    assert torch.equal(halves.m, whole.m)
    assert torch.equal(halves.v, whole.v)


# ---- formats -----------------------------------------------------------------------------------------------------


def test_split_and_merge_keep_every_bit():
    x = torch.cat([gradient(10000), torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 3.4028235e38, 1e-40, torch.nan])])
    hi, lo = formats.split(x)
    back = formats.merge(hi, lo)
    assert torch.equal(back[:-1].view(torch.int32), x[:-1].view(torch.int32))
    assert back[-1].isnan()
    assert hi[-1].isnan()
    assert ((hi.float() - x).abs() <= (x.bfloat16().float() - x).abs())[:10000].all()  # rounded to nearest


@pytest.mark.parametrize("name", ["m", "root"])
def test_8bit_codes_are_close_and_come_back_unchanged(name):
    """Within one step of the code: an eighth (m) or a sixteenth (root) of the value, plus 2^-19 of the scale."""
    encode, decode = getattr(formats, f"encode_{name}"), getattr(formats, f"decode_{name}")
    x = gradient(5000) if name == "m" else gradient(5000).abs()
    code, scale = encode(x, formats.random_bits(1, 2, 3, 5000))
    back = decode(code, scale)
    bound = x.abs() / (8 if name == "m" else 16) + scale.repeat_interleave(256)[:5000] * 2.0**-18
    assert ((back - x).abs() <= bound).all()
    again, next_scale = encode(back, formats.random_bits(4, 5, 6, 5000))
    same = scale == next_scale  # but where rounding carried the largest of a block over a power of two
    assert same.float().mean() > 0.75
    assert torch.equal(code[same.repeat_interleave(256)[:5000]], again[same.repeat_interleave(256)[:5000]])


@pytest.mark.parametrize("state_format", ["bf16", "8bit"])
def test_rounding_of_states_is_unbiased(isa, one_thread, state_format):
    """The mean of 40000 roundings of one value is that value within 5 standard errors."""
    n = 40000
    for value in (0.3, -0.0107, 1.7e-3):
        slot = slot_of(torch.zeros(n), state_format=state_format)
        grad = torch.full((n,), value)
        grad[::256] = 1.0  # the largest of each block: the scale is not that of the value
        run(adam_step, [slot], [grad], AdamGroup(beta1=0.5, beta2=0.75), seed=3)
        for name, exact in (("m", 0.5 * value), ("v", abs(0.5 * value) if state_format == "8bit" else 0.25 * value**2)):
            kept = slot.load_state(name)[grad != 1].double()
            error = (kept.mean() - torch.tensor(exact, dtype=torch.float32).double()).abs()
            assert kept.unique().numel() == 2, "a value between two codes becomes one or the other"
            assert error <= 5 * kept.std() / kept.numel() ** 0.5, (value, name)


def test_rounding_of_bf16_weights_is_unbiased(isa):
    n = 40000
    slot = slot_of(torch.ones(n), "bf16")
    run(adam_step, [slot], [torch.ones(n)], AdamGroup(lr=1e-3), seed=3)
    kept = slot.weight.double()
    assert (kept.mean() - 0.999).abs() <= 5 * kept.std() / n**0.5


@pytest.mark.parametrize("weight_format", ["split", "bf16"])
@pytest.mark.parametrize("state_format", ["bf16", "8bit"])
def test_bits_follow_from_seed_step_and_stream(isa, weight_format, state_format):
    def stepped(seed=1, stream=0, start=0):
        slot = slot_of(random(2000), weight_format, state_format, stream=stream)
        slot.step = start
        return run(adam_step, [slot], [gradient(2000)], AdamGroup(lr=0.1, beta1=0.5, beta2=0.5), seed=seed)[0]

    first = stepped()
    assert_same_bits(first, stepped())
    for other in (stepped(seed=2), stepped(stream=1), stepped(start=1)):
        assert not torch.equal(first.m, other.m)
        assert not torch.equal(first.v, other.v)


# ---- lists -------------------------------------------------------------------------------------------------------


GROUPS = [AdamGroup(lr=0.1, weight_decay=0.1), AdamGroup(lr=0.01, beta2=0.9, decoupled=False)]


def test_threads_and_the_cut_of_the_list_do_not_matter(isa):
    check_threads_and_cut_do_not_matter(adam_step, GROUPS, STATES[:2])


def test_a_tensor_without_gradient_is_left_alone(isa):
    slots, grads = mixed_list()
    before = copy.deepcopy(slots[3])
    tensors = ParamList(slots)
    grads[3] = None
    adam_step(tensors, grads, GROUPS)
    assert_same_bits(before, slots[3])
    assert tensors.steps[3] == 0
    assert tensors.steps[4] == 1


def test_skip_and_missing_gradients_change_nothing(isa):
    check_skip_and_missing_gradients_change_nothing(adam_step, GROUPS, STATES[:2])


def test_a_step_of_no_tensors_counts_nothing_and_takes_no_gradient(isa):
    empty = ParamList([])
    for groups in ([], [AdamGroup()]):
        adam_step(empty, [], groups)
    assert list(empty.steps) == []
    with pytest.raises(ValueError, match="expected a gradient or None for each of 0 tensors, got 1"):
        adam_step(empty, [torch.ones(3)], [AdamGroup()])


def test_gradient_factor_is_applied_first(isa):
    """A factor that is a power of two changes no bit but the exponent."""
    a, b = slot_of(random(999)), slot_of(random(999))
    run(adam_step, [a], [gradient(999)], GROUPS[0], grad_scale=0.25)
    run(adam_step, [b], [gradient(999) * 0.25], GROUPS[0])
    assert_same_bits(a, b)


@for_formats
def test_alignment_and_strides_do_not_matter(isa, weight_format, state_format):
    formats_of = weight_format, state_format
    check_alignment_and_strides_do_not_matter(adam_step, GROUPS[0], *formats_of, states=STATES[:2])


@for_formats
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0x7FFFFFFF], ids=str)
def test_a_bad_gradient_shows(isa, weight_format, state_format, value):
    """Its weight becomes NaN; the neighbours do not, except later in the same 8-bit block."""
    slot, grad = slot_of(random(600), weight_format, state_format), random(600, seed=1)
    if isinstance(value, int):  # a NaN with every bit set, which rounding could carry into a zero
        grad.view(torch.int32)[300] = value
    else:
        grad[300] = value
    run(adam_step, [slot], [grad], AdamGroup())
    bad = slot.weight.isnan()
    assert bad[300]
    assert bad.sum() == 1
    assert not slot.load_state("m")[300].isfinite()
    spoiled = 256 if state_format == "8bit" else 1
    assert (~slot.load_state("m").isfinite()).sum() == spoiled
    assert (~slot.load_state("v").isfinite()).sum() == spoiled


# ---- structs and messages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mirror", "size"), [("fs_param", Param, 120), ("fs_adam_group", AdamGroup, 56)])
def test_structs_mirror_the_header(name, mirror, size):
    """Same names and sizes in the same order, without padding; optimizer/step.h asserts the sizes on its side."""
    declared = fields_in_header(name)
    assert fields_of(mirror) == declared
    assert sum(width for _, width in declared) == size


def test_wrong_arguments_are_named():
    slot = slot_of(random(4, 8))
    with pytest.raises(ValueError, match=r"expected an fp32 or bf16 gradient of shape \(4, 8\), got"):
        adam_step(ParamList([slot]), [torch.ones(8, 4)], [AdamGroup()])
    with pytest.raises(ValueError, match="expected a gradient or None for each of 1 tensors, got 2"):
        adam_step(ParamList([slot]), [None, None], [AdamGroup()])
    with pytest.raises(ValueError, match="expected m and v, with AMSGrad v_max too"):
        adam_step(ParamList([slot]), [torch.ones(4, 8)], [AdamGroup(amsgrad=True)])
    with pytest.raises(ValueError, match="expected a group below 0, got 0"):
        adam_step(ParamList([slot]), [torch.ones(4, 8)], [])
    with pytest.raises(ValueError, match=r"expected a contiguous torch\.bfloat16 weight for the format 'bf16'"):
        make_slot(torch.ones(3), "bf16")
    with pytest.raises(ValueError, match="expected a weight format of fp32, split, bf16"):
        make_slot(torch.ones(3), "fp8")


# ---- training ----------------------------------------------------------------------------------------------------


def trained_loss(weight_format, state_format):
    """Loss of a small MLP on generated data after 300 steps."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 20, generator=generator)
    y = (x @ torch.randn(20, 40, generator=generator)).tanh() @ torch.randn(40, 5, generator=generator)
    labels = y.argmax(dim=1)
    shapes = [(32, 20), (32,), (5, 32), (5,)]
    start = [torch.randn(*shape, generator=generator) * 0.2 for shape in shapes]
    slots = [slot_of(weight, weight_format, state_format, stream=i) for i, weight in enumerate(start)]
    tensors, group = ParamList(slots), AdamGroup(lr=3e-3, weight_decay=0.01)
    for _ in range(300):
        leaves = [slot.load_weight().requires_grad_() for slot in slots]
        hidden = torch.relu(torch.nn.functional.linear(x, leaves[0], leaves[1]))
        loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, leaves[2], leaves[3]), labels)
        adam_step(tensors, torch.autograd.grad(loss, leaves), [group], seed=1)
    return loss.item()


def test_narrow_formats_reach_the_loss_of_fp32(one_thread):
    """Within 5 % of the loss that fp32 ends at, which is a tenth of the loss at the start."""
    best = trained_loss("fp32", "fp32")
    assert best < 0.2
    for weight_format, state_format in [("split", "bf16"), ("split", "8bit"), ("bf16", "bf16"), ("bf16", "8bit")]:
        loss = trained_loss(weight_format, state_format)
        assert abs(loss - best) <= 0.05 * best, (weight_format, state_format, loss, best)


@pytest.mark.parametrize("weight_format", ["fp32", "split", "bf16"])
def test_a_second_moment_beyond_fp32_stops_the_weight_as_in_the_reference(isa, weight_format):
    """v overflows from gradients of 2e19 on: m / inf is 0, also where the quotient comes from an estimate."""
    ours, reference = (slot_of(random(300), weight_format, "bf16") for _ in range(2))
    grad = gradient(300, seed=1)
    grad[::7] = 1e30
    group = AdamGroup(lr=0.01)
    adam_step(ParamList([ours]), [grad], [group])
    adam_reference(reference, grad, group, step=1)
    assert ours.v.isinf().sum() == reference.v.isinf().sum() > 0
    weight = ours.load_weight()
    assert weight.isfinite().all()
    tolerance = 1e-2 if weight_format == "bf16" else 1e-5
    torch.testing.assert_close(weight, reference.load_weight(), rtol=tolerance, atol=1e-6)
