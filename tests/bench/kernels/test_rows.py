"""What the rows say of their work: flops against hand formulas and torch's counter, bytes and names of the new rows."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fullstride.bench.kernels.norms import BATCHES, WIDTH
from fullstride.bench.kernels.row import PORTABLE, counted, forward_backward
from fullstride.bench.kernels.rows import (
    adam,
    attention,
    contrastive_loss,
    conv1d,
    gemm,
    lamb,
    layer_norm,
    linear,
    linear_cross_entropy,
    patches,
    rms_norm,
    sgd,
    vector_math,
)  # fmt: skip
from fullstride.ops.conv1d import conv1d_reference
from fullstride.ops.linear import linear_reference


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def by_torch(call):
    """FLOPs of a call as torch.utils.flop_counter counts them; it does not know the attention of CPUs."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def leaves(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize(
    ("function", "inputs", "formula"),
    [
        (torch.mm, [torch.randn(3, 5), torch.randn(5, 7)], 2 * 3 * 5 * 7),
        (linear_reference, leaves((4, 5), (6, 5), (6,)), 3 * 2 * 4 * 5 * 6),
        (linear_reference, [torch.randn(4, 5), *leaves((6, 5), (6,))], 2 * 2 * 4 * 5 * 6),  # no dx
        (lambda x, w: conv1d_reference(x, w, None, 1), leaves((2, 5, 9), (7, 5, 3)), 3 * 2 * 2 * 9 * 7 * 5 * 3),
        (F.scaled_dot_product_attention, leaves(*[(2, 3, 8, 4)] * 3), 6 * 2 * (2 * 3 * 8 * 8 * 4)),
    ],
    ids=["product", "linear", "linear without dx", "conv1d", "attention"],
)
def test_flops_are_those_of_the_formula_and_of_torch(function, inputs, formula):
    differentiated = any(x.requires_grad for x in inputs)
    call = forward_backward(function, *inputs) if differentiated else lambda: function(*inputs)
    assert counted(function, *inputs) == formula == by_torch(call)


def test_causal_attention_counts_half_of_the_square_of_which_torch_counts_all():
    q, k, v = leaves(*[(2, 3, 8, 4)] * 3)

    def causal(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert 2 * counted(causal, q, k, v) == by_torch(forward_backward(causal, q, k, v))


def test_products_are_square_in_both_precisions():
    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        rows = list(gemm.squares(dtype, [8, 16]))
        assert [row.case for row in rows] == [f"square {name} 8 x 8 x 8", f"square {name} 16 x 16 x 16"]
        assert [row.flops for row in rows] == [2 * 8**3, 2 * 16**3]
        assert {row.precision for row in rows} == {name}
        assert all("torch" in row.peers for row in rows)
    assert gemm.SQUARES == [128, 256, 512, 1024, 2048, 4096]


def test_torch_is_left_out_where_its_product_would_take_too_long():
    first, second, third = gemm.squares(torch.bfloat16, [4, 8, 16], most_seconds=0.0)
    assert "torch" in first.peers
    for row in (second, third):
        assert "torch" not in row.peers
        assert row.left_out == {"torch": "more than 0 s a call"}
        row.ours()


@pytest.mark.parametrize("op", [layer_norm, rms_norm])
def test_norms_have_rows_of_small_batches(op):
    rows = [row for row in op.rows() if f"x {WIDTH}" in row.case]
    kinds = itertools.product(("fp32", "bf16"), BATCHES, ("forward", "forward+backward"))
    assert [row.case for row in rows] == [f"{what} {name} {batch} x 768" for name, batch, what in kinds]
    assert [row.bytes for row in rows[:2]] == [2 * 8 * 768 * 4, 5 * 8 * 768 * 4]
    for row in rows:
        assert row.mix is None  # in the cache
        ours, torchs = row.ours(), row.peers["torch"]()
        assert type(ours) is type(torchs)
        for one, other in zip(ours, torchs, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=0.2)  # in bf16, and sums of 32 rows


def test_optimizers_tell_how_many_parameters_they_update(monkeypatch):
    shapes = [(3, 4), (5,)]
    monkeypatch.setattr(lamb, "SHAPES", shapes)
    monkeypatch.setattr(sgd, "SHAPES", shapes)
    rows = [*lamb.rows(), *sgd.rows(), *adam.kernel_rows(shapes), *adam.step_rows("tiny", shapes)]
    assert len(rows) == 3 + 3 + 3 + 6
    assert {row.parameters for row in rows} == {17}


def test_add_mul_and_scale_have_rows_in_both_precisions(monkeypatch):
    monkeypatch.setattr(vector_math, "NUMEL", 64)
    rows = {row.case: row for row in vector_math.rows()}
    for name, arrays in (("add", 3), ("mul", 3), ("scale", 2)):
        for label, size in (("fp32", 4), ("bf16", 2)):
            row = rows[f"{name} {label}, 16 million"]
            assert row.bytes == arrays * 64 * size
            assert torch.equal(row.ours(), row.peers["torch"]())


def test_products_of_others_have_no_portable_variant():
    by_name = {row.case.split()[2].rstrip(","): row for row in linear.rows()}
    assert by_name["native"].left_out == {}
    assert by_name["torch"].left_out == {PORTABLE: "the products are those of torch"}
    for op in (contrastive_loss, linear_cross_entropy, patches):
        assert next(op.rows()).left_out == {PORTABLE: "the products are torch's"}


def test_a_masked_language_model_needs_the_logits_of_what_is_predicted():
    whole, masked = linear_cross_entropy.rows()
    assert whole.flops == 3 * 2 * 1024 * 768 * 32000
    assert masked.flops == 3 * 2 * (1024 - int(0.85 * 1024)) * 768 * 30522


def test_rows_of_attention_and_convolutions_tell_their_flops_and_precision():
    by_case = {row.case: row for row in itertools.islice(attention.rows(), 1)}
    assert by_case["causal bf16 forward+backward 4 x 12 x 64 x 64"].flops == 12 * 4 * 12 * 64 * 64 * 64 // 2
    row = next(conv1d.rows())
    assert (row.flops, row.precision) == (6 * 16 * 400 * 256 * 1024 * 9, "bf16")
