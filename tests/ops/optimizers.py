"""Slots, gradients and comparisons that the optimizer tests share."""

import re
from pathlib import Path

import pytest
import torch

from fullstride.ops._optimizer import STATE_FORMATS, WEIGHT_FORMATS, ParamList, make_slot

from .cases import DTYPES, random

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
