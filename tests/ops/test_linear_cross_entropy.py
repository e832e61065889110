import gc

import pytest
import torch
import torch.nn.functional as F

from fullstride.ops import linear_cross_entropy as op
from fullstride.ops.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_reference
from fullstride.ops.products import backend, backends, set_backend

from .cases import assert_close, for_dtypes, random, strided

# (rows, features, classes): nothing, one, odd, one past a vector, many classes.
SHAPES = [(0, 8, 5), (1, 1, 1), (3, 5, 7), (10, 16, 33), (67, 24, 257), (5, 8, 4099)]


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of at most 4 rows, so that a few rows are many chunks."""
    monkeypatch.setattr(op, "CHUNK_ROWS", 4)


def inputs(rows, features, classes, dtype=torch.float32, seed=0):
    hidden = random(rows, features, dtype=dtype, seed=seed)
    weight = random(classes, features, dtype=dtype, seed=seed + 1) / 2
    bias = random(classes, dtype=dtype, seed=seed + 2)
    target = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(seed + 3))
    return hidden, weight, bias, target


def loss_and_gradients(function, hidden, weight, bias, target, **options):
    """The loss and the gradients of hidden, weight and bias, each row of a loss per row weighted by its own number."""
    leaves = [x if x is None else x.detach().requires_grad_() for x in (hidden, weight, bias)]
    loss = function(leaves[0], leaves[1], target, leaves[2], **options)
    factors = random(loss.numel(), seed=9).view(loss.shape).to(loss.dtype)
    return [loss.detach(), *torch.autograd.grad(loss, [x for x in leaves if x is not None], factors)]


def in_double(hidden, weight, bias, target, **options):
    hidden, weight, bias = (x if x is None else x.double() for x in (hidden, weight, bias))
    return loss_and_gradients(linear_cross_entropy_reference, hidden, weight, bias, target, **options)


def assert_gradients(actual, expected, dtype):
    """fp32: 2e-5 of the largest; bf16: three roundings of it, as dlogits and the products are bf16."""
    for a, b in zip(actual, expected, strict=True):
        assert_close(a.double(), b, ulps=2e-5 / 2.3e-16 if dtype == torch.float32 else 3 * 2**-8 / 2.3e-16, floor=1e-3)


@for_dtypes
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_reference_forward_and_backward(isa, small_chunks, shape, dtype, reduction):
    rows, features, classes = shape
    hidden, weight, bias, target = inputs(rows, features, classes, dtype=dtype)
    target[::3] = -7
    options = {"reduction": reduction, "ignore_index": -7}
    actual = loss_and_gradients(linear_cross_entropy, hidden, weight, bias, target, **options)
    assert actual[0].dtype == torch.float32
    assert [x.dtype for x in actual[1:]] == [dtype] * 3
    assert_gradients(actual, in_double(hidden, weight, bias, target, **options), dtype)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_label_smoothing_is_that_of_torch(small_chunks, reduction, smoothing):
    hidden, weight, bias, target = inputs(10, 16, 33)
    options = {"reduction": reduction, "label_smoothing": smoothing}

    def stock(hidden, weight, target, bias, **options):
        return F.cross_entropy(F.linear(hidden, weight, bias), target, **options)

    expected = loss_and_gradients(stock, hidden.double(), weight.double(), bias.double(), target, **options)
    assert_gradients(
        loss_and_gradients(linear_cross_entropy, hidden, weight, bias, target, **options), expected, torch.float32
    )


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for dtype in (torch.float32, torch.bfloat16) for name in backends(dtype)]
)
def test_every_backend_gives_the_same(small_chunks, name, dtype):
    hidden, weight, bias, target = inputs(10, 16, 33, dtype=dtype)
    before = backend(dtype)
    try:
        set_backend(dtype, name)
        for b in (bias, None):
            actual = loss_and_gradients(linear_cross_entropy, hidden, weight, b, target)
            assert_gradients(actual, in_double(hidden, weight, b, target), dtype)
    finally:
        set_backend(dtype, before)


def test_the_size_of_a_chunk_does_not_matter(monkeypatch):
    hidden, weight, bias, target = inputs(67, 24, 257)
    target[5:9] = -100
    results = []
    for rows in [1, 10, 512]:
        monkeypatch.setattr(op, "CHUNK_ROWS", rows)
        results.append(loss_and_gradients(linear_cross_entropy, hidden, weight, bias, target))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("frozen", ["hidden", "weight", "bias"])
def test_only_what_requires_a_gradient_gets_one(frozen):
    names = ["hidden", "weight", "bias"]
    *tensors, target = inputs(10, 16, 33)
    leaves = dict(
        zip(names, (x.requires_grad_(name != frozen) for name, x in zip(names, tensors, strict=True)), strict=True)
    )
    loss = linear_cross_entropy(target=target, **leaves)
    loss.backward()
    expected = in_double(leaves["hidden"].detach(), leaves["weight"].detach(), leaves["bias"].detach(), target)
    for name, gradient in zip(names, expected[1:], strict=True):
        if name == frozen:
            assert leaves[name].grad is None
        else:
            torch.testing.assert_close(
                leaves[name].grad.double() * random(1, seed=9).item(), gradient, rtol=1e-4, atol=1e-6
            )


def test_nothing_larger_than_a_chunk_is_made(small_chunks):
    hidden, weight, _, target = inputs(64, 8, 1000)
    gc.collect()
    seen: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            seen.extend(x.numel() for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor))
            return out

    with Watch():
        linear_cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), target).backward()
    assert max(seen) == 1000 * 8  # the gradient of the weight, not 64 rows of 1000 logits


def test_ignored_rows_take_no_part_even_if_not_finite():
    hidden, weight, bias, target = inputs(6, 16, 33)
    hidden[2] = torch.nan
    target[2] = -100
    for actual in loss_and_gradients(linear_cross_entropy, hidden, weight, bias, target):
        assert actual.isfinite().all()


def test_all_ignored_gives_nan_for_the_mean_and_no_gradient():
    hidden, weight, bias, target = inputs(3, 4, 9)
    loss, *gradients = loss_and_gradients(linear_cross_entropy, hidden, weight, bias, torch.full_like(target, -100))
    assert loss.isnan()
    assert all((gradient == 0).all() for gradient in gradients)


def test_backward_can_be_repeated_on_a_retained_graph_only(small_chunks):
    hidden, weight, _, target = inputs(10, 16, 33)
    hidden.requires_grad_()
    for reduction in ["mean", "none"]:
        loss = linear_cross_entropy(hidden, weight, target, reduction=reduction).sum() * 3
        first, second = (torch.autograd.grad(loss, hidden, retain_graph=True)[0].clone() for _ in range(2))
        assert torch.equal(first, second)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_changing_the_weight_before_backward_is_noticed():
    hidden, weight, _, target = inputs(10, 16, 33)
    loss = linear_cross_entropy(hidden, weight.requires_grad_(), target)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_gradient_of_the_weight_is_handed_over_without_a_copy():
    hidden, weight, _, target = inputs(10, 16, 33)
    loss = linear_cross_entropy(hidden, weight.requires_grad_(), target)
    address = loss.grad_fn.kept.dweight.data_ptr()
    loss.backward()
    assert weight.grad.data_ptr() == address


@pytest.mark.parametrize(("grad_dtype", "expected"), [(torch.bfloat16, torch.bfloat16), (None, torch.float32)])
def test_a_bf16_weight_gets_an_fp32_gradient_where_it_allows_one(grad_dtype, expected):
    hidden, weight, _, target = inputs(10, 16, 33, dtype=torch.bfloat16)
    weight = torch.nn.Parameter(weight)
    weight.grad_dtype = grad_dtype
    linear_cross_entropy(hidden, weight, target).backward()
    assert weight.grad.dtype == expected


def test_follows_autocast_as_linear_does():
    hidden, weight, bias, target = inputs(10, 16, 33)
    weight = weight.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss, *gradients = loss_and_gradients(linear_cross_entropy, hidden, weight, bias, target)
        assert linear_cross_entropy(hidden, weight, target, bias, reduction="none").dtype == torch.float32
    assert [x.dtype for x in gradients] == [torch.float32, torch.bfloat16, torch.float32]
    expected = in_double(hidden.bfloat16(), weight, bias.bfloat16(), target)
    assert_gradients([loss, *gradients], expected, torch.bfloat16)


@for_dtypes
def test_layout_does_not_matter(dtype):
    hidden, weight, bias, target = inputs(10, 16, 33, dtype=dtype)
    plain = loss_and_gradients(linear_cross_entropy, hidden, weight, bias, target)
    other = loss_and_gradients(
        linear_cross_entropy, strided(hidden), weight, bias, torch.stack([target, target], 1)[:, 0]
    )
    for a, b in zip(plain, other, strict=True):
        assert_close(a, b, ulps=4)


def test_leading_dimensions_are_rows():
    hidden, weight, _, target = inputs(12, 16, 33)
    flat = linear_cross_entropy(hidden, weight, target, reduction="none")
    deep = linear_cross_entropy(hidden.view(3, 4, 16), weight, target.view(3, 4), reduction="none")
    assert torch.equal(deep, flat.view(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["kernel", "reference"])
def test_a_target_out_of_range_is_named_with_its_row(dtype):
    hidden, weight, _, target = inputs(6, 4, 20)
    target[4] = 20
    with pytest.raises(IndexError, match=r"targets in \[0, 20\) or ignore_index -100, got 20 in row 4"):
        linear_cross_entropy(hidden.to(dtype), weight.to(dtype), target)


def test_compiles_by_the_reference():
    hidden, weight, _, target = inputs(6, 4, 20)
    compiled = torch.compile(linear_cross_entropy, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(hidden, weight, target), linear_cross_entropy(hidden, weight, target))


def test_bad_arguments_are_named():
    hidden, weight, bias, target = inputs(3, 4, 9)
    with pytest.raises(ValueError, match=r"expected int64 class numbers as target, got torch.float32"):
        linear_cross_entropy(hidden, weight, target.float())
    with pytest.raises(ValueError, match=r"expected target of shape \(3,\) for hidden \(3, 4\), got \(2,\)"):
        linear_cross_entropy(hidden, weight, target[:2])
    with pytest.raises(ValueError, match=r"got \(3, 4\) and \(4, 9\)"):
        linear_cross_entropy(hidden, weight.t(), target)
    with pytest.raises(ValueError, match=r"expected bias of 9 classes, got \(8,\)"):
        linear_cross_entropy(hidden, weight, target, bias[:8])
    with pytest.raises(ValueError, match=r"label_smoothing in \[0, 1\], got 2"):
        linear_cross_entropy(hidden, weight, target, label_smoothing=2)
    with pytest.raises(ValueError, match=r"one of mean, sum, none, got 'avg'"):
        linear_cross_entropy(hidden, weight, target, reduction="avg")
