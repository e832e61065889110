import pytest
import torch

from fullstride.ops.rope import rope, rope_reference, rope_tables

from .cases import assert_close, for_dtypes, gradients, off_by_one, random, strided

for_layouts = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
# batch, seq, heads, head_dim: nothing, one pair, one past each vector width, odd with a rest, usual, several threads
SHAPES = [
    (0, 3, 2, 8), (1, 0, 2, 8), (1, 3, 0, 8), (1, 1, 1, 2), (2, 3, 1, 6), (1, 5, 3, 10), (2, 2, 3, 18), (1, 7, 2, 34),
    (1, 3, 2, 66), (3, 5, 2, 64), (2, 3, 5, 80), (1, 2, 1, 258), (2, 67, 3, 128),
]  # fmt: skip


def check(x, cos, sin, **arguments):
    """The kernel, forward and backward, against the reference in fp64 on the same values."""
    out, grads = gradients(lambda x: rope(x, cos, sin, **arguments), (x,))
    cos, sin = cos.double(), sin.double()
    out_ref, grads_ref = gradients(lambda x: rope_reference(x, cos, sin, **arguments), (x.double(),))
    for actual, expected in zip((*out, *grads), (*out_ref, *grads_ref), strict=True):
        assert actual.dtype == x.dtype
        assert_close(actual, expected, ulps=2)


@for_dtypes
@for_layouts
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference_forward_and_backward(isa, shape, interleaved, dtype):
    check(random(*shape, dtype=dtype), *rope_tables(shape[1] + 2, shape[3]), interleaved=interleaved, offset=2)


@for_dtypes
@for_layouts
@pytest.mark.parametrize("shape", [(2, 3, 5, 64), (1, 4, 130, 34), (2, 1, 3, 16)], ids=str)
def test_heads_may_come_before_positions(isa, shape, interleaved, dtype):
    check(random(*shape, dtype=dtype), *rope_tables(shape[2], shape[3]), interleaved=interleaved, seq_dim=2)


@for_dtypes
@for_layouts
@pytest.mark.parametrize("rotary_dim", [0, 2, 16, 34, 48])
def test_elements_beyond_the_tables_stay_as_they_are(isa, rotary_dim, interleaved, dtype):
    x = random(2, 5, 3, 49, dtype=dtype)
    tables = rope_tables(5, rotary_dim)
    check(x, *tables, interleaved=interleaved)
    assert torch.equal(rope(x, *tables, interleaved=interleaved)[..., rotary_dim:], x[..., rotary_dim:])


@for_layouts
def test_positions_may_be_given_one_by_one(isa, interleaved):
    positions = torch.tensor([[0, 9, 3], [4, 4, 0]])
    check(random(2, 3, 2, 20), *rope_tables(10, 20), interleaved=interleaved, positions=positions)


def test_a_cache_offset_equals_the_end_of_a_longer_sequence(isa):
    x, tables = random(1, 12, 2, 64), rope_tables(12, 64)
    assert torch.equal(rope(x[:, 9:], *tables, offset=9), rope(x, *tables)[:, 9:])


def test_a_transposed_view_keeps_its_layout_and_its_bits(isa):
    x, tables = random(2, 7, 3, 64), rope_tables(7, 64)
    view = x.transpose(1, 2)
    turned = rope(view, *tables, seq_dim=2)
    assert turned.stride() == view.stride()
    assert torch.equal(turned, rope(x, *tables).transpose(1, 2))


def test_a_slice_of_joint_queries_and_keys_is_taken_as_it_is(isa):
    joint, tables = random(2, 5, 3, 4, 32), rope_tables(5, 32)
    keys = joint[:, :, 1]
    assert torch.equal(rope(keys, *tables), rope(keys.contiguous(), *tables))


@for_dtypes
@for_layouts
@pytest.mark.parametrize("layout", [strided, off_by_one])
def test_layout_does_not_matter(isa, layout, interleaved, dtype):
    x, (cos, sin) = random(2, 5, 3, 66, dtype=dtype), rope_tables(5, 66)
    plain = gradients(lambda x: rope(x, cos, sin, interleaved), (x,))
    other = gradients(lambda x: rope(x, layout(cos), layout(sin), interleaved), (layout(x),))
    assert torch.equal(plain[0][0], other[0][0])
    assert torch.equal(plain[1][0], other[1][0])


@pytest.mark.parametrize("strides", [(0, 0, 0, 1), (40, 1, 8, 1), (1, 1, 1, 1), (3, 2, 1, 1)])
def test_a_view_that_overlaps_itself_is_taken(isa, strides):
    x, tables = random(400).as_strided((2, 5, 3, 8), strides), rope_tables(5, 8)
    assert_close(rope(x, *tables), rope_reference(x, *tables))


def test_positions_elsewhere_are_named():
    positions = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    with pytest.raises(ValueError, match="expected positions on the device of x, cpu, got meta"):
        rope(random(2, 3, 1, 4), *rope_tables(3, 4), positions=positions)


def test_a_gradient_broadcast_over_heads_is_taken(isa):
    x, (cos, sin), dy = random(2, 5, 3, 16).requires_grad_(), rope_tables(5, 16), random(2, 5, 16, seed=1)
    (dx,) = torch.autograd.grad(rope(x, cos, sin).sum(dim=2), x, dy)
    (expected,) = torch.autograd.grad(rope_reference(x, cos, sin).sum(dim=2), x, dy)
    assert_close(dx, expected, ulps=2)


@for_dtypes
@for_layouts
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_value_spoils_its_pair_and_no_other(isa, value, interleaved, dtype):
    x = random(1, 3, 2, 64, dtype=dtype)
    x[0, 1, 1, 4] = value
    y = rope(x, *rope_tables(3, 64), interleaved=interleaved)
    spoilt = torch.zeros(1, 3, 2, 64, dtype=torch.bool)
    spoilt[0, 1, 1, [4, 5 if interleaved else 36]] = True
    assert torch.equal(~y.isfinite(), spoilt)


@for_layouts
def test_a_nan_of_any_pattern_in_the_tables_stays_one_in_bf16(isa, interleaved):
    cos, sin = rope_tables(2, 64)
    cos.view(torch.int32)[1, 3], sin.view(torch.int32)[1, 4] = -1, 0x7FFFFFFF
    y = rope(torch.ones(1, 2, 1, 64, dtype=torch.bfloat16), cos, sin, interleaved)
    assert y.isnan().sum() == 4


@for_layouts
def test_rounds_to_nearest_even_in_bf16(isa, interleaved):
    x = random(2, 9, 3, 80, dtype=torch.bfloat16)
    half = torch.full((9, 40), 1 + 2**-8)  # x * c lies between two bf16, and halfway in many cases
    y = rope(x, half, torch.zeros(9, 40), interleaved)
    assert torch.equal(y, (x.float() * (1 + 2**-8)).bfloat16())


@for_dtypes
@pytest.mark.parametrize("seq_dim", [1, 2])
def test_results_larger_than_the_cache_are_the_same(isa, seq_dim, dtype):
    x, tables = random(3, 600, 130, 80, dtype=dtype), rope_tables(600, 80)  # 36 MiB in fp32, 18 in bf16
    y = rope(x, *tables, seq_dim=seq_dim)
    for b in range(3):
        assert torch.equal(y[b : b + 1], rope(x[b : b + 1], *tables, seq_dim=seq_dim))


@for_layouts
def test_same_bits_for_any_number_of_threads(isa, interleaved, num_threads):
    x, tables = random(2, 301, 4, 64), rope_tables(301, 64)
    first = rope(x, *tables, interleaved)
    num_threads(1)
    assert torch.equal(rope(x, *tables, interleaved), first)


def test_differentiates_twice(isa):
    x, tables = random(1, 3, 1, 8).requires_grad_(), rope_tables(3, 8)
    (dx,) = torch.autograd.grad(rope(x, *tables).square().sum(), x, create_graph=True)
    (ddx,) = torch.autograd.grad(dx.sum(), x)
    assert_close(ddx, torch.full_like(ddx, 2), ulps=4)  # a rotation keeps the sum of squares


@for_layouts
def test_reference_passes_gradcheck(interleaved):
    cos, sin = (table.double() for table in rope_tables(3, 4))
    x = random(2, 3, 2, 5).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rope_reference(x, cos, sin, interleaved), x)


def test_reference_equals_the_usual_composition():
    x, (cos, sin) = random(2, 3, 5, 16), rope_tables(5, 16)
    low, high = x.chunk(2, dim=-1)
    usual = x * torch.cat((cos, cos), dim=-1) + torch.cat((-high, low), dim=-1) * torch.cat((sin, sin), dim=-1)
    assert_close(rope_reference(x, cos, sin, seq_dim=2), usual, ulps=2)
    turned = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (8, 2))) * torch.complex(cos, sin)).flatten(-2)
    assert_close(rope_reference(x, cos, sin, interleaved=True, seq_dim=2), turned, ulps=2)


def test_tables_hold_the_angles():
    cos, sin = rope_tables(100, 6, base=500.0)
    assert cos.shape == sin.shape == (100, 3)
    assert cos.dtype == torch.float32
    assert cos[99, 2].item() == pytest.approx(torch.tensor(99 * 500.0 ** (-4 / 6)).double().cos().item(), abs=1e-5)
    assert torch.equal(sin[0], torch.zeros(3))


def test_fp64_and_tables_with_gradients_go_through_the_reference(isa):
    x, (cos, sin) = random(1, 3, 2, 8), rope_tables(3, 8)
    assert rope(x.double(), cos.double(), sin.double()).dtype == torch.float64
    rope(x, cos.requires_grad_(), sin).sum().backward()
    assert cos.grad is not None


def test_wrong_arguments_are_named():
    x, (cos, sin) = torch.ones(2, 3, 4, 8), rope_tables(5, 8)
    with pytest.raises(ValueError, match=r"expected x of 4 dimensions.* got \(3, 4, 8\)"):
        rope(x[0], cos, sin)
    with pytest.raises(ValueError, match=r"\[positions, at most 4\].* got \(5, 8\) and \(5, 8\)"):
        rope(x, torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1))
    with pytest.raises(ValueError, match=r"expected positions in \[0, 5\).* got 3 to 5"):
        rope(x, cos, sin, offset=3)
    with pytest.raises(ValueError, match=r"expected positions in \[0, 5\).* got -1 to 2"):
        rope(x, cos, sin, positions=torch.tensor([[0, 1, 2], [0, 1, -1]]))
    with pytest.raises(ValueError, match=r"expected positions of shape \(2, 3\) and dtype int64, got \(3,\)"):
        rope(x, cos, sin, positions=torch.arange(3))
    with pytest.raises(ValueError, match="expected offset 0 together with positions, got 2"):
        rope(x, cos, sin, offset=2, positions=torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="expected an even head_dim, got 7"):
        rope_tables(4, 7)
