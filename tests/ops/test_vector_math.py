import math
from contextlib import contextmanager

import pytest
import torch

from fullstride import _native
from fullstride.ops import vector_math
from fullstride.ops.vector_math import BOUNDS, vector_function_reference

from ..conftest import SUPPORTED
from .cases import SIZES, assert_close, for_dtypes, gradients, off_by_one, random, strided

NAMES = list(BOUNDS)
for_functions = pytest.mark.parametrize("name", NAMES)
INFINITY, NAN = math.inf, math.nan


@contextmanager
def denormals_kept():
    _native.library().fs_set_flush_denormals(0)
    try:
        yield
    finally:
        _native.library().fs_set_flush_denormals(1)


def function(name):
    return getattr(vector_math, name)


def from_patterns(patterns):
    """fp32 values from patterns in int64."""
    return torch.where(patterns >= 2**31, patterns - 2**32, patterns).to(torch.int32).view(torch.float32)


def exact_values(name, x):
    return vector_function_reference(x.double(), name)


def worst_error(name, x, exact=None):
    """The largest error over x in ulp of fp32 at the exact value. Infinity stands at 2^128, where rounding gives it."""
    y, exact = function(name)(x), exact_values(name, x) if exact is None else exact
    assert torch.equal(y.isnan(), exact.isnan()), "NaN in other places"
    number = ~y.isnan()
    y, exact = y[number].double(), exact[number]
    assert torch.equal(y.signbit(), exact.signbit()), "other signs"
    y, exact = y.clamp(-(2.0**128), 2.0**128), exact.clamp(-(2.0**128), 2.0**128)
    ulp = torch.exp2(torch.frexp(exact).exponent.clamp(min=-125).double() - 24)
    return ((y - exact).abs() / ulp).max().item()


def domain(name):
    """Inputs where the function has a finite derivative."""
    x = random(3, 41)
    return x.abs() + 0.5 if name in ("log", "sqrt", "rsqrt") else x


@for_functions
def test_the_bound_holds_over_the_whole_range_in_every_variant(name):
    x = from_patterns(torch.arange(0, 2**32, 2003))
    exact = exact_values(name, x)  # once for all variants: it takes most of the time
    for variant in SUPPORTED:
        with _native.use_isa(variant), denormals_kept():
            assert worst_error(name, x, exact) <= BOUNDS[name], variant


@for_functions
def test_the_bound_holds_around_the_seams(isa, name):
    seams = [0.0, 2.0**-126, 0.625, math.sqrt(0.5), 0.9217, 1.0, math.sqrt(2), 4.0, 9.01, 87.3365, 88.7228, 103.97, 1e5]
    seams += [k * math.log(2) / 2 for k in range(1, 200, 2)]  # where exp changes its power of two
    seams += [k * math.pi / 4 for k in range(1, 200)]  # where sin and cos change their quarter, or are nearly zero
    seams += [k * 487 * math.pi / 2 for k in range(1, 130)]
    centres = torch.tensor(seams).view(torch.int32).long()
    patterns = (centres[:, None] + torch.arange(-300, 300)).clamp(min=0).flatten()
    with denormals_kept():
        assert worst_error(name, from_patterns(torch.cat((patterns, patterns + 2**31)))) <= BOUNDS[name]


@for_functions
def test_the_bound_holds_for_denormals(isa, name):
    patterns = torch.cat((torch.arange(1, 300), torch.arange(0, 2**23, 997), torch.arange(2**23 - 300, 2**23 + 300)))
    with denormals_kept():
        assert worst_error(name, from_patterns(torch.cat((patterns, patterns + 2**31)))) <= BOUNDS[name]


def test_exp_and_sigmoid_reach_down_through_the_denormals(isa):
    x = torch.linspace(-104.5, -86, 100_003)
    with denormals_kept():
        assert worst_error("exp", x) <= BOUNDS["exp"]
        assert worst_error("sigmoid", x) <= BOUNDS["sigmoid"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exp", [1, 1, INFINITY, 0, NAN]),
        ("log", [-INFINITY, -INFINITY, INFINITY, NAN, NAN]),
        ("sqrt", [0.0, -0.0, INFINITY, NAN, NAN]),
        ("rsqrt", [INFINITY, -INFINITY, 0, NAN, NAN]),
        ("tanh", [0.0, -0.0, 1, -1, NAN]),
        ("sigmoid", [0.5, 0.5, 1, 0, NAN]),
        ("sin", [0.0, -0.0, NAN, NAN, NAN]),
        ("cos", [1, 1, NAN, NAN, NAN]),
        ("erf", [0.0, -0.0, 1, -1, NAN]),
    ],
)
def test_zeros_infinities_and_nan_give_what_mathematics_says(isa, name, expected):
    y = function(name)(torch.tensor([0.0, -0.0, INFINITY, -INFINITY, NAN]))
    expected = torch.tensor(expected)
    assert torch.equal(y.nan_to_num(77), expected.nan_to_num(77))
    assert torch.equal(y[:4].isnan() | y[:4].signbit(), expected[:4].isnan() | expected[:4].signbit())


@for_functions
def test_flushed_denormals_count_as_zeros_of_their_sign(isa, name):
    y = function(name)(torch.tensor([1e-40, -1e-40]))
    expected = function(name)(torch.tensor([0.0, -0.0]))
    assert torch.equal(y.view(torch.int32), expected.view(torch.int32))


def test_flushed_results_are_zero(isa):
    assert vector_math.exp(torch.tensor([-95.0])).item() == 0
    with denormals_kept():
        assert vector_math.exp(torch.tensor([-95.0])).item() > 0


@for_functions
def test_bf16_is_the_fp32_result_rounded_for_every_pattern(isa, name):
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    assert torch.equal(function(name)(x).nan_to_num(77), function(name)(x.float()).bfloat16().nan_to_num(77))


@for_dtypes
@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_computed_to_its_end(isa, size, dtype):
    x = random(size, dtype=dtype)
    assert_close(vector_math.tanh(x), torch.tanh(x.double()), ulps=1)


@for_dtypes
@for_functions
def test_backward_is_the_derivative(isa, name, dtype):
    x = domain(name).to(dtype)
    _, (dx,) = gradients(function(name), (x,))
    _, (expected,) = gradients(lambda x: vector_function_reference(x, name), (x.double(),))
    # In bf16 the derivative sees the rounding of the saved result, up to three times (rsqrt).
    assert_close(dx, expected, ulps=8 if dtype == torch.float32 else 3)


@pytest.mark.parametrize("layout", [strided, off_by_one, lambda x: x.t().contiguous().t()])
@for_functions
def test_layout_does_not_matter(isa, name, layout):
    x = domain(name)
    (y,), (dx,) = gradients(function(name), (x,))
    (other_y,), (other_dx,) = gradients(function(name), (layout(x),))
    assert torch.equal(y, other_y)
    assert torch.equal(dx, other_dx)


def test_results_larger_than_the_cache_are_the_same(isa):
    x = random(3, 41).repeat(1, 50_000)  # 24 MB
    assert torch.equal(vector_math.exp(x)[:, -41:], vector_math.exp(x[:, -41:]))


def test_the_number_of_threads_does_not_matter(isa):
    x = random(100_001)
    threads = torch.get_num_threads()
    y = vector_math.exp(x)
    torch.set_num_threads(1)
    try:
        assert torch.equal(y, vector_math.exp(x))
    finally:
        torch.set_num_threads(threads)


@for_functions
def test_reference_passes_gradcheck(name):
    x = domain(name)[:, :4].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: vector_function_reference(x, name), (x,))


@for_functions
def test_fp64_goes_through_the_reference(name):
    x = domain(name).double()
    assert torch.equal(function(name)(x), getattr(torch, name)(x))


def test_integers_are_refused():
    with pytest.raises(ValueError, match=r"exp: expected a floating-point tensor, got torch.int64; .*float\(\)"):
        vector_math.exp(torch.arange(3))
