import pytest
import torch

from fullstride.ops.rms_norm import rms_norm, rms_norm_reference

from .cases import ROW_SHAPES, assert_close, for_dtypes, gradients, off_by_one, random, strided


def assert_equals_reference(x, weight, residual=None, ulps=8):
    """Outputs and gradients of the kernel against the reference in fp64 on the same values."""

    def reference(x, weight, residual=None):
        y, s = rms_norm_reference(x, weight, residual=residual)
        return y if residual is None else (y, s)

    def kernel(x, weight, residual=None):
        return rms_norm(x, weight, residual=residual)

    inputs = [t for t in (x, weight, residual) if t is not None]
    wide = [t.double() for t in inputs]
    if residual is not None:  # the norm is that of the rounded sum
        wide[0] = (x + residual).double() - wide[2]
    actual, expected = gradients(kernel, inputs), gradients(reference, wide)
    for a, e in zip((*actual[0], *actual[1]), (*expected[0], *expected[1]), strict=True):
        assert_close(a, e, ulps)


@for_dtypes
@pytest.mark.parametrize("shape", ROW_SHAPES)
@pytest.mark.parametrize("with_residual", [False, True], ids=["plain", "residual"])
def test_equals_reference_forward_and_backward(isa, shape, dtype, with_residual):
    residual = random(*shape, dtype=dtype, seed=1) if with_residual else None
    ulps = 64 if shape[-1] == 1 else 8  # one column: the exact dx is 0, what is left are cancelled terms
    assert_equals_reference(random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=2), residual, ulps)


def test_mixed_precision_takes_fp32_weights_with_bf16_rows(isa):
    assert_equals_reference(random(5, 96, dtype=torch.bfloat16), random(96, seed=1))


def test_weight_is_optional(isa):
    x = random(4, 65)
    _, (actual,) = gradients(rms_norm, [x])
    _, (expected,) = gradients(lambda x: rms_norm_reference(x)[0], [x.double()])
    assert_close(actual, expected)


@pytest.mark.parametrize("layout", [strided, off_by_one])
def test_layout_does_not_matter(isa, layout):
    x, weight = random(6, 67), random(67, seed=1)
    plain, other = gradients(rms_norm, (x, weight)), gradients(rms_norm, (layout(x), layout(weight)))
    for a, b in zip((*plain[0], *plain[1]), (*other[0], *other[1]), strict=True):
        assert torch.equal(a, b)


def test_nan_spoils_its_row_and_no_other(isa):
    x = random(4, 40)
    x[2, 7] = float("nan")
    y = rms_norm(x)
    assert y[2].isnan().all()
    assert y[[0, 1, 3]].isfinite().all()


def test_infinity_gives_nan_where_it_stands_and_zero_beside_it(isa):
    x = random(2, 40)
    x[1, 7] = float("inf")
    assert_close(rms_norm(x), rms_norm_reference(x.double())[0])


def test_same_threads_same_bits(isa):
    x, weight = random(300, 257), random(257, seed=1)
    first, second = (gradients(rms_norm, (x, weight)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_reference_equals_torch_and_passes_gradcheck():
    x, weight, residual = (random(*s, seed=i).double().requires_grad_() for i, s in enumerate([(3, 5), (5,), (3, 5)]))
    torch.testing.assert_close(rms_norm_reference(x, weight)[0], torch.nn.functional.rms_norm(x, (5,), weight, 1e-6))
    assert torch.autograd.gradcheck(lambda x, w, r: rms_norm_reference(x, w, residual=r), (x, weight, residual))


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"rms_norm: expected weight of shape \(8,\).* got \(7,\)"):
        rms_norm(torch.ones(2, 8), torch.ones(7))
