import pytest
import torch

from fullstride.ops.gemm import gemm, gemm_reference

from . import formulas
from .cases import assert_close, for_dtypes, off_by_one, random, strided

# (m, n, k): nothing, one, odd, one past tiles and vectors, deeper than a panel, higher and wider than a chunk,
# many rows with a small b, deep with a small result.
SHAPES = [
    (0, 4, 3), (4, 0, 3), (2, 4, 0), (1, 1, 1), (1, 130, 9), (5, 1, 17), (7, 17, 33), (15, 33, 257), (64, 65, 66),
    (29, 300, 5), (250, 20, 31), (13, 143, 700), (260, 37, 300), (70, 33, 1100),
]  # fmt: skip


def by_columns(x):
    return x.t().contiguous().t()


def operands(m, n, k, dtype=torch.float32):
    return random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)


def wide(*tensors):
    return [None if t is None else t.double() for t in tensors]


@for_dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_reference_in_every_layout(isa, shape, dtype):
    a, b = operands(*shape, dtype)
    expected, _ = gemm_reference(*wide(a, b))
    for left in (a, by_columns(a), strided(a), off_by_one(a)):
        for right in (b, by_columns(b), strided(b), off_by_one(b)):
            assert_close(gemm(left, right), expected, ulps=16, floor=max(shape[2], 1) ** 0.5)


@for_dtypes
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("depth", [20, 300])
def test_bias_and_activation_follow_the_product(isa, depth, activation, dtype):
    a, b = operands(19, 37, depth, dtype)
    b = b / depth**0.5
    bias, pre = random(37, seed=2), torch.empty(19, 37, dtype=dtype)
    c = gemm(a, b, bias=bias, activation=activation, pre=pre)
    expected, expected_pre = gemm_reference(*wide(a, b, bias), activation)
    assert_close(c, expected, floor=4)
    assert_close(pre, expected_pre, floor=4)


@for_dtypes
@pytest.mark.parametrize("depth", [0, 9, 300])
def test_accumulates_into_fp32(isa, depth, dtype):
    a, b = operands(21, 35, depth, dtype)
    out = random(21, 35, seed=3)
    expected = out.double() + a.double() @ b.double()
    assert gemm(a, b, out, accumulate=True) is out
    assert_close(out, expected, floor=max(depth, 1) ** 0.5)


def test_the_result_may_be_wider_or_narrower_than_the_operands(isa):
    a, b = operands(21, 35, 70)
    assert gemm(a, b, dtype=torch.bfloat16).dtype == torch.bfloat16
    narrow = gemm(a.bfloat16(), b.bfloat16(), dtype=torch.float32)
    assert_close(narrow, a.bfloat16().double() @ b.bfloat16().double(), floor=8)
    assert_close(gemm(a.bfloat16(), b), a.bfloat16().double() @ b.double(), floor=8)


def test_writes_into_a_part_of_a_matrix_and_nowhere_else(isa):
    a, b = operands(7, 21, 40)
    whole = torch.full((9, 30), 5.0)
    gemm(a, b, whole[1:8, 4:25])
    assert_close(whole[1:8, 4:25], a.double() @ b.double(), floor=8)
    whole[1:8, 4:25] = 5
    assert (whole == 5).all()


@pytest.mark.parametrize("shape", [(20, 40, 33), (260, 40, 33), (70, 40, 1100)])
def test_nan_and_infinity_stay_in_their_row_and_column(isa, shape):
    a, b = operands(*shape)
    a, floor = by_columns(a) if shape[2] > 1000 else a, shape[2] ** 0.5
    a[3, 5], b[2, 11] = float("nan"), float("inf")
    expected = formulas.product(a.double(), b.double())
    for activation in ("none", "relu"):
        wanted = expected.relu() if activation == "relu" else expected
        assert_close(gemm(a, b, activation=activation), wanted, ulps=16, floor=floor)
    assert gemm(a, b).isfinite().sum() == (shape[0] - 1) * 39


@pytest.mark.parametrize("shape", [(130, 300, 520), (150, 40, 300), (70, 40, 2100)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_does_not_change_a_bit(isa, num_threads, shape, dtype):
    a, b = (x.to(dtype) for x in operands(*shape))
    a = by_columns(a) if shape[2] > 1000 else a
    results = []
    for threads in (1, 2, 3, 4):
        num_threads(threads)
        results.append(gemm(a, b))
    assert all(torch.equal(results[0], result) for result in results[1:])


def test_autograd_sees_that_out_was_written():
    a, b = operands(3, 4, 5)
    leaf, out = torch.ones(3, 4, requires_grad=True), torch.ones(3, 4)
    y = leaf * out
    gemm(a, b, out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_fp64_and_broadcast_operands_work():
    a, b = operands(4, 6, 5, torch.float64)
    assert_close(gemm(a, b), a @ b)
    assert_close(gemm(a.float()[:1].expand(4, 5), b.float()), (a.float()[:1].expand(4, 5) @ b.float()).double())


@pytest.mark.parametrize("shape", [(200, 16, 24), (200, 40, 300)])
def test_rows_that_are_one_row_expanded_are_multiplied_as_such(isa, shape):
    m, n, k = shape
    row, b = torch.randn(1, k), torch.randn(k, n)
    assert torch.equal(gemm(row.expand(m, k), b), gemm(row.repeat(m, 1), b))


def test_wrong_arguments_are_named():
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"a of \(m, k\) and b of \(k, n\), got \(2, 3\) and \(4, 3\)"):
        gemm(a, b.t())
    with pytest.raises(ValueError, match=r"expected out of shape \(2, 4\) with dense rows, got \(2, 5\)"):
        gemm(a, b, torch.ones(2, 5))
    with pytest.raises(ValueError, match=r"expected out of shape \(2, 4\) with dense rows.* strides \(1, 2\)"):
        gemm(a, b, torch.ones(4, 2).t())
    with pytest.raises(ValueError, match=r"expected bias of shape \(4,\).* got \(3,\)"):
        gemm(a, b, bias=torch.ones(3))
    with pytest.raises(ValueError, match="accumulate needs out"):
        gemm(a, b, accumulate=True)
    with pytest.raises(ValueError, match="got 'swish'"):
        gemm(a, b, activation="swish")
