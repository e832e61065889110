import pytest
import torch
import torch.nn.functional as F

from fullstride.ops.bias_act import bias_act, bias_act_reference

from . import formulas
from .cases import ROW_SHAPES, assert_close, assert_each_close, for_dtypes, gradients, off_by_one, random, strided

NAMES = ["none", "relu", "gelu", "gelu_tanh", "silu"]
for_activations = pytest.mark.parametrize("activation", NAMES)
# Taller than one folded row of narrow columns, wider than a strip of columns, and few rows of many columns.
MORE_SHAPES = [(4099, 1), (3001, 7), (40, 513), (3, 20011), (300, 1030)]


def both(x, bias, activation):
    """(outputs, gradients) of the kernel, and of the reference in fp64 on the same values."""
    actual = gradients(lambda x, b=None: bias_act(x, b, activation), (x, bias))
    wide = (x.double(), None if bias is None else bias.double())
    return actual, gradients(lambda x, b=None: bias_act_reference(x, b, activation), wide)


def assert_all_close(actual, expected):
    for a, e in zip((*actual[0], *actual[1]), (*expected[0], *expected[1]), strict=True):
        rows = actual[0][0].numel() // max(a.numel(), 1)
        assert_close(a, e, floor=max(rows, 1) ** 0.5)  # the terms of a column sum may cancel, their roundings do not


@for_dtypes
@for_activations
@pytest.mark.parametrize("shape", ROW_SHAPES + MORE_SHAPES)
def test_equals_reference_forward_and_backward(isa, shape, dtype, activation):
    actual, expected = both(random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1), activation)
    assert_all_close(actual, expected)


@for_dtypes
@for_activations
@pytest.mark.parametrize("shape", [(5, 7), (67, 1000), (33000,)])
def test_bias_is_optional(isa, shape, dtype, activation):
    assert_all_close(*both(random(*shape, dtype=dtype), None, activation))


@for_activations
def test_mixed_precision_takes_an_fp32_bias_with_bf16_rows(isa, activation):
    actual, expected = both(random(50, 77, dtype=torch.bfloat16), random(77, seed=1), activation)
    assert actual[1][1].dtype == torch.float32
    assert_all_close(actual, expected)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_accurate_over_the_whole_range_where_it_bends(isa, activation):
    x = torch.linspace(-20, 20, 40001)
    (y,), (dx,) = gradients(lambda x: bias_act(x, activation=activation), (x,))
    (y_ref,), (dx_ref,) = gradients(lambda x: bias_act_reference(x, activation=activation), (x.double(),))
    error = (y - y_ref).abs()
    assert (error <= 1.5e-7 * y_ref.abs().clamp(min=1)).all()
    near = x > -5  # also relative to small values; beyond, the fp64 reference itself cancels
    assert (error <= 3e-6 * y_ref.abs())[near].all()
    weight = random(40001, dtype=torch.bfloat16, seed=9).abs()
    assert ((dx - dx_ref).abs() <= 2.5e-6 * weight).all()  # torch's own slopes in fp32 are off by 1.0e-6


@for_dtypes
@for_activations
def test_nan_infinity_and_huge_values_as_the_formula_says(isa, dtype, activation):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1e9, -1e9, 1e30, -1e30, 3e38, -3e38, 100.0, -100.0], dtype=dtype)
    x = x.repeat(3)  # also past the last whole vector
    y, slope = formulas.activation(activation, x)
    dy = random(len(x), dtype=dtype, seed=9)
    leaf = x.clone().requires_grad_()
    actual = bias_act(leaf, activation=activation)
    assert_each_close(actual.detach(), y)
    assert_each_close(torch.autograd.grad(actual, leaf, dy)[0], dy.double() * slope)


def test_a_nan_in_the_bias_reaches_its_column_and_no_other(isa):
    bias = torch.zeros(40)
    bias[7] = torch.tensor([-1], dtype=torch.int32).view(torch.float32)  # a NaN with all bits set
    for dtype in (torch.float32, torch.bfloat16):
        nan = bias_act(random(5, 40, dtype=dtype), bias, "silu").isnan()
        assert nan[:, 7].all()
        assert nan.sum() == 5


@for_dtypes
@pytest.mark.parametrize("layout", [strided, off_by_one])
def test_layout_does_not_matter(isa, layout, dtype):
    x, bias = random(6, 67, dtype=dtype), random(67, dtype=dtype, seed=1)
    plain, other = gradients(bias_act, (x, bias)), gradients(bias_act, (layout(x), layout(bias)))
    for a, b in zip((*plain[0], *plain[1]), (*other[0], *other[1]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(3000, 65), (500, 512), (3, 50000)])
def test_same_threads_same_bits(isa, shape):
    x, bias = random(*shape), random(shape[-1], seed=1)
    first, second = (gradients(bias_act, (x, bias)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_relu_keeps_its_output_and_others_their_input():
    x, bias = random(4, 8).requires_grad_(), random(8).requires_grad_()
    y = bias_act(x, bias, "relu")
    assert y.grad_fn.saved_tensors[0].data_ptr() == y.data_ptr()
    assert bias_act(x, bias, "silu").grad_fn.saved_tensors[0].data_ptr() == x.data_ptr()
    assert bias_act(x, bias, "none").grad_fn.saved_tensors == (None, None)


def test_a_frozen_bias_gets_no_gradient(isa):
    x = random(40, 65).requires_grad_()
    (dx,) = torch.autograd.grad(bias_act(x, random(65, seed=1), "silu").sum(), x)
    (expected,) = torch.autograd.grad(F.silu(x + random(65, seed=1)).sum(), x)
    assert_close(dx, expected)


@for_activations
def test_reference_passes_gradcheck(activation):
    inputs = [random(3, 5).double().requires_grad_(), random(5, seed=1).double().requires_grad_()]
    assert torch.autograd.gradcheck(lambda x, b: bias_act_reference(x, b, activation), inputs)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"expected bias of shape \(8,\).* got \(7,\)"):
        bias_act(torch.ones(2, 8), torch.ones(7))
    with pytest.raises(ValueError, match=r"expected an activation of none, relu.* got 'swish'"):
        bias_act(torch.ones(2, 8), activation="swish")
    with pytest.raises(ValueError, match="got a scalar"):
        bias_act(torch.tensor(1.0))
