import math

import pytest
import torch

from fullstride import _native
from fullstride.ops.dropout import dropout, dropout_reference, keep_mask, scale, threshold

from .cases import SIZES, assert_close, for_dtypes, gradients, off_by_one, random, strided


def kept(numel, p, seed, step=0):
    """The mask of the kernel as floats of 0 and 1."""
    return (dropout(torch.ones(numel), p, seed, step=step) != 0).float()


@for_dtypes
@pytest.mark.parametrize("size", SIZES)
def test_equals_reference_forward_and_backward(isa, size, dtype):
    x = random(size, dtype=dtype)
    actual = gradients(lambda x: dropout(x, 0.3, seed=5, step=7), (x,))
    expected = gradients(lambda x: dropout_reference(x, 0.3, seed=5, step=7), (x.double(),))
    assert torch.equal(actual[0][0] == 0, expected[0][0] == 0)
    assert_close(actual[0][0], expected[0][0], ulps=1)
    assert_close(actual[1][0], expected[1][0], ulps=1)


@for_dtypes
def test_index_beyond_32_bits_takes_another_key(isa, dtype):
    x, first = torch.ones(1000, dtype=dtype), 2**32 - 301
    y = torch.empty_like(x)
    _native.kernels.dropout(
        x.data_ptr(), y.data_ptr(), 1000, 3, 0, first, threshold(0.5), 2.0, _native.DTYPES[dtype]
    )
    expected = keep_mask(1000, 0.5, seed=3, first=first)
    assert torch.equal(y != 0, expected)
    assert not torch.equal(expected[301:], keep_mask(699, 0.5, seed=3))


@for_dtypes
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_none_and_all_are_dropped_exactly(isa, p, dtype):
    x = random(1000, dtype=dtype)
    (y,), (dx,) = gradients(lambda x: dropout(x, p, seed=1) * 1, (x,))
    assert torch.equal(y, x * (1 - p))
    assert torch.equal(dx == 0, torch.full((1000,), p == 1) | (random(1000, dtype=torch.bfloat16, seed=9) == 0))


def test_the_smallest_and_largest_thresholds_hold():
    assert threshold(0.0) == 0
    assert threshold(0.5) == 2**31
    assert threshold(1.0) == 2**32
    assert keep_mask(1000, 1 - 2**-33, seed=0).sum() == 0
    assert scale(1.0) == 0


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.001])
def test_rate_is_within_four_sigma(isa, p):
    numel = 1_000_000
    for seed in range(3):
        dropped = numel - kept(numel, p, seed).sum().item()
        assert abs(dropped - numel * p) <= 4 * math.sqrt(numel * p * (1 - p))


def correlation(a, b, p):
    """Of two masks, in sigmas of that of independent ones."""
    product = ((a - (1 - p)) * (b - (1 - p))).sum().item()
    return product / (p * (1 - p) * math.sqrt(len(a)))


@pytest.mark.parametrize("distance", [1, 2, 3, 8, 16, 64, 1024, 4096, 65536])
def test_neighbours_are_independent(isa, distance):
    mask = kept(500_000, 0.3, seed=11)
    assert abs(correlation(mask[:-distance], mask[distance:], 0.3)) < 4


def test_steps_and_seeds_are_independent(isa):
    masks = [kept(500_000, 0.3, seed, step) for seed, step in [(1, 0), (1, 1), (1, 2), (2, 0), (2**63, 0), (0, 0)]]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert abs(correlation(a, b, 0.3)) < 4


def test_same_mask_for_any_number_of_threads(isa, num_threads):
    num_threads(3)
    several = dropout(torch.ones(200_003), 0.4, seed=2)
    num_threads(1)
    one = dropout(torch.ones(200_003), 0.4, seed=2)
    assert torch.equal(several, one)


def test_large_tensors_around_the_cache_have_the_same_mask(isa):
    numel = 5_000_003
    x = torch.ones(numel)
    y = dropout(x, 0.4, seed=2)
    assert torch.equal(dropout(x[:70001], 0.4, seed=2), y[:70001])
    assert torch.equal((y != 0)[-1000:], keep_mask(1000, 0.4, seed=2, first=numel - 1000))


@pytest.mark.parametrize("layout", [strided, off_by_one])
def test_layout_does_not_matter(isa, layout):
    x = random(6, 67)
    assert torch.equal(dropout(layout(x), 0.5, seed=3), dropout(x, 0.5, seed=3))


@for_dtypes
def test_nan_and_infinity_pass_also_where_dropped_as_in_torch(isa, dtype):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0], dtype=dtype).repeat(50)
    y, mask = dropout(x, 0.5, seed=4), keep_mask(200, 0.5, seed=4)
    assert torch.equal(y.isnan(), x.isnan() | (x.isinf() & ~mask))
    assert torch.equal(y.isinf(), x.isinf() & mask)


def test_torch_manual_seed_governs_the_mask():
    x = torch.ones(1000)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    again = dropout(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_evaluation_returns_x_itself():
    x = random(10)
    assert dropout(x, 0.5, training=False) is x


def test_tensors_elsewhere_are_taken():
    assert dropout(torch.ones(3, device="meta"), 0.5, seed=1).device.type == "meta"


def test_reference_passes_gradcheck():
    x = random(3, 5).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: dropout_reference(x, 0.4, seed=1), [x])


def test_a_wrong_probability_is_named():
    with pytest.raises(ValueError, match=r"expected a probability p from 0 to 1, got 1\.5"):
        dropout(torch.ones(3), 1.5)
