"""How the gradients of weights of ops.linear reach p.grad: in place, and beside the rest of backward."""

import pytest
import torch
import torch.utils.checkpoint
from torch.nn.functional import embedding

from fullstride import _native
from fullstride.ops import _gradient_norms, _overlap, _weight_grads, grads
from fullstride.ops._overlap import overlap_weight_grads, overlaps_weight_grads
from fullstride.ops.linear import linear, measure_overlap
from fullstride.ops.products import backend, backends, set_backend
from fullstride.optim import keep_main_gradients

from .cases import assert_close, random

WIDTH = 257  # squared it is more than the smallest weight that is added in place
for_backends = pytest.mark.parametrize("name", ["torch", "onednn", "native"])


@pytest.fixture(autouse=True)
def settings(num_threads):
    """Two threads, so that there is one to spare, and everything put back."""
    before = {dtype: backend(dtype) for dtype in (torch.float32, torch.bfloat16)}
    num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    overlap_weight_grads(False)
    for dtype, name in before.items():
        set_backend(dtype, name)


def use(name, dtype=torch.float32):
    if name not in backends(dtype):
        pytest.skip(f"no {name} in {dtype} here")
    set_backend(dtype, name)


def parameters(count=3, dtype=torch.float32):
    weights = [random(WIDTH, WIDTH, seed=i) / WIDTH**0.5 for i in range(count)]
    return [torch.nn.Parameter(weight.to(dtype)) for weight in weights]


def chain(x, weights):
    for weight in weights:
        x = linear(x, weight, activation="silu")
    return x


def run(weights, batches=1, rows=20):
    for i in range(batches):
        chain(random(rows, WIDTH, dtype=weights[0].dtype, seed=10 + i), weights).float().sum().backward()
    return [weight.grad for weight in weights]


def expected(weights, batches=1, rows=20):
    """The gradients in fp64, of fp32 or bf16 weights."""
    return run([torch.nn.Parameter(weight.detach().double()) for weight in weights], batches, rows)


def calls_of(monkeypatch, module, name):
    """The arguments of all calls of a function of the module from now on."""
    calls, function = [], getattr(module, name)

    def recorded(*args):
        calls.append(args)
        return function(*args)

    monkeypatch.setattr(module, name, recorded)
    return calls


@for_backends
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("batches", [1, 3])
def test_gradients_over_micro_batches_are_those_of_fp64(name, overlap, batches):
    use(name)
    overlap_weight_grads(overlap)
    weights = parameters()
    for actual, reference in zip(run(weights, batches), expected(weights, batches), strict=True):
        assert_close(actual, reference, ulps=64)


@pytest.mark.parametrize("overlap", [False, True])
def test_bf16_weights_with_main_gradients(overlap):
    use("native", torch.bfloat16)
    overlap_weight_grads(overlap)
    weights = parameters(dtype=torch.bfloat16)
    keep_main_gradients(weights)
    for actual, reference in zip(run(weights, 4), expected(weights, 4), strict=True):
        assert actual.dtype == torch.float32
        assert (actual - reference).norm() <= 0.01 * reference.norm()


@for_backends
def test_overlap_gives_the_bits_of_no_overlap_on_one_thread(name, num_threads):
    use(name)
    weights, others = parameters(6), parameters(6)
    num_threads(1)
    run(weights)
    num_threads(2)
    overlap_weight_grads(True)
    run(others)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(weights, others, strict=True))


def test_the_second_micro_batch_is_added_in_place(monkeypatch):
    use("native")
    calls, weights = calls_of(monkeypatch, _weight_grads, "add_product"), parameters()
    run(weights)
    assert not calls
    before = [weight.grad.data_ptr() for weight in weights]
    run(weights)
    assert len(calls) == 3
    assert [weight.grad.data_ptr() for weight in weights] == before


@pytest.mark.parametrize("overlap", [False, True])
def test_a_weight_used_twice_and_in_an_embedding_sums_all_its_gradients(overlap):
    use("native")
    overlap_weight_grads(overlap)
    index = torch.tensor([3, 5, 3])

    def loss(weight):
        hidden = embedding(index, weight)
        return linear(linear(hidden, weight, activation="silu"), weight).square().sum()

    (weight,) = parameters(1)
    reference = torch.nn.Parameter(weight.detach().double())
    for _ in range(3):
        loss(weight).backward()
        loss(reference).backward()
    assert_close(weight.grad, reference.grad, ulps=64)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_see_the_gradient_as_in_torch(register, overlap):
    overlap_weight_grads(overlap)
    weights, seen = parameters(), []
    for weight in weights:
        getattr(weight, register)(lambda tensor: seen.append(tensor.dtype))
    run(weights, 2)
    assert seen == [torch.float32] * 6
    for actual, reference in zip(weights, expected(weights, 2), strict=True):
        assert_close(actual.grad, reference, ulps=64)


@pytest.mark.parametrize("overlap", [False, True])
def test_autograd_grad_returns_gradients_and_leaves_p_grad_alone(overlap):
    overlap_weight_grads(overlap)
    weights = parameters()
    run(weights)
    before = [weight.grad.clone() for weight in weights]
    y = chain(random(20, WIDTH, seed=10), weights).sum()
    gradients = torch.autograd.grad(y, weights)
    for weight, gradient, kept in zip(weights, gradients, before, strict=True):
        assert torch.equal(weight.grad, kept)
        assert_close(gradient, kept)


@pytest.mark.filterwarnings("ignore:Using backward")  # the reference cycle is broken below
@pytest.mark.parametrize("overlap", [False, True])
def test_create_graph_leaves_the_gradient_to_the_engine(overlap):
    overlap_weight_grads(overlap)
    weights = parameters()
    run(weights)
    chain(random(20, WIDTH, seed=10), weights).sum().backward(create_graph=True)
    for weight, reference in zip(weights, expected(weights), strict=True):
        assert_close(weight.grad, 2 * reference, ulps=64)
        assert weight.grad.grad_fn is not None
        weight.grad = None


@pytest.mark.parametrize("overlap", [False, True])
def test_backward_with_inputs_reaches_only_those(overlap):
    overlap_weight_grads(overlap)
    weights = parameters()
    chain(random(20, WIDTH, seed=10), weights).sum().backward(inputs=[weights[1]])
    assert weights[0].grad is None
    assert weights[2].grad is None
    assert_close(weights[1].grad, expected(weights)[1], ulps=64)


@pytest.mark.parametrize("overlap", [False, True])
def test_weights_that_are_computed_pass_their_gradient_on(overlap):
    overlap_weight_grads(overlap)
    (weight,) = parameters(1)
    linear(random(20, WIDTH), weight * 2).sum().backward()
    doubled = weight.grad
    weight.grad = None
    linear(random(20, WIDTH), weight).sum().backward()
    assert_close(doubled, 2 * weight.grad)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_function_that_calls_something_its_variable_is_no_parameter(overlap):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            ctx.variable = weight
            return 2 * weight

        @staticmethod
        def backward(ctx, dy):
            return 2 * dy

    overlap_weight_grads(overlap)
    (weight,) = parameters(1)
    for _ in range(2):
        linear(random(20, WIDTH), Double.apply(weight)).sum().backward()
    assert_close(weight.grad, (4 * random(20, WIDTH).double().sum(0)).expand(WIDTH, WIDTH))


def test_overlap_joins_before_backward_returns_and_restores_threads(monkeypatch):
    overlap_weight_grads(True)
    calls, weights = calls_of(monkeypatch, _overlap, "deliver"), parameters(10)
    run(weights)
    assert len(calls) == 10
    assert torch.get_num_threads() == 2
    assert not _overlap._pendings


def test_a_backward_that_raises_leaves_nothing_behind():
    class Raise(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            raise ArithmeticError("on purpose")

    overlap_weight_grads(True)
    first, second = parameters(2)
    y = linear(Raise.apply(linear(random(20, WIDTH), first)), second).sum()
    with pytest.raises(ArithmeticError, match="on purpose"):
        y.backward()
    assert not _overlap._pendings
    assert torch.get_num_threads() == 2
    assert first.grad is None
    assert second.grad is None


def test_an_error_in_the_worker_comes_out_of_backward(monkeypatch):
    def fail(*args, **kwargs):
        raise ArithmeticError("on purpose")

    overlap_weight_grads(True)
    weights = parameters()
    y = chain(random(20, WIDTH), weights).sum()
    monkeypatch.setattr(_overlap, "product", fail)
    with pytest.raises(ArithmeticError, match="on purpose"):
        y.backward()
    assert torch.get_num_threads() == 2


def test_one_thread_has_none_to_spare(num_threads, monkeypatch):
    calls = calls_of(monkeypatch, _overlap, "deliver")
    overlap_weight_grads(True)
    num_threads(1)
    weights = parameters()
    run(weights)
    num_threads(2)
    assert not calls
    assert all(weight.grad is not None for weight in weights)


def test_gradient_checkpoints_work_with_overlap():
    overlap_weight_grads(True)
    weights = parameters()
    for reentrant in (False, True):
        for weight in weights:
            weight.grad = None
        x = random(20, WIDTH, seed=10).requires_grad_()
        y = torch.utils.checkpoint.checkpoint(chain, x, weights, use_reentrant=reentrant)
        y.sum().backward()
        for weight, reference in zip(weights, expected(weights), strict=True):
            assert_close(weight.grad, reference, ulps=64)


def test_measuring_changes_no_setting():
    assert measure_overlap(rounds=1) > 0
    assert not overlaps_weight_grads()
    overlap_weight_grads(True)
    assert measure_overlap(rounds=1) > 0
    assert overlaps_weight_grads()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_of_what_native_products_wrote_is_not_read_again(dtype, monkeypatch):
    use("native", dtype)
    (weight,) = parameters(1, dtype)
    _gradient_norms.want()
    linear(random(64, WIDTH).to(dtype), weight).square().sum().backward()
    exact = weight.grad.double().square().sum().item()
    assert _gradient_norms.recall(weight.grad) == pytest.approx(exact, rel=1e-6)
    monkeypatch.setattr(_native.kernels, "grad_norm", None)  # nothing is left to be read
    assert grads.grad_norm([weight.grad]) == (pytest.approx(exact**0.5, rel=1e-6), True)
    weight.grad.mul_(2)
    assert _gradient_norms.recall(weight.grad) is None
