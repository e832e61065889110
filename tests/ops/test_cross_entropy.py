import pytest
import torch
import torch.nn.functional as F

from fullstride.ops.cross_entropy import cross_entropy, cross_entropy_reference

from . import formulas
from .cases import assert_close, for_dtypes, off_by_one, random, strided

# Nothing, one class, two, odd, prime, one past each vector width and each block of the sum.
SHAPES = [(0, 8), (1, 1), (3, 2), (2, 5), (5, 7), (4, 9), (7, 15), (4, 17), (3, 33), (2, 127), (67, 1000), (3, 4099)]


def targets(rows: int, classes: int, seed: int = 5) -> torch.Tensor:
    return torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(seed))


def loss_and_gradient(function, logits, target, **options):
    """The loss of function and the gradient of logits, each row of a loss per row weighted by its own number."""
    leaf = logits.detach().requires_grad_()
    loss = function(leaf, target, **options)
    (gradient,) = torch.autograd.grad(loss, leaf, random(loss.numel(), seed=9).view(loss.shape).to(loss.dtype))
    return loss.detach(), gradient


@for_dtypes
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_reference_forward_and_backward(isa, shape, dtype, reduction):
    logits, target = random(*shape, dtype=dtype), targets(*shape)
    target[::3] = 999 if shape[1] < 999 else -7
    options = {"reduction": reduction, "ignore_index": 999 if shape[1] < 999 else -7}
    loss, gradient = loss_and_gradient(cross_entropy, logits, target, **options)
    loss_ref, gradient_ref = loss_and_gradient(cross_entropy_reference, logits.double(), target, **options)
    assert loss.dtype == torch.float32
    assert gradient.dtype == dtype
    assert_close(loss, loss_ref, ulps=4)
    assert_close(gradient, gradient_ref, ulps=4 if dtype == torch.float32 else 1, floor=1e-6)


@for_dtypes
@pytest.mark.parametrize("shape", [(3, 32000), (3, 50257), (2, 200_000)])
def test_vocabularies_lose_no_accuracy(isa, shape, dtype):
    logits, target = 3 * random(*shape, dtype=dtype), targets(*shape)
    loss, gradient = loss_and_gradient(cross_entropy, logits, target, reduction="none")
    loss_ref, gradient_ref = loss_and_gradient(cross_entropy_reference, logits.double(), target, reduction="none")
    assert_close(loss, loss_ref, ulps=2)
    assert_close(gradient, gradient_ref, ulps=2, floor=1e-6)


@for_dtypes
@pytest.mark.parametrize("shape", [(5, 2), (4, 17), (3, 4099)])
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_label_smoothing_is_that_of_torch(isa, shape, dtype, smoothing):
    logits, target = random(*shape, dtype=dtype), targets(*shape)
    target[1] = -100
    for reduction in ["mean", "sum", "none"]:
        options = {"reduction": reduction, "label_smoothing": smoothing}
        loss, gradient = loss_and_gradient(cross_entropy, logits, target, **options)
        loss_ref, gradient_ref = loss_and_gradient(F.cross_entropy, logits.double(), target, **options)
        assert_close(loss, loss_ref, ulps=4)
        assert_close(gradient, gradient_ref, ulps=4, floor=1e-3)


def test_reference_is_torch_itself():
    logits, target = random(6, 11).double(), targets(6, 11)
    target[2] = -100
    for smoothing in [0.0, 0.3]:
        for reduction in ["mean", "sum", "none"]:
            options = {"reduction": reduction, "label_smoothing": smoothing}
            ours = loss_and_gradient(cross_entropy_reference, logits, target, **options)
            torchs = loss_and_gradient(F.cross_entropy, logits, target, **options)
            for a, b in zip(ours, torchs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("classes", [2, 9, 1000, 32000])
def test_confident_rows_keep_relative_accuracy(isa, classes):
    """A loss of 1e-30 and the gradient at its target are right to 1e-5 of themselves, not to 1e-7 of 1."""
    target = targets(8, classes)
    logits = random(8, classes)
    logits[torch.arange(8), target] = torch.tensor([5.0, 10, 20, 30, 40, 50, 60, 70])
    loss, gradient = loss_and_gradient(cross_entropy, logits, target, reduction="none")
    loss_ref = torch.log1p(
        (logits.double() - logits.double().amax(1, keepdim=True)).exp().scatter(1, target[:, None], 0.0).sum(1)
    )
    gradient_ref = -torch.expm1(-loss_ref) * -1 * random(8, seed=9)
    torch.testing.assert_close(loss.double(), loss_ref, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient[torch.arange(8), target].double(), gradient_ref, rtol=1e-5, atol=0)


@pytest.mark.parametrize("offset", [-1e30, -1e4, 1e4, 1e30, 3e38])
def test_huge_logits_do_not_overflow(isa, offset):
    logits, target = torch.full((2, 37), offset), targets(2, 37)
    loss, gradient = loss_and_gradient(cross_entropy, logits, target)
    loss_ref, gradient_ref = loss_and_gradient(cross_entropy_reference, logits.double(), target)
    assert_close(loss, loss_ref, ulps=2)
    assert_close(gradient, gradient_ref, ulps=2)


def test_far_apart_logits_give_the_distance(isa):
    logits = torch.tensor([[1e30, -1e30, 0.0], [3.0, 200.0, -200.0]])
    loss = cross_entropy(logits, torch.tensor([1, 2]), reduction="none")
    assert torch.equal(loss, torch.tensor([2e30, 400.0]))


@for_dtypes
@pytest.mark.parametrize("at", ["target", "elsewhere", "everywhere"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_nan_and_infinity_come_out_as_the_formula_says(isa, value, at, smoothing, dtype):
    logits, target = random(4, 41, dtype=dtype), torch.tensor([3, 7, 40, 0])
    columns = {"target": slice(40, 41), "elsewhere": slice(12, 13), "everywhere": slice(None)}
    logits[2, columns[at]] = value
    options = {"reduction": "none", "label_smoothing": smoothing}
    loss, gradient = loss_and_gradient(cross_entropy, logits, target, **options)
    log_p = formulas.log_softmax(logits.double())
    likely = log_p.gather(1, target[:, None]).squeeze(1)
    assert_close(loss, -(1 - smoothing) * likely - (smoothing * log_p.mean(dim=1) if smoothing else 0), ulps=4)
    wanted = (1 - smoothing) * F.one_hot(target, 41) + smoothing / 41
    assert_close(gradient, (formulas.softmax(logits.double()) - wanted) * random(4, seed=9)[:, None], ulps=4)


def test_masked_classes_get_a_gradient_of_exactly_zero(isa):
    logits = random(3, 33)
    logits[:, 5:9] = -torch.inf
    _, gradient = loss_and_gradient(cross_entropy, logits, torch.tensor([0, 1, 32]))
    assert (gradient[:, 5:9] == 0).all()


@for_dtypes
def test_ignored_rows_have_no_gradient_even_if_not_finite(isa, dtype):
    logits, target = random(3, 20, dtype=dtype), torch.tensor([4, -100, 6])
    logits[1] = torch.nan
    for function in [cross_entropy, cross_entropy_reference]:
        loss, gradient = loss_and_gradient(function, logits, target)
        assert loss.isfinite()
        assert (gradient[1] == 0).all()


def test_all_ignored_gives_nan_for_the_mean_and_no_gradient(isa):
    logits, target = random(3, 20), torch.full((3,), -100)
    loss, gradient = loss_and_gradient(cross_entropy, logits, target)
    assert loss.isnan()
    assert (gradient == 0).all()
    assert cross_entropy(logits, target, reduction="sum") == 0
    assert cross_entropy(torch.empty(0, 5), torch.empty(0, dtype=torch.int64)).isnan()


@pytest.mark.parametrize("bad", [20, -1, 2**62, -(2**62)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["kernel", "reference"])
def test_a_target_out_of_range_is_named_with_its_row(isa, bad, dtype):
    logits, target = random(2, 3, 20).to(dtype).requires_grad_(), torch.zeros(2, 3, dtype=torch.int64)
    target[1, 1] = bad
    with pytest.raises(IndexError, match=rf"targets in \[0, 20\) or ignore_index -100, got {bad} in row 4"):
        cross_entropy(logits, target)


@for_dtypes
@pytest.mark.parametrize("layout", [strided, off_by_one])
def test_layout_does_not_matter(isa, layout, dtype):
    logits, target = random(6, 67, dtype=dtype), targets(6, 67)
    plain = loss_and_gradient(cross_entropy, logits, target, reduction="none")
    other = loss_and_gradient(cross_entropy, layout(logits), layout(target.view(6, 1)).view(6), reduction="none")
    assert all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))


@for_dtypes
@pytest.mark.parametrize("layout", [lambda x: x, strided])
def test_inplace_gives_the_same_bits(isa, dtype, layout):
    logits, target = random(2, 5, 67, dtype=dtype), targets(10, 67).view(2, 5)
    plain = loss_and_gradient(cross_entropy, logits, target)
    over = loss_and_gradient(lambda x, t: cross_entropy(layout(x * 1), t, inplace=True), logits, target)
    assert all(torch.equal(a, b) for a, b in zip(plain, over, strict=True))


def test_inplace_overwrites_the_logits_with_the_gradient(isa):
    weight = random(8, 33).requires_grad_()
    logits = weight * 1
    cross_entropy(logits, targets(8, 33), inplace=True).backward()
    assert weight.grad is not None
    assert torch.equal(logits, weight.grad)


def test_inplace_is_noticed_by_an_op_that_needs_the_logits(isa):
    weight = random(8, 33).requires_grad_()
    loss = cross_entropy(weight.tanh(), targets(8, 33), inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inplace_allows_one_backward_pass_with_a_factor(isa):
    weight = random(8, 33).requires_grad_()
    loss = cross_entropy(weight * 1, targets(8, 33), inplace=True) * 3
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_backward_can_be_repeated_when_not_inplace(isa):
    weight = random(8, 33).requires_grad_()
    for factor in [1, 3]:
        loss = cross_entropy(weight, targets(8, 33)) * factor
        first, second = (torch.autograd.grad(loss, weight, retain_graph=True)[0].clone() for _ in range(2))
        assert torch.equal(first, second)


@pytest.mark.parametrize("view", [lambda x: x.view(2, 8), lambda x: x[:2], lambda x: x[1:].view(1, 8)[:1]])
def test_inplace_refuses_views_of_leaves(isa, view):
    leaf = random(2, 8).requires_grad_()
    logits = view(leaf)
    with pytest.raises(ValueError, match="overwrite a leaf"):
        cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64), inplace=True)


def test_without_a_gradient_the_logits_are_left_alone(isa):
    logits, target = random(8, 33), targets(8, 33)
    before = logits.clone()
    loss = cross_entropy(logits, target, inplace=True)
    assert torch.equal(logits, before)
    assert torch.equal(loss, loss_and_gradient(cross_entropy, logits, target)[0])


def test_a_sum_over_rows_needs_no_pass_in_backward(isa):
    leaf = random(4, 9).requires_grad_()
    loss = cross_entropy(leaf, targets(4, 9), reduction="none")
    stored, *_ = loss.grad_fn.saved_tensors
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    assert gradient.data_ptr() == stored.data_ptr()


def test_any_number_of_threads_gives_the_same_bits(isa):
    logits, target = random(301, 257), targets(301, 257)
    threads = torch.get_num_threads()
    results = []
    for num_threads in [1, 2, 2]:
        torch.set_num_threads(num_threads)
        results.append(loss_and_gradient(cross_entropy, logits, target))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_reference_passes_gradcheck(smoothing):
    target = torch.tensor([1, -100, 4])
    logits = random(3, 5).double().requires_grad_()
    for reduction in ["mean", "none"]:
        assert torch.autograd.gradcheck(
            lambda x, r=reduction: cross_entropy_reference(x, target, label_smoothing=smoothing, reduction=r), logits
        )


def test_bad_arguments_are_named():
    logits, target = torch.ones(2, 8), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"expected int64 class numbers as target, got torch.float32"):
        cross_entropy(logits, target.float())
    with pytest.raises(ValueError, match=r"expected target of shape \(2,\) for logits \(2, 8\), got \(8,\)"):
        cross_entropy(logits, torch.zeros(8, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"expected label_smoothing in \[0, 1\], got 1.5"):
        cross_entropy(logits, target, label_smoothing=1.5)
    with pytest.raises(ValueError, match=r"one of mean, sum, none, got 'avg'"):
        cross_entropy(logits, target, reduction="avg")
    with pytest.raises(ValueError, match=r"classes >= 1, got \(2, 0\)"):
        cross_entropy(torch.ones(2, 0), target)
    with pytest.raises(ValueError, match="overwrite a leaf"):
        cross_entropy(torch.ones(2, 8, requires_grad=True), target, inplace=True)
