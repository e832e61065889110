import math

import pytest
import torch

from fullstride import _native
from fullstride.ops.convert import (
    convert_reference,
    merge,
    merge_reference,
    split,
    split_reference,
    stochastic_reference,
    to_bf16,
    to_float,
    to_fp16,
)

from .cases import SIZES, off_by_one, random, strided

HALVES = torch.arange(-(2**15), 2**15).to(torch.int16)  # every pattern of 16 bits
CONVERSIONS = {
    "fp32 to bf16": (torch.float32, to_bf16, torch.bfloat16),
    "fp32 to fp16": (torch.float32, to_fp16, torch.float16),
    "bf16 to fp32": (torch.bfloat16, to_float, torch.float32),
    "fp16 to fp32": (torch.float16, to_float, torch.float32),
    "bf16 to fp16": (torch.bfloat16, to_fp16, torch.float16),
    "fp16 to bf16": (torch.float16, to_bf16, torch.bfloat16),
}
for_conversions = pytest.mark.parametrize("conversion", CONVERSIONS.values(), ids=CONVERSIONS.keys())
layouts = pytest.mark.parametrize("layout", [strided, off_by_one, lambda x: x.t().contiguous().t()])


def patterns():
    """fp32 values from every part of the range, and what lies around carries, ties and overflows, both signs."""
    centres = torch.tensor([
        0, 0x8000, 0x00800000, 0x33000000, 0x33800000, 0x38800000, 0x3F800000, 0x3F808000, 0x3F818000,
        0x477FE000, 0x477FF000, 0x7F7F8000, 0x7F800000, 0x7F808000, 0x7FFF8000,
    ])  # fmt: skip
    around = (centres[:, None] + torch.arange(-200, 200)).clamp(0, 2**31 - 1).flatten()
    bits = torch.cat((torch.arange(0, 2**32, 4001), around, around + 2**31))
    return torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32)


def assert_same_bits(actual, expected):
    """Equal to the bit, except that any NaN equals any NaN."""
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.isnan(), expected.isnan())
    size = {2: torch.int16, 4: torch.int32}[actual.dtype.itemsize]
    number = ~actual.isnan()
    assert torch.equal(actual[number].view(size), expected[number].view(size))


@for_conversions
def test_every_part_of_the_range_converts_as_in_torch(isa, conversion):
    source, convert, target = conversion
    x = patterns() if source == torch.float32 else HALVES.view(source)
    assert_same_bits(convert(x), convert_reference(x, target))


@pytest.mark.parametrize(("dtype", "narrow"), [(torch.bfloat16, to_bf16), (torch.float16, to_fp16)])
def test_every_16_bit_number_survives_the_way_through_fp32(isa, dtype, narrow):
    x = HALVES.view(dtype)
    assert_same_bits(narrow(to_float(x)), x)


def test_ties_go_to_even(isa):
    x = torch.tensor([1 + 1 / 256, 1 + 3 / 256, -1 - 1 / 256])
    assert to_bf16(x).tolist() == [1, 1 + 4 / 256, -1]
    x = torch.tensor([1 + 1 / 2048, 1 + 3 / 2048, 2.0**-25, 3 * 2.0**-25])
    assert to_fp16(x).tolist() == [1, 1 + 4 / 2048, 0, 2.0**-23]


def test_fp16_overflows_half_a_step_beyond_its_largest(isa):
    below = torch.nextafter(torch.tensor(65520.0), torch.tensor(0.0)).item()
    assert to_fp16(torch.tensor([below, 65520.0, 1e30])).tolist() == [65504, math.inf, math.inf]
    assert to_fp16(torch.tensor([-below, -65520.0])).tolist() == [-65504, -math.inf]


@for_conversions
@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_converted_to_its_end(isa, size, conversion):
    source, convert, target = conversion
    x = random(size).to(source)
    assert torch.equal(convert(x), x.to(target))


@for_conversions
@layouts
def test_layout_does_not_matter(isa, layout, conversion):
    source, convert, target = conversion
    x = random(7, 35).to(source)
    assert torch.equal(convert(layout(x)), x.to(target))


@for_conversions
def test_results_larger_than_the_cache_are_the_same(isa, conversion):
    source, convert, target = conversion
    x = random(1009).to(source).repeat(9001)  # 36 MB of fp32
    assert torch.equal(convert(x), x.to(target))


@for_conversions
def test_the_gradient_is_converted_back(isa, conversion):
    source, convert, target = conversion
    x = random(35).to(source).requires_grad_()
    gradient = random(35, seed=1).to(target)
    (dx,) = torch.autograd.grad(convert(x), x, gradient)
    assert torch.equal(dx, gradient.to(source))


@pytest.mark.parametrize("convert", [to_bf16, to_fp16, to_float])
def test_fp64_goes_through_torch(convert):
    x = random(5).double()
    assert torch.equal(convert(x), x.to(convert(x).dtype))


def test_what_has_the_format_is_returned_itself():
    x = random(3)
    assert to_float(x) is x
    assert to_bf16(narrow := to_bf16(x)) is narrow


# ---- stochastic rounding ---------------------------------------------------------------------------------------------


def test_stochastic_rounding_equals_the_reference_to_the_bit(isa):
    x = patterns()
    assert_same_bits(to_bf16(x, stochastic=True, seed=1, step=2, stream=3), stochastic_reference(x, 1, 2, 3))


def test_stochastic_rounding_gives_one_of_the_two_neighbours(isa):
    x = patterns()
    x = x[x.isfinite()]
    y = to_bf16(x, stochastic=True).float()
    assert y.isfinite().all()
    below = (x.view(torch.int32) & -65536).view(torch.float32)  # towards zero
    assert ((y == below) | ((y.abs() > below.abs()) & (below != x))).all()
    step = (y.view(torch.int32) >> 16) - (below.view(torch.int32) >> 16)
    assert set(step.unique().tolist()) == {0, 1}


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.5, 0.9])
def test_stochastic_rounding_is_unbiased(isa, fraction):
    n = 1_000_000
    value = torch.tensor(1 + fraction / 128)
    fraction = (value.item() - 1) * 128
    ups = (to_bf16(value.expand(n), stochastic=True, seed=5) > 1).sum().item()
    deviation = math.sqrt(n * fraction * (1 - fraction))
    assert abs(ups - n * fraction) < 4 * deviation


def test_neighbours_round_independently(isa):
    n = 1_000_000
    up = to_bf16(torch.full((n,), 1 + 0.5 / 128), stochastic=True, seed=6) > 1
    for distance in (1, 2, 8, 256):
        assert abs((up[distance:] == up[:-distance]).float().mean().item() - 0.5) < 4 * 0.5 / math.sqrt(n)


@pytest.mark.parametrize("other", [{"seed": 2}, {"step": 2}, {"stream": 2}])
def test_seed_step_and_stream_each_change_the_rounding(isa, other):
    x = random(4099)
    key = {"seed": 1, "step": 1, "stream": 1}
    first = to_bf16(x, stochastic=True, **key)
    assert torch.equal(first, to_bf16(x, stochastic=True, **key))
    assert 0.2 < (first != to_bf16(x, stochastic=True, **{**key, **other})).float().mean().item() < 0.5


def test_the_rounding_of_an_element_depends_on_its_index_only(isa):
    x = random(70_001)
    whole = to_bf16(x, stochastic=True, seed=3)
    assert torch.equal(to_bf16(x[:33], stochastic=True, seed=3), whole[:33])
    assert torch.equal(to_bf16(strided(x), stochastic=True, seed=3), whole)


def test_the_number_of_threads_does_not_matter(isa):
    x = random(100_001)
    threads = torch.get_num_threads()
    y = to_bf16(x, stochastic=True, seed=3)
    torch.set_num_threads(1)
    try:
        assert torch.equal(y, to_bf16(x, stochastic=True, seed=3))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_rounded_to_its_end(isa, size):
    x = random(size)
    assert torch.equal(to_bf16(x, stochastic=True, seed=4), stochastic_reference(x, 4, 0, 0))


def test_the_gradient_passes_stochastic_rounding(isa):
    x = random(9).requires_grad_()
    to_bf16(x, stochastic=True).sum().backward()
    assert torch.equal(x.grad, torch.ones(9))


# ---- split and merge -------------------------------------------------------------------------------------------------


def test_merge_gives_every_bit_back(isa):
    x = patterns()
    assert_same_bits(merge(*split(x)), x)


def test_hi_is_the_nearest_bf16_and_shows_every_nan(isa):
    x = patterns()
    hi, lo = split(x)
    assert torch.equal(hi.isnan(), x.isnan())
    assert (lo[x.isnan()] == 0).all()
    nearest = x.bfloat16()
    tie = lo == -(2**15)  # the only place where half-way cases go elsewhere
    assert torch.equal(hi[~tie & ~x.isnan()], nearest[~tie & ~x.isnan()])


def test_split_and_merge_equal_their_references(isa):
    x = patterns()
    hi, lo = split(x)
    hi_reference, lo_reference = split_reference(x)
    assert_same_bits(hi, hi_reference)
    assert torch.equal(lo, lo_reference)
    assert_same_bits(merge(hi, lo), merge_reference(hi, lo))


@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_split_to_its_end(isa, size):
    x = random(size)
    hi, lo = split(x)
    assert torch.equal(merge(hi, lo), x)


@layouts
def test_the_layout_of_what_is_split_and_merged_does_not_matter(isa, layout):
    x = random(7, 35)
    hi, lo = split(x)
    assert all(torch.equal(a, b) for a, b in zip(split(layout(x)), (hi, lo), strict=True))
    assert torch.equal(merge(layout(hi), strided(lo)), x)


def test_splits_larger_than_the_cache_are_the_same(isa):
    x = random(1009).repeat(9001)
    assert torch.equal(merge(*split(x)), x)


# ---- bad input and no library ----------------------------------------------------------------------------------------


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"expected a floating-point tensor, got torch.int64"):
        to_bf16(torch.arange(3))
    with pytest.raises(ValueError, match=r"expected seed in \[0, 2\^64\), got -1"):
        to_bf16(random(3), stochastic=True, seed=-1)
    with pytest.raises(ValueError, match=r"expected fp32 to round stochastically, got torch.float64"):
        to_bf16(random(3).double(), stochastic=True)
    with pytest.raises(ValueError, match=r"split: expected fp32, got torch.bfloat16"):
        split(random(3).bfloat16())
    with pytest.raises(ValueError, match=r"merge: expected hi in bf16 and lo in int16 of one shape"):
        merge(random(3).bfloat16(), torch.zeros(4, dtype=torch.int16))


def test_without_the_library_the_references_serve(monkeypatch):
    x = random(1000)
    with_kernels = to_bf16(x), to_bf16(x, stochastic=True, seed=7), to_fp16(x), *split(x)
    monkeypatch.setattr(_native, "available", lambda: False)
    without = to_bf16(x), to_bf16(x, stochastic=True, seed=7), to_fp16(x), *split(x)
    assert all(torch.equal(a, b) for a, b in zip(with_kernels, without, strict=True))
    assert torch.equal(merge(*split(x)), x)


def test_the_gradient_passes_stochastic_rounding_without_the_library(monkeypatch):
    monkeypatch.setattr(_native, "available", lambda: False)
    x = random(5).requires_grad_()
    to_bf16(x, stochastic=True).sum().backward()
    assert torch.equal(x.grad, torch.ones(5))


def test_stochastic_rounding_takes_tensors_elsewhere():
    assert to_bf16(torch.ones(3, device="meta"), stochastic=True).device.type == "meta"
