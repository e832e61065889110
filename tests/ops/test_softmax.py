import numpy
import pytest
import torch

from fullstride.ops.softmax import softmax, softmax_reference

from . import formulas
from .cases import ROW_SHAPES, assert_close, for_dtypes, gradients, off_by_one, random, strided


def both(x, **options):
    """(output, gradient) of the kernel, and of the reference in fp64 on the same values."""
    actual = gradients(lambda x: softmax(x, **options), (x,))
    expected = gradients(lambda x: softmax_reference(x, **options), (x.double(),))
    return (*actual[0], *actual[1]), (*expected[0], *expected[1])


@for_dtypes
@pytest.mark.parametrize("shape", [*ROW_SHAPES, (2, 3, 65), (2, 70001)])
@pytest.mark.parametrize("options", [{}, {"scale": 0.125}], ids=["plain", "scaled"])
def test_equals_reference_forward_and_backward(isa, shape, dtype, options):
    for actual, expected in zip(*both(random(*shape, dtype=dtype), **options), strict=True):
        assert actual.dtype == dtype
        assert_close(actual, expected, ulps=4, floor=1e-3)


@for_dtypes
@pytest.mark.parametrize("offset", [0, 3, 100])
@pytest.mark.parametrize("shape", [(5, 9), (2, 3, 17, 17), (2, 33, 41), (3, 64, 40)])
def test_causal_rows_see_no_later_column(isa, shape, dtype, offset):
    x = random(*shape, dtype=dtype)
    results = both(x, scale=0.3, causal_offset=offset)
    hidden = torch.ones(shape, dtype=torch.bool).triu(offset + 1)
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected, ulps=4)
        assert (actual[hidden] == 0).all()


def test_hidden_columns_are_not_read(isa):
    x = random(9, 21)
    y = softmax(x.masked_fill(torch.ones(9, 21, dtype=torch.bool).triu(1), torch.nan), causal_offset=0)
    assert torch.equal(y, softmax(x, causal_offset=0))


@for_dtypes
@pytest.mark.parametrize("layout", [strided, off_by_one])
def test_layout_does_not_matter(isa, layout, dtype):
    x = random(6, 67, dtype=dtype)
    plain, other = (gradients(lambda x: softmax(x, causal_offset=30), (value,)) for value in (x, layout(x)))
    assert torch.equal(plain[0][0], other[0][0])
    assert torch.equal(plain[1][0], other[1][0])


@for_dtypes
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", [0, 39, slice(None)], ids=["first", "last", "all"])
def test_nan_and_infinity_come_out_as_the_formula_says(isa, value, column, dtype):
    x, dy = random(4, 40, dtype=dtype), random(4, 40, dtype=dtype, seed=9)
    x[2, column] = value
    y = formulas.softmax(x.double())
    x.requires_grad_()
    actual = softmax(x)
    assert_close(actual.detach(), y, ulps=4)
    (dx,) = torch.autograd.grad(actual, x, dy)
    assert_close(dx, y * (dy - (dy * y).sum(dim=-1, keepdim=True)), ulps=4)


@pytest.mark.parametrize("offset", [-3e38, -1e4, 1e4, 3e38])
def test_huge_values_do_not_overflow(isa, offset):
    assert_close(softmax(torch.full((2, 33), offset)), torch.full((2, 33), 1 / 33), ulps=2)


def test_exponential_is_within_its_bound(isa):
    """exp_nonpositive of simd/functions.h: in a row (0, x) with x < -18 the second result is e^x alone.

    5 ulp down to the smallest normal number, then 0; from -20 on 3 ulp, and one for the sum and the division.
    """
    x = torch.linspace(-90, 0, 400_003)
    result = softmax(torch.stack([torch.zeros_like(x), x], dim=1))[:, 1].double()
    expected = x.double().exp() / (1 + x.double().exp())
    ulp = torch.from_numpy(numpy.spacing(expected.float().numpy())).double()
    error = ((result - expected) / ulp).abs()
    assert error[x >= -20].max() <= 4
    assert error[(x >= -87.3) & (x < -20)].max() <= 5
    assert (result[x < -87.7] == 0).all()
    assert softmax(torch.tensor([[0.0, -1e30, -torch.inf]])).tolist() == [[1, 0, 0]]


def test_any_number_of_threads_gives_the_same_bits(isa):
    x = random(301, 257)
    threads = torch.get_num_threads()
    results = []
    for num_threads in [1, 2, 2]:
        torch.set_num_threads(num_threads)
        results.append(gradients(softmax, (x,)))
    torch.set_num_threads(threads)
    assert all(torch.equal(results[0][i][0], other[i][0]) for other in results[1:] for i in range(2))


@pytest.mark.parametrize("offset", [None, 1])
def test_reference_passes_gradcheck(offset):
    x = random(2, 3, 5).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: softmax_reference(x, 0.7, offset), x)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 0.5), (torch.float16, 0.5), (torch.float32, -0.5)])
def test_other_dtypes_and_negative_scales_go_through_the_reference(isa, dtype, scale):
    x = random(3, 7, dtype=dtype)
    assert torch.equal(softmax(x, scale, causal_offset=1), softmax_reference(x, scale, causal_offset=1))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"expected x \[..., rows, cols\] with causal_offset, got \(5,\)"):
        softmax(torch.ones(5), causal_offset=0)
    with pytest.raises(ValueError, match=r"expected x \[..., cols\], got \(\)"):
        softmax(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"expected causal_offset >= 0, .* got -1"):
        softmax(torch.ones(5, 5), causal_offset=-1)
