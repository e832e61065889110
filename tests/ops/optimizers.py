"""Slots, gradients and comparisons that the optimizer tests share."""

import copy
import re
from pathlib import Path

import pytest
import torch

from fullstride import _native
from fullstride.ops._optimizer import STATE_FORMATS, WEIGHT_FORMATS, ParamList, make_slot

from .cases import DTYPES, off_by_one, random, strided

# Nothing, one, odd, one past each vector width, around the tile of 256 and the chunk of 4096, several chunks.
NUMELS = [0, 1, 3, 9, 17, 33, 255, 256, 257, 1023, 4097, 9001]

for_formats = pytest.mark.parametrize(
    ("weight_format", "state_format"), [(weight, state) for weight in WEIGHT_FORMATS for state in STATE_FORMATS]
)


def slot_of(weight, weight_format="fp32", state_format="fp32", **options):
    weight = weight.bfloat16() if weight_format == "bf16" else weight
    return make_slot(weight.clone(), weight_format, state_format, **options)


def gradient(*shape, seed=0, dtype=torch.float32):
    """Values over ten orders of magnitude, as gradients are."""
    return (random(*shape, seed=seed) * torch.exp(4 * random(*shape, seed=seed + 1000))).to(dtype)


def everything(slot):
    names = ("weight", "weight_lo", "m", "v", "v_max", "m_scale", "v_scale", "v_max_scale", "slow")
    return {name: getattr(slot, name) for name in names if getattr(slot, name) is not None}


def assert_same_bits(a, b):
    a, b = everything(a), everything(b)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8)), name


def mixed_list(**options):
    """Every format in one list, with sizes from nothing to several chunks."""
    formats = [(weight, state) for weight in WEIGHT_FORMATS for state in STATE_FORMATS]
    slots, gradients = [], []
    for i, numel in enumerate([70001, 10, 0, 4096, 8193, 1, 513, 30000, 777]):
        slots.append(slot_of(random(numel, seed=i), *formats[i], stream=i, group=i % 2, **options))
        gradients.append(gradient(numel, seed=i, dtype=DTYPES[i % 2]))
    return slots, gradients


def run(step, slots, gradients, group, steps=1, **options):
    tensors = ParamList(slots)
    for _ in range(steps):
        step(tensors, gradients, [group], **options)
    return slots


def fields_in_header(name):
    """(field, bytes) of a struct of csrc/fullstride.h, in order."""
    header = (Path(__file__).parents[2] / "csrc" / "fullstride.h").read_text()
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", header, re.DOTALL)
    fields = re.findall(r"(?:const )?(\w+(?:\*| ))([\w, ]+);", re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL))
    sized = [(names.replace(" ", "").split(","), 4 if kind.strip() == "int32_t" else 8) for kind, names in fields]
    return [(field, size) for names, size in sized for field in names]


def fields_of(mirror):
    return [(field, getattr(mirror, field).size) for field, *_ in mirror._fields_]


def check_threads_and_cut_do_not_matter(step, groups, states):
    together, gradients = mixed_list(states=states)
    alone, threaded = copy.deepcopy(together), copy.deepcopy(together)
    step(ParamList(together), gradients, groups, seed=5)
    for slot, grad in zip(alone, gradients, strict=True):
        step(ParamList([slot]), [grad], groups, seed=5)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    _native.library().fs_set_grain(256)
    try:
        step(ParamList(threaded), gradients, groups, seed=5)
    finally:
        torch.set_num_threads(threads)
        _native.library().fs_set_grain(0)
    for a, b, c in zip(together, alone, threaded, strict=True):
        assert_same_bits(a, b)
        assert_same_bits(a, c)


def check_skip_and_missing_gradients_change_nothing(step, groups, states):
    slots, gradients = mixed_list(states=states)
    before, tensors = copy.deepcopy(slots), ParamList(slots)
    step(tensors, gradients, groups, skip=True)
    step(tensors, [None] * len(slots), groups)
    for a, b in zip(before, slots, strict=True):
        assert_same_bits(a, b)
    assert not tensors.steps.any()


def check_alignment_and_strides_do_not_matter(step, group, *slot_formats, states):
    plain = slot_of(random(700), *slot_formats, states=states)
    shifted, grad = copy.deepcopy(plain), gradient(700)
    for name, tensor in everything(shifted).items():
        setattr(shifted, name, off_by_one(tensor))
    run(step, [plain], [grad], group)
    run(step, [shifted], [strided(grad)], group)
    assert_same_bits(plain, shifted)


def check_lookahead_interpolates_when_due(step, group, weight_format, state_format):
    grad = random(700, seed=1)
    plain, waiting, due = (slot_of(random(700), weight_format, state_format, lookahead=x) for x in (False, True, True))
    before = due.slow.clone()
    run(step, [plain], [grad], group)
    run(step, [waiting], [grad], group)
    run(step, [due], [grad], group, lookahead_alpha=0.5)
    assert torch.equal(waiting.slow, before)
    assert torch.equal(waiting.load_weight(), plain.load_weight())
    tolerance = 2**-7 if weight_format == "bf16" else 1e-6  # there the fast weight is rounded before it can be compared
    torch.testing.assert_close(due.slow, before + 0.5 * (plain.load_weight() - before), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(due.load_weight(), due.slow, rtol=tolerance if weight_format == "bf16" else 0, atol=0)


def check_split_follows_fp32_to_the_bit(step, group, states):
    whole, halves = (slot_of(random(1337), weight_format, states=states) for weight_format in ("fp32", "split"))
    for seed in range(200):
        for slot in (whole, halves):
            slot.step = seed
            run(step, [slot], [random(1337, seed=seed)], group)
    assert torch.equal(halves.load_weight(), whole.weight)
    assert all(torch.equal(getattr(halves, name), getattr(whole, name)) for name in states)
