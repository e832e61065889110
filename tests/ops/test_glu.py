import pytest
import torch

from fullstride.ops.glu import GATES, glu, glu_reference, swiglu

from . import formulas
from .cases import ROW_SHAPES, assert_close, assert_each_close, for_dtypes, gradients, off_by_one, random, strided

for_gates = pytest.mark.parametrize("activation", GATES)


def assert_all_close(actual, expected, ulps=8):
    for a, e in zip((*actual[0], *actual[1]), (*expected[0], *expected[1]), strict=True):
        assert_close(a, e, ulps)


def halves_reference(x, activation, gate_first=True):
    first, second = x.chunk(2, dim=-1)
    return glu_reference(first, second, activation) if gate_first else glu_reference(second, first, activation)


@for_dtypes
@for_gates
@pytest.mark.parametrize("shape", [*ROW_SHAPES, (2, 3, 17), (3, 30011)])
def test_two_tensors_equal_reference_forward_and_backward(isa, shape, dtype, activation):
    gate, up = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    actual = gradients(lambda g, u: glu(g, u, activation), (gate, up))
    expected = gradients(lambda g, u: glu_reference(g, u, activation), (gate.double(), up.double()))
    assert_all_close(actual, expected)


@for_dtypes
@for_gates
@pytest.mark.parametrize("shape", [*ROW_SHAPES, (2, 3, 17), (3, 30011)])
def test_halves_of_one_tensor_equal_reference_forward_and_backward(isa, shape, dtype, activation):
    x = random(*shape[:-1], 2 * shape[-1], dtype=dtype)
    actual = gradients(lambda x: glu(x, None, activation), (x,))
    expected = gradients(lambda x: halves_reference(x, activation), (x.double(),))
    assert_all_close(actual, expected)


@for_dtypes
def test_the_gate_may_be_the_second_half(isa, dtype):
    x = random(5, 66, dtype=dtype)
    actual = gradients(lambda x: glu(x, gate_first=False), (x,))
    expected = gradients(lambda x: halves_reference(x, "silu", gate_first=False), (x.double(),))
    assert_all_close(actual, expected)


@for_dtypes
def test_views_of_halves_are_not_copied_and_give_the_same_bits(isa, dtype):
    x = random(2, 5, 134, dtype=dtype)
    gate, up = (half.requires_grad_() for half in x.chunk(2, dim=-1))
    y = glu(gate, up)
    assert [saved.data_ptr() for saved in y.grad_fn.saved_tensors] == [gate.data_ptr(), up.data_ptr()]
    assert torch.equal(y, glu(x))
    weight = random(2, 5, 67, dtype=dtype, seed=2)
    dgate, dup = torch.autograd.grad(y, (gate, up), weight)
    joined = x.clone().requires_grad_()
    (dx,) = torch.autograd.grad(glu(joined), joined, weight)
    assert torch.equal(dx, torch.cat([dgate, dup], dim=-1))


@for_dtypes
@pytest.mark.parametrize("layout", [strided, off_by_one, lambda x: x.T.contiguous().T])
def test_layout_does_not_matter(isa, layout, dtype):
    gate, up = random(6, 67, dtype=dtype), random(6, 67, dtype=dtype, seed=1)
    plain, other = gradients(glu, (gate, up)), gradients(glu, (layout(gate), layout(up)))
    for a, b in zip((*plain[0], *plain[1]), (*other[0], *other[1]), strict=True):
        assert torch.equal(a, b)


@for_dtypes
@for_gates
def test_nan_and_infinity_as_the_formula_says(isa, dtype, activation):
    inf, nan = float("inf"), float("nan")
    special = torch.tensor([nan, inf, -inf, 0.0, 1.5, -1.5, 1e9, -1e9], dtype=dtype)
    gate, up = (grid.flatten() for grid in torch.meshgrid(special, special, indexing="ij"))
    dy = random(len(gate), dtype=dtype, seed=9)
    value, slope = formulas.activation(activation, gate)
    leaves = [x.clone().requires_grad_() for x in (gate, up)]
    y = glu(*leaves, activation)
    dgate, dup = torch.autograd.grad(y, leaves, dy)
    assert_each_close(y.detach(), value * up)
    assert_each_close(dgate, dy.double() * up * slope)
    assert_each_close(dup, dy.double() * value)


def test_same_bits_for_any_number_of_threads(isa):
    x = random(301, 2 * 257)
    several = gradients(glu, (x,))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one = gradients(glu, (x,))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(several[0][0], one[0][0])
    assert torch.equal(several[1][0], one[1][0])


def test_swiglu_is_the_named_one():
    gate, up = random(3, 9), random(3, 9, seed=1)
    assert torch.equal(swiglu(gate, up), glu(gate, up, "silu"))


@for_gates
def test_reference_passes_gradcheck(activation):
    inputs = [random(3, 5, seed=i).double().requires_grad_() for i in range(2)]
    assert torch.autograd.gradcheck(lambda g, u: glu_reference(g, u, activation), inputs)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"expected up of shape \(2, 8\) like gate, got \(2, 7\)"):
        glu(torch.ones(2, 8), torch.ones(2, 7))
    with pytest.raises(ValueError, match=r"expected an even last dimension to halve, got shape \(2, 7\)"):
        glu(torch.ones(2, 7))
    with pytest.raises(ValueError, match="expected an activation of silu, gelu, gelu_tanh; got 'relu'"):
        glu(torch.ones(2, 8), activation="relu")
