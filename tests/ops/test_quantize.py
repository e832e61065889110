import pytest
import torch

from fullstride.ops.quantize import dequantize, dequantize_reference, quantize, quantize_reference

from .cases import ROW_SHAPES, for_dtypes, off_by_one, random, strided

for_axes = pytest.mark.parametrize("per", ["row", "column"])
SHAPES = [*ROW_SHAPES, (0, 0), (5, 0), (3001, 3), (301, 1025)]


def same(actual, expected):
    return all(torch.equal(a.nan_to_num(-7), b.nan_to_num(-7)) for a, b in zip(actual, expected, strict=True))


@for_dtypes
@for_axes
@pytest.mark.parametrize("shape", SHAPES)
def test_has_the_bits_of_the_reference(isa, shape, dtype, per):
    x = random(*shape, dtype=dtype) * torch.logspace(-10, 10, shape[0]).unsqueeze(1).to(dtype)
    q, scale = quantize(x, per)
    assert same((q, scale), quantize_reference(x, per))
    for out in (torch.float32, torch.bfloat16):
        y = dequantize(q, scale, per, out)
        assert y.dtype == out
        assert torch.equal(y, dequantize_reference(q, scale, per, out))


@for_axes
def test_comes_back_within_half_a_step_and_uses_the_whole_range(isa, per):
    x = random(50, 70)
    q, scale = quantize(x, per)
    error = (dequantize(q, scale, per) - x).abs()
    assert (error <= 0.5001 * (scale.unsqueeze(1) if per == "row" else scale)).all()
    assert (q.abs().amax(1 if per == "row" else 0) == 127).all()


def test_ties_go_to_even(isa):
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5]])
    assert quantize(x)[0].tolist() == [[127, 0, 2, 2, 0, -2, -2, 126, -126]]


@for_dtypes
@for_axes
def test_zeros_and_rows_too_small_for_a_scale_become_zero(isa, dtype, per):
    x = torch.tensor([[0.0, -0.0, 0.0], [1e-36, -1e-37, 0.0], [2e-36, -1e-36, 0.0]]).to(dtype)
    q, scale = quantize(x if per == "row" else x.t(), per)
    q = q if per == "row" else q.t()
    assert q.tolist() == [[0, 0, 0], [0, 0, 0], [127, -64, 0]] or q[2].abs().tolist() == [127, 63, 0]
    assert scale[:2].tolist() == [0.0, 0.0]
    assert scale[2] > 0


@for_dtypes
@for_axes
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_value_spoils_its_row_or_column_and_no_other(isa, value, dtype, per):
    x = random(19, 19, dtype=dtype)
    x[7, 7] = value
    x[8, 7] = torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32).to(dtype) if value != value else x[8, 7]
    q, scale = quantize(x, per)
    y = dequantize(q, scale, per)
    spoilt = [7, 8] if per == "row" and value != value else [7]
    y, q = (y, q) if per == "row" else (y.t(), q.t())
    good = [i for i in range(19) if i not in spoilt]
    assert y[spoilt].isnan().all()
    assert (q[spoilt] == 0).all()
    assert y[good].isfinite().all()


@for_axes
def test_the_largest_numbers_do_not_overflow(isa, per):
    x = torch.full((9, 9), torch.finfo(torch.float32).max)
    q, scale = quantize(x, per)
    assert (q == 127).all()
    assert scale.isfinite().all()


@for_dtypes
@for_axes
@pytest.mark.parametrize("layout", [strided, off_by_one])
def test_layout_does_not_matter(isa, layout, dtype, per):
    x = random(13, 67, dtype=dtype)
    plain = quantize(x, per)
    assert same(quantize(layout(x), per), plain)
    assert same(quantize(x.t().contiguous().t(), per), plain)
    q, scale = plain
    assert torch.equal(dequantize(layout(q), layout(scale), per), dequantize(q, scale, per))


def test_all_leading_dimensions_are_rows(isa):
    x = random(2, 3, 5, 8)
    q, scale = quantize(x)
    assert q.shape == x.shape
    assert scale.shape == (2, 3, 5)
    assert torch.equal(dequantize(q, scale), dequantize(q.view(30, 8), scale.view(30)).view(x.shape))
    assert quantize(x, "column")[1].shape == (8,)


def test_other_dtypes_go_through_the_reference(isa):
    x = random(5, 6).double()
    assert same(quantize(x), quantize_reference(x.float()))


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match=r"expected a floating-point matrix, got torch.int64 of shape \(2,\)"):
        quantize(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="expected per='row' or per='column', got 'rows'"):
        quantize(torch.ones(2, 2), "rows")
    with pytest.raises(ValueError, match=r"fp32 scale for each row of \(2, 3\), of shape \(2,\), got .* \(3,\)"):
        dequantize(torch.ones(2, 3, dtype=torch.int8), torch.ones(3))
    with pytest.raises(ValueError, match=r"expected an int8 matrix, got torch\.float32"):
        dequantize(torch.ones(2, 3), torch.ones(2))
    with pytest.raises(ValueError, match=r"torch.float32 or torch.bfloat16, got torch.float16"):
        dequantize(torch.ones(2, 3, dtype=torch.int8), torch.ones(2), dtype=torch.float16)
