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


# ---- sums, products, multiples

FACTOR = -1.7
COMBINED = {
    "add": (vector_math.add, vector_math.add_reference),
    "mul": (vector_math.mul, vector_math.mul_reference),
    "scale": (lambda a, b: vector_math.scale(a, FACTOR), lambda a, b: vector_math.scale_reference(a, FACTOR)),
}
for_combined = pytest.mark.parametrize("name", COMBINED)
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


def bits(x):
    return x.contiguous().view(BITS[x.dtype])


@for_dtypes
@for_combined
@pytest.mark.parametrize("size", SIZES)
def test_sums_products_and_multiples_have_the_bits_of_torch(isa, name, size, dtype):
    ours, reference = COMBINED[name]
    a, b = random(size, dtype=dtype), random(size, dtype=dtype, seed=1)
    assert torch.equal(bits(ours(a, b)), bits(reference(a, b)))


@for_dtypes
@for_combined
def test_zeros_infinities_and_nan_are_combined_as_torch_does(isa, name, dtype):
    ours, reference = COMBINED[name]
    special = torch.tensor([0.0, -0.0, 1.0, -2.5, 3e38, -3e38, INFINITY, -INFINITY, NAN], dtype=dtype)
    a, b = (x.flatten().contiguous() for x in torch.meshgrid(special, special, indexing="ij"))
    y, expected = ours(a, b), reference(a, b)
    assert torch.equal(y.isnan(), expected.isnan())
    number = ~expected.isnan()
    assert torch.equal(bits(y[number]), bits(expected[number]))


@pytest.mark.parametrize("factor", [0.0, -0.0, 1, 3e38, -INFINITY, NAN])
def test_any_factor_scales_as_torch_does(isa, factor):
    x = torch.cat((random(33), torch.tensor([0.0, INFINITY, NAN])))
    for given in (x, x.bfloat16()):
        y, expected = vector_math.scale(given, factor), given * factor
        assert torch.equal(y.isnan(), expected.isnan())
        assert torch.equal(bits(y.nan_to_num(77)), bits(expected.nan_to_num(77)))


@for_combined
def test_denormals_are_flushed_unless_they_are_kept(isa, name):
    ours, reference = COMBINED[name]
    a, b = torch.tensor([1e-40, -1e-40, 1e-30]), torch.tensor([2e-40, -3e-40, 1e-15])
    assert not ours(a, b)[:2].any()
    with denormals_kept():
        assert torch.equal(bits(ours(a, b)), bits(reference(a, b)))


@for_combined
def test_layouts_of_what_is_combined_do_not_matter(isa, name):
    ours, _ = COMBINED[name]
    a, b = random(6, 41), random(6, 41, seed=1)
    (y,), expected = gradients(ours, (a, b) if name != "scale" else (a, None))
    layouts = [strided, off_by_one, lambda x: x.t().contiguous().t()]
    for one in (lambda x: x, *layouts):
        for other in layouts:
            given = (one(a), other(b)) if name != "scale" else (other(a), None)
            (other_y,), found = gradients(ours, given)
            assert torch.equal(y, other_y)
            assert all(torch.equal(gradient, right) for gradient, right in zip(found, expected, strict=True))


def test_a_view_that_is_expanded_is_combined(isa):
    x, y = random(1, 7).expand(5, 7), random(5, 7, seed=1)
    assert torch.equal(vector_math.add(x, y), x + y)
    assert torch.equal(vector_math.scale(x, 3.0), 3.0 * x)


@for_dtypes
@for_combined
def test_backward_of_what_is_combined_is_that_of_torch(isa, name, dtype):
    ours, reference = COMBINED[name]
    inputs = (random(3, 41, dtype=dtype), None if name == "scale" else random(3, 41, dtype=dtype, seed=1))
    for actual, expected in zip(gradients(ours, inputs)[1], gradients(reference, inputs)[1], strict=True):
        assert torch.equal(actual, expected)


def test_only_the_gradients_that_are_wanted_are_computed():
    a, b = random(9).requires_grad_(), random(9, seed=1)
    assert torch.equal(torch.autograd.grad(vector_math.mul(a, b).sum(), a)[0], b)
    assert torch.equal(torch.autograd.grad(vector_math.mul(b, a).sum(), a)[0], b)


def test_what_is_combined_can_be_differentiated_again():
    def penalty(add, mul, scale):
        a, b = random(9).requires_grad_(), random(9, seed=1).requires_grad_()
        y = scale(mul(add(a, b), mul(a, a)), 0.5)
        first = torch.autograd.grad(y.sum(), (a, b), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (a, b))

    ours = penalty(vector_math.add, vector_math.mul, vector_math.scale)
    torchs = penalty(torch.add, torch.mul, torch.mul)
    for actual, expected in zip(ours, torchs, strict=True):
        assert_close(actual, expected)


def test_results_of_two_larger_than_the_cache_are_the_same(isa):
    a, b = (random(3, 41, seed=seed).repeat(1, 50_000) for seed in (0, 1))  # 24 MB each
    assert torch.equal(vector_math.add(a, b), a + b)
    assert torch.equal(vector_math.mul(a.bfloat16(), b.bfloat16()), a.bfloat16() * b.bfloat16())


def test_shapes_that_differ_are_refused():
    expected = r"add: expected two tensors of one shape, got \(3,\) and \(1,\); expand one, or take torch.add"
    with pytest.raises(ValueError, match=expected):
        vector_math.add(torch.ones(3), torch.ones(1))


def test_what_the_kernels_do_not_know_is_combined_by_torch():
    x = random(5).double()
    assert torch.equal(vector_math.mul(x, x), x * x)
    assert torch.equal(vector_math.scale(torch.arange(3), 2), torch.tensor([0, 2, 4]))
    assert vector_math.add(random(5), random(5).bfloat16()).dtype is torch.float32
