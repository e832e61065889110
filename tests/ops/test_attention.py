import math

import pytest
import torch
import torch.nn.functional as F

from fullstride.ops.attention import attention, attention_reference

from . import formulas
from .cases import assert_close, for_dtypes, gradients, off_by_one, random, strided

# Roundings of the dtype. In bf16 `out` is rounded before backward takes sum(dout * out) from it, so that dq and dk
# carry its error times the size of dout and k; dv does not.
ULPS = {torch.float32: 24, torch.bfloat16: 4}

# (queries, keys): one, odd, around a block of 64, several blocks, fewer queries than keys and more.
LENGTHS = [(1, 1), (1, 70), (5, 3), (17, 33), (64, 64), (63, 65), (65, 63), (130, 200), (200, 70)]
# (E, Ev): one, odd, one past each vector width, whole tiles, wide.
DIMS = [(1, 1), (3, 5), (9, 17), (33, 16), (64, 64), (80, 80), (128, 96)]


def inputs(queries, keys, dim=16, value_dim=16, heads=2, kv_heads=2, batch=2, dtype=torch.float32):
    """q, k, v in the layout that a linear layer leaves: [batch, length, heads, dim], transposed."""
    return [
        random(batch, length, num_heads, cols, dtype=dtype, seed=seed).transpose(1, 2)
        for seed, (length, num_heads, cols) in enumerate(
            [(queries, heads, dim), (keys, kv_heads, dim), (keys, kv_heads, value_dim)]
        )
    ]


def assert_equals_reference(q, k, v, mask=None, ulps=None, **options):
    """Result and gradients against the reference in fp64."""
    wide_mask = mask.double() if mask is not None and mask.is_floating_point() else mask
    actual = gradients(lambda *x: attention(*x, mask=mask, **options), (q, k, v))
    expected = gradients(
        lambda *x: attention_reference(*x, mask=wide_mask, **options), [x.double() for x in (q, k, v)]
    )
    ulps = ulps or ULPS[q.dtype]
    assert_close(actual[0][0], expected[0][0], ulps)
    for dx, expected_dx in zip(actual[1], expected[1], strict=True):
        assert dx.dtype == q.dtype
        assert_close(dx, expected_dx, ulps)


@for_dtypes
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_equals_reference_at_every_length(isa, queries, keys, is_causal, dtype):
    assert_equals_reference(*inputs(queries, keys, dtype=dtype), is_causal=is_causal)


@for_dtypes
@pytest.mark.parametrize(("dim", "value_dim"), DIMS)
def test_equals_reference_at_every_head_dim(isa, dim, value_dim, dtype):
    assert_equals_reference(*inputs(67, 67, dim, value_dim, dtype=dtype), is_causal=True)


def masks(queries, keys):
    """By name: bool and float masks, of every broadcast shape, hiding single keys, rows and whole blocks."""
    return {
        "bool of keys": torch.arange(keys).expand(2, 1, 1, keys) < torch.tensor([3, keys]).view(2, 1, 1, 1),
        "bool": random(2, 1, queries, keys, seed=5) > 0,
        "bool of heads": random(2, queries, keys, seed=5) > 0.5,
        "window": torch.ones(queries, keys).bool().tril().triu(-5),
        "one bool a query": torch.arange(queries).view(queries, 1).expand(queries, keys) % 3 > 0,
        "transposed": (random(keys, queries, seed=5) > 0).T,
        "float": random(1, 2, queries, keys, seed=5),
        "float with -inf": random(queries, keys, seed=5).masked_fill(random(queries, keys, seed=6) > 0, -math.inf),
        "zeros": torch.zeros(queries, keys),
    }


@for_dtypes
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", masks(2, 2))
def test_equals_reference_with_masks(isa, name, is_causal, dtype):
    assert_equals_reference(*inputs(131, 150, dtype=dtype), mask=masks(131, 150)[name], is_causal=is_causal)


def test_bf16_masks_are_added(isa):
    assert_equals_reference(*inputs(37, 75), mask=random(37, 75, dtype=torch.bfloat16))


@for_dtypes
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_heads_of_queries_share_heads_of_keys(isa, kv_heads, dtype):
    assert_equals_reference(*inputs(70, 66, heads=6, kv_heads=kv_heads, dtype=dtype), is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.7])
def test_scale_is_taken(isa, scale):
    assert_equals_reference(*inputs(33, 40), scale=scale)


def test_long_sequences_lose_no_precision(isa):
    q, k, v = inputs(700, 1500, 32, 32, heads=1, kv_heads=1, batch=1)
    assert_equals_reference(q, k, v)


def test_large_scores_do_not_overflow(isa):
    q, k, v = inputs(70, 70)
    assert attention(1e4 * q, k, v).isfinite().all()
    q[..., 0], k[..., 0] = 300, 300  # scores around 22500, all alike
    # The fp32 rounding of such scores is 0.001, and so is the error of a probability.
    assert_equals_reference(q, k, v, ulps=0.01 / torch.finfo(torch.float32).eps)


@for_dtypes
def test_agrees_with_torch(isa, dtype):
    q, k, v = inputs(100, 100, 32, 32, dtype=dtype)
    mask = masks(100, 100)["bool"]
    for options in ({"is_causal": True}, {"attn_mask": mask}, {"scale": 0.5}):
        ours = dict(options)
        ours["mask"] = ours.pop("attn_mask", None)
        expected = gradients(lambda *x, o=options: F.scaled_dot_product_attention(*x, **o), (q, k, v))
        actual = gradients(lambda *x, o=ours: attention(*x, **o), (q, k, v))
        for a, e in zip(actual[0] + actual[1], expected[0] + expected[1], strict=True):
            assert_close(a, e, ulps=32 if dtype == torch.float32 else 6)


# ---- what a query does not see -----------------------------------------------------------------------------


@for_dtypes
def test_a_query_that_sees_no_key_gives_zeros_and_no_gradient(isa, dtype):
    q, k, v = inputs(70, 70, dtype=dtype)
    mask = torch.ones(70, 70, dtype=torch.bool)
    mask[[0, 3, 69]] = False
    (out,), (dq, _, _) = gradients(lambda *x: attention(*x, mask=mask), (q, k, v))
    assert (out[:, :, [0, 3, 69]] == 0).all()
    assert (dq[:, :, [0, 3, 69]] == 0).all()
    assert_equals_reference(q, k, v, mask)


def test_a_mask_that_hides_all_gives_zeros(isa):
    q, k, v = inputs(70, 70)
    for mask in (torch.zeros(70, 70, dtype=torch.bool), torch.full((1, 1, 1, 70), -math.inf)):
        (out,), grads = gradients(lambda *x, mask=mask: attention(*x, mask=mask), (q, k, v))
        assert (out == 0).all()
        assert all((dx == 0).all() for dx in grads)


def test_hidden_blocks_are_not_read(isa):
    q, k, v = inputs(128, 128)
    k[:, :, 64:], v[:, :, 64:] = math.nan, math.nan
    mask = torch.arange(128) < 64
    assert attention(q, k, v, mask=mask).isfinite().all()
    assert attention(q, k, v, is_causal=True)[:, :, :64].isfinite().all()


# ---- NaN and infinity --------------------------------------------------------------------------------------


@for_dtypes
def test_nan_reaches_what_depends_on_it(isa, dtype):
    q, k, v = inputs(70, 70, dtype=dtype)
    q[0, 0, 5, 3] = math.nan
    v[0, 1, 9, 2] = math.nan
    out = attention(q, k, v)
    expected = torch.zeros(out.shape, dtype=torch.bool)
    expected[0, 0, 5], expected[0, 1, :, 2] = True, True
    assert torch.equal(out.isnan(), expected)


def test_nan_in_a_key_reaches_every_query(isa):
    q, k, v = inputs(70, 70)
    k[1, 1, 66, 3] = math.nan
    out = attention(q, k, v)
    assert out[1, 1].isnan().all()
    assert out[0].isfinite().all()
    dq, dk, dv = gradients(attention, (q, k, v))[1]
    assert all(dx[1, 1].isnan().all() and dx[0].isfinite().all() for dx in (dq, dk, dv))


def test_infinite_values_and_scores_come_out_as_the_formula_says(isa):
    q, k, v = inputs(20, 20)
    v[0, 0, 3, 3] = math.inf
    k[1, 0, 4, 0] = math.inf
    scores = formulas.product(q.double(), k.double().transpose(-2, -1)) / q.shape[-1] ** 0.5
    expected = formulas.product(formulas.softmax(scores), v.double())
    assert_close(attention(q, k, v), expected, ulps=24)
    assert expected.isinf().any()
    assert expected.isnan().any()


# ---- layouts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [strided, off_by_one, torch.Tensor.contiguous])
@for_dtypes
def test_layout_does_not_matter(isa, layout, dtype):
    q, k, v = inputs(35, 67, 19, 23, dtype=dtype)
    expected = gradients(attention, (q, k, v))
    actual = gradients(attention, [layout(x) for x in (q, k, v)])
    for a, e in zip(actual[0] + actual[1], expected[0] + expected[1], strict=True):
        assert torch.equal(a, e)


def test_views_of_one_projection_are_taken_as_they_are(isa):
    qkv = random(2, 40, 3, 2, 16)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    assert not q.is_contiguous()
    assert_equals_reference(q, k, v)


def test_expanded_heads_are_taken(isa):
    q, k, v = inputs(40, 40, heads=4, kv_heads=1)
    assert_equals_reference(q, k.expand(2, 4, 40, 16), v.expand(2, 4, 40, 16))


def test_result_merges_heads_without_a_copy(isa):
    q, k, v = inputs(40, 40, 16, 24)
    out = attention(q, k, v)
    assert out.shape == (2, 2, 40, 24)
    assert out.transpose(1, 2).is_contiguous()
    dq = gradients(attention, (q, k, v))[1][0]
    assert dq.stride() == q.stride()


@pytest.mark.parametrize("shape", [(40, 16), (3, 40, 16), (2, 3, 2, 40, 16)])
def test_any_number_of_dimensions(isa, shape):
    q, k, v = (random(*shape, seed=seed) for seed in range(3))
    assert_equals_reference(q, k, v, is_causal=True)
    assert_equals_reference(q, k, v, mask=random(40, 40))


# ---- dropout -----------------------------------------------------------------------------------------------


def draw():
    return int(torch.empty((), dtype=torch.int64).random_())


@for_dtypes
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"mask": torch.arange(90) % 7 > 0}], ids=str)
def test_dropout_equals_reference_with_its_seed(isa, options, dtype):
    q, k, v = inputs(70, 90, heads=4, kv_heads=2, dtype=dtype)
    torch.manual_seed(7)
    actual = gradients(lambda *x: attention(*x, enable_gqa=True, dropout_p=0.3, **options), (q, k, v))
    torch.manual_seed(7)
    seed = draw()
    expected = gradients(
        lambda *x: attention_reference(*x, enable_gqa=True, dropout_p=0.3, seed=seed, **options),
        [x.double() for x in (q, k, v)],
    )
    for a, e in zip(actual[0] + actual[1], expected[0] + expected[1], strict=True):
        assert_close(a, e, ULPS[dtype])


def test_dropout_rate_is_within_four_sigma(isa):
    n = 400
    q = torch.zeros(1, 1, n, 8)
    out = attention(q, q, torch.eye(n)[None, None], dropout_p=0.25)
    dropped = (out == 0).sum().item()
    assert abs(dropped - 0.25 * n * n) <= 4 * math.sqrt(0.25 * 0.75 * n * n)
    assert torch.allclose(out[out != 0], torch.tensor(1 / (0.75 * n)))


def test_dropout_of_all_gives_zeros(isa):
    (out,), grads = gradients(lambda *x: attention(*x, dropout_p=1.0), inputs(20, 20))
    assert (out == 0).all()
    assert all((dx == 0).all() for dx in grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sequences_longer_than_what_is_packed_ahead(dtype):
    q, k, v, dout = (random(1, 1, 8300, 8, seed=i).to(dtype) for i in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    found = attention(*inputs, is_causal=True)
    gradients = torch.autograd.grad(found, inputs, dout)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = F.scaled_dot_product_attention(*exact, is_causal=True)
    wanted = torch.autograd.grad(expected, exact, dout.double())
    for result, reference in zip((found, *gradients), (expected, *wanted), strict=True):
        size = reference.abs().max().item()
        assert (result - reference).abs().max().item() <= (1e-5 if dtype is torch.float32 else 2e-2) * size


# ---- threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_same_bits_on_repeat(isa, heads, threads, num_threads):
    num_threads(threads)
    q, k, v = inputs(150, 200, heads=heads, kv_heads=heads, batch=1)
    first, again = (gradients(lambda *x: attention(*x, is_causal=True), (q, k, v)) for _ in range(2))
    for a, e in zip(first[0] + first[1], again[0] + again[1], strict=True):
        assert torch.equal(a, e)


@pytest.mark.parametrize("heads", [1, 3])
def test_keys_are_shared_out_where_heads_are_few(isa, heads, num_threads):
    num_threads(3)
    q, k, v = inputs(150, 350, heads=2 * heads, kv_heads=heads, batch=1)
    assert_equals_reference(q, k, v, enable_gqa=True)
    assert_equals_reference(q, k, v, enable_gqa=True, is_causal=True)


# ---- autograd ----------------------------------------------------------------------------------------------


def test_only_wanted_gradients_are_made(isa):
    tensors = inputs(70, 70)
    expected = gradients(attention, tensors)[1]
    for i in range(3):
        leaves = [x.detach().requires_grad_(i == j) for j, x in enumerate(tensors)]
        out = attention(*leaves)
        out.backward(random(*out.shape, dtype=torch.bfloat16, seed=9).float())
        assert torch.equal(leaves[i].grad, expected[i])


def test_gradient_of_a_mask_is_torchs():
    q, k, v = inputs(20, 20)
    mask = random(20, 20).requires_grad_()
    attention(q, k, v, mask=mask).sum().backward()
    other = mask.detach().double().requires_grad_()
    attention_reference(q.double(), k.double(), v.double(), mask=other).sum().backward()
    assert_close(mask.grad, other.grad, ulps=64)


def test_reference_passes_gradcheck():
    q, k, v = (x.double().requires_grad_() for x in inputs(4, 5, 3, 2, heads=2, kv_heads=1, batch=1))
    mask = masks(4, 5)["float"].double().requires_grad_()

    def function(q, k, v, mask):
        return attention_reference(q, k, v, mask, is_causal=True, enable_gqa=True, dropout_p=0.2, seed=3)

    assert torch.autograd.gradcheck(function, [q, k, v, mask])


def test_without_gradients_the_result_is_the_same(isa):
    q, k, v = inputs(70, 70)
    with torch.no_grad():
        plain = attention(q, k, v)
    assert torch.equal(plain, attention(q.requires_grad_(), k, v))


def test_autocast_governs_the_dtype(isa):
    q, k, v = inputs(20, 20)
    expected = attention(*(x.bfloat16() for x in (q, k, v)))
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, expected)


# ---- what goes to torch, and errors ------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(0, 3, 4, 4), (3, 0, 4, 4), (3, 3, 4, 0)])
def test_empty_tensors_are_as_in_torch(sizes):
    q, k, v = inputs(*sizes)
    assert torch.equal(attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


def test_other_dtypes_and_broadcast_batches_go_to_torch():
    q, k, v = inputs(10, 12)
    wide = attention(q.double(), k.double(), v.double())
    assert wide.dtype == torch.float64
    assert torch.equal(attention(q, k[:1], v[:1]), F.scaled_dot_product_attention(q, k[:1], v[:1]))


def test_compiles(isa):
    q, k, v = inputs(10, 10)
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    assert_close(compiled(q, k, v), attention(q, k, v), ulps=24)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": (2, 2, 12, 15)}, r"expected q \[..., L, E\], k \[..., S, E\].*got \(2, 2, 10, 16\), \(2, 2, 12, 15\)"),
        ({"k": (2, 2, 11, 16)}, r"expected q .* and v \[..., S, Ev\]"),
        ({"mask": (3, 12)}, r"expected a mask that broadcasts to \(2, 2, 10, 12\), got \(3, 12\)"),
    ],
    ids=["dims", "lengths", "mask"],
)
def test_shapes_that_do_not_fit_are_named(change, message):
    tensors = dict(zip("qkv", inputs(10, 12), strict=True))
    tensors |= {name: torch.zeros(shape) for name, shape in change.items()}
    with pytest.raises(ValueError, match=message):
        attention(**tensors)


def test_heads_that_cannot_be_shared_are_named():
    with pytest.raises(ValueError, match=r"divides that of q, 3, got 2"):
        attention(*inputs(4, 4, heads=3, kv_heads=2), enable_gqa=True)


def test_a_wrong_probability_is_named():
    with pytest.raises(ValueError, match=r"expected a probability dropout_p from 0 to 1, got -0\.1"):
        attention(*inputs(4, 4), dropout_p=-0.1)
