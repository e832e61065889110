import pytest
import torch

from fullstride.ops.layer_norm import layer_norm, layer_norm_reference

from .cases import ROW_SHAPES, assert_close, for_dtypes, gradients, off_by_one, random, strided


def both(x, weight, bias, residual):
    """(outputs, gradients) of the kernel, and of the reference in fp64 on the same values."""

    def wide(t):
        return None if t is None else t.double()

    def reference(x, w, b, r=None):
        y, s = layer_norm_reference(x, w, b, residual=r)
        if residual is None:
            return y
        return y, s

    actual = gradients(lambda x, w, b, r=None: layer_norm(x, w, b, residual=r), (x, weight, bias, residual))
    if residual is not None and x.dtype == torch.bfloat16:  # the statistics are those of the rounded sum
        rounded = (x + residual).double()
        x, residual = rounded - wide(residual), residual
    return actual, gradients(reference, (wide(x), wide(weight), wide(bias), wide(residual)))


@for_dtypes
@pytest.mark.parametrize("shape", ROW_SHAPES)
@pytest.mark.parametrize("with_residual", [False, True], ids=["plain", "residual"])
def test_equals_reference_forward_and_backward(isa, shape, dtype, with_residual):
    x, residual = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1) if with_residual else None
    weight, bias = random(shape[-1], dtype=dtype, seed=2), random(shape[-1], dtype=dtype, seed=3)
    (out, grads), (out_ref, grads_ref) = both(x, weight, bias, residual)
    ulps = 512 if shape[-1] == 1 else 8  # one column: rstd is 1 / sqrt(eps) = 316, and the exact dx is 0
    for actual, expected in zip((*out, *grads), (*out_ref, *grads_ref), strict=True):
        assert_close(actual, expected, ulps)


@pytest.mark.parametrize("parameters", [(False, False), (True, False), (False, True)])
def test_weight_and_bias_are_optional(isa, parameters):
    weight, bias = (random(65, seed=i) if wanted else None for i, wanted in enumerate(parameters))
    (out, grads), (out_ref, grads_ref) = both(random(4, 65), weight, bias, None)
    for actual, expected in zip((*out, *grads), (*out_ref, *grads_ref), strict=True):
        assert_close(actual, expected)


def test_mixed_precision_takes_fp32_weights_with_bf16_rows(isa):
    x, weight, bias = random(5, 96, dtype=torch.bfloat16), random(96, seed=1), random(96, seed=2)
    (out, grads), (out_ref, grads_ref) = both(x, weight, bias, None)
    assert grads[1].dtype == torch.float32
    for actual, expected in zip((*out, *grads), (*out_ref, *grads_ref), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("layout", [strided, off_by_one])
def test_layout_does_not_matter(isa, layout):
    x, weight, bias = random(6, 67), random(67, seed=1), random(67, seed=2)
    plain = gradients(layer_norm, (x, weight, bias))
    other = gradients(layer_norm, (layout(x), layout(weight), layout(bias)))
    for a, b in zip((*plain[0], *plain[1]), (*other[0], *other[1]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_value_spoils_its_row_and_no_other(isa, value):
    x = random(4, 40)
    x[2, 7] = value
    y = layer_norm(x)
    assert y[2].isnan().all()
    assert y[[0, 1, 3]].isfinite().all()


def test_large_offset_does_not_cancel(isa):
    x = random(3, 257) + 10000
    assert_close(layer_norm(x), layer_norm_reference(x.double())[0], ulps=4 * 10000)


def test_same_threads_same_bits(isa):
    x, weight, bias = random(300, 257), random(257, seed=1), random(257, seed=2)
    first, second = (gradients(layer_norm, (x, weight, bias)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_only_the_sum_is_used(isa):
    x, residual = random(3, 8).requires_grad_(), random(3, 8, seed=1).requires_grad_()
    layer_norm(x, residual=residual)[1].sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(3, 8))


def test_reference_passes_gradcheck():
    inputs = [random(*shape, seed=i).double().requires_grad_() for i, shape in enumerate([(3, 5), (5,), (5,), (3, 5)])]
    assert torch.autograd.gradcheck(lambda x, w, b, r: layer_norm_reference(x, w, b, residual=r), inputs)


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"expected weight of shape \(8,\).* got \(7,\)"):
        layer_norm(torch.ones(2, 8), torch.ones(7))
    with pytest.raises(ValueError, match=r"expected residual of shape \(2, 8\)"):
        layer_norm(torch.ones(2, 8), residual=torch.ones(8))
