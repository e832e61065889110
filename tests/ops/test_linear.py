import pytest
import torch
import torch.nn.functional as F

from fullstride.ops.linear import linear, linear_reference
from fullstride.ops.products import BACKENDS, backend, backends, set_backend

from . import formulas
from .cases import assert_close, for_dtypes, gradients, off_by_one, random, strided

NAMES = ["none", "relu", "gelu", "gelu_tanh", "silu"]
for_activations = pytest.mark.parametrize("activation", NAMES)
# (rows of x, in, out)
SHAPES = [(1, 1, 1), (3, 1, 5), (5, 7, 1), (17, 33, 9), (64, 65, 127), (2, 300, 17), (130, 70, 258)]


@pytest.fixture(params=["torch", "onednn", "native"])
def use(request):
    """use(dtype) takes this backend for the dtype for the rest of the test."""
    before = {dtype: backend(dtype) for dtype in (torch.float32, torch.bfloat16)}

    def choose(dtype):
        if request.param not in backends(dtype):
            pytest.skip(f"no {request.param} in {dtype} here")
        set_backend(dtype, request.param)

    yield choose
    for dtype, name in before.items():
        set_backend(dtype, name)


def whole_numbers(rows, cols, out, dtype):
    """Inputs whose products bf16 holds exactly, and never 0: rounding must not decide what ReLU does."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (rows, cols), generator=generator).to(dtype)
    weight = torch.randint(-1, 2, (out, cols), generator=generator).to(dtype)
    return x, weight, torch.randint(-3, 4, (out,), generator=generator).to(dtype) + 0.5


def inputs(rows, cols, out, dtype=torch.float32, bias_dtype=None):
    weight = random(out, cols, dtype=torch.float32, seed=1) / max(cols, 1) ** 0.5
    return random(rows, cols, dtype=dtype), weight.to(dtype), random(out, dtype=bias_dtype or dtype, seed=2)


def assert_equals_reference(tensors, activation, ulps=8):
    """The outputs and all gradients are those of the reference in fp64 on the same values."""
    actual = gradients(lambda *t: linear(*t, activation=activation), tensors)
    wide = [None if t is None else t.double() for t in tensors]
    expected = gradients(lambda *t: linear_reference(*t, activation=activation), wide)
    for a, e in zip((*actual[0], *actual[1]), (*expected[0], *expected[1]), strict=True):
        a = a.to(tensors[0].dtype)  # the gradient of an fp32 bias beside bf16 is no better than bf16
        terms = max(tensors[0].numel() // max(tensors[0].shape[-1], 1), tensors[1].shape[0], 1)
        assert_close(a, e, ulps=ulps, floor=terms**0.5)  # terms of a sum may cancel, their roundings do not
    return actual


@for_dtypes
@for_activations
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_reference_forward_and_backward(use, shape, dtype, activation):
    use(dtype)
    assert_equals_reference((whole_numbers if activation == "relu" else inputs)(*shape, dtype), activation)


@for_dtypes
@for_activations
def test_bias_is_optional(use, dtype, activation):
    use(dtype)
    x, weight, _ = inputs(17, 33, 9, dtype)
    assert_equals_reference((x, weight, None), activation)


@for_activations
def test_an_fp32_bias_goes_with_bf16_weights(use, activation):
    use(torch.bfloat16)
    _, (_, _, dbias) = assert_equals_reference(inputs(17, 33, 9, torch.bfloat16, torch.float32), activation)
    assert dbias.dtype == torch.float32


@for_dtypes
@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0), (0, 0, 0)])
def test_empty_matrices_give_what_torch_gives(use, dtype, shape):
    use(dtype)
    for activation in ("none", "relu", "silu"):
        assert_equals_reference(inputs(*shape, dtype), activation)


@pytest.mark.parametrize("shape", [(7,), (2, 3, 7), (2, 0, 7), (1, 2, 3, 7)])
def test_x_has_any_leading_dimensions(use, shape):
    use(torch.float32)
    x, (_, weight, bias) = random(*shape), inputs(1, 7, 5)
    (y,), (dx, _, _) = assert_equals_reference((x, weight, bias), "silu")
    assert y.shape == (*shape[:-1], 5)
    assert dx.shape == shape


@for_dtypes
@pytest.mark.parametrize("layout", [strided, off_by_one, lambda x: x.t().contiguous().t() if x.dim() == 2 else x])
def test_layout_does_not_matter(use, layout, dtype):
    use(dtype)
    assert_equals_reference([layout(t) for t in inputs(17, 33, 9, dtype)], "gelu")


@for_activations
def test_gradients_may_be_expanded_scalars(use, activation):
    use(torch.float32)
    x, weight, bias = (t.requires_grad_() for t in inputs(5, 7, 3))
    actual = torch.autograd.grad(linear(x, weight, bias, activation).sum(), (x, weight, bias))
    expected = torch.autograd.grad(linear_reference(x, weight, bias, activation).sum(), (x, weight, bias))
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e)


@pytest.mark.parametrize("wants", [(False, True, True), (True, False, False), (False, False, True), (True, True, True)])
def test_only_the_wanted_gradients_are_computed_and_kept_for(use, wants):
    use(torch.float32)
    tensors = [t.requires_grad_(want) for t, want in zip(inputs(5, 7, 3), wants, strict=True)]
    y = linear(*tensors, "relu")
    rows, weight, saved, bias, *_ = y.grad_fn.saved_tensors
    assert (rows is not None, weight is not None) == (wants[1], wants[0])
    assert saved.data_ptr() == y.data_ptr()
    assert bias is None
    y.sum().backward()
    reference = [t.detach().clone().requires_grad_(want) for t, want in zip(tensors, wants, strict=True)]
    linear_reference(*reference, "relu").sum().backward()
    for t, r in zip(tensors, reference, strict=True):
        assert (t.grad is None) == (r.grad is None)
        if t.grad is not None:
            assert_close(t.grad, r.grad)


def test_the_result_can_be_written_to_as_torchs(use):
    use(torch.float32)
    found = []
    for function in (linear, linear_reference):
        x, weight = random(3, 5, 9).requires_grad_(), random(7, 9, seed=1).requires_grad_()
        y = function(x, weight)
        y += 1
        y[:, 0].mul_(2)
        y.square().sum().backward()
        found.append([x.grad, weight.grad])
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, ulps=64)


def test_without_gradients_nothing_is_recorded(use):
    use(torch.float32)
    x, weight, bias = (t.requires_grad_() for t in inputs(5, 7, 3))
    with torch.no_grad():
        y = linear(x, weight, bias, "gelu")
    assert y.grad_fn is None
    assert_close(y, linear_reference(x, weight, bias, "gelu").detach())


def test_a_plain_layer_keeps_only_x_and_weight():
    x, weight, bias = (t.requires_grad_() for t in inputs(5, 7, 3))
    rows, kept, saved, kept_bias, *_ = linear(x, weight, bias).grad_fn.saved_tensors
    assert rows.data_ptr() == x.data_ptr()
    assert kept.data_ptr() == weight.data_ptr()
    assert saved is None
    assert kept_bias is None


def test_nan_and_infinity_reach_what_the_formula_says(use):
    def by_formula(x, weight, bias, activation):
        z = formulas.product(x, weight.t()) + bias
        return torch.where(z <= 0, 0.0, z) if activation == "relu" else z  # NaN passes

    use(torch.float32)
    x, weight, bias = inputs(40, 33, 20)
    x[3, 5], x[7, 0], weight[11, 2], bias[1] = float("nan"), float("inf"), float("-inf"), float("nan")
    for activation in ("none", "relu"):
        (actual,), grads = gradients(lambda *t, a=activation: linear(*t, a), (x, weight, bias))
        wide = [t.double() for t in (x, weight, bias)]
        (expected,), wanted = gradients(lambda *t, a=activation: by_formula(*t, a), wide)
        for a, e in zip((actual, *grads), (expected, *wanted), strict=True):
            assert_close(a, e, ulps=16)


@for_activations
def test_autocast_casts_and_gradients_come_back_in_the_dtype_of_their_input(use, activation):
    use(torch.bfloat16)
    tensors = inputs(17, 33, 9)
    with torch.autocast("cpu", torch.bfloat16):
        (y,), grads = gradients(lambda *t: linear(*t, activation=activation), tensors)
    assert y.dtype == torch.bfloat16
    rounded = [t.bfloat16().double() for t in tensors[:2]] + [tensors[2].double()]
    (expected,), wanted = gradients(lambda *t: linear_reference(*t, activation=activation), rounded)
    assert_close(y, expected, floor=4)
    for gradient, tensor, reference in zip(grads, tensors, wanted, strict=True):
        assert gradient.dtype == tensor.dtype
        assert_close(gradient.bfloat16(), reference, floor=4)


def test_autocast_takes_bf16_weights_as_they_are():
    x, weight, bias = inputs(5, 7, 3, torch.bfloat16, torch.float32)
    weight.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = linear(x.float().requires_grad_(), weight, bias)
    assert y.grad_fn.saved_tensors[1].data_ptr() == weight.data_ptr()


def test_backward_inside_of_autocast_computes_in_the_dtype_of_forward():
    x, weight, _ = (t.requires_grad_() for t in inputs(17, 33, 9))
    expected = torch.autograd.grad(linear(x, weight).square().sum(), (x, weight))
    y = linear(x, weight).square().sum()
    with torch.autocast("cpu", torch.bfloat16):
        actual = torch.autograd.grad(y, (x, weight))
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


def test_other_dtypes_go_through_the_reference():
    x, weight, bias = inputs(5, 7, 3, torch.float64)
    assert torch.equal(linear(x, weight, bias, "gelu"), F.gelu(F.linear(x, weight, bias)))
    with torch.autocast("cpu", torch.float16):
        assert linear(x.float(), weight.float(), bias.float()).dtype == torch.float16


@for_activations
def test_fp64_passes_gradcheck(activation):
    tensors = [t.requires_grad_() for t in inputs(3, 5, 4, torch.float64)]
    assert torch.autograd.gradcheck(lambda *t: linear(*t, activation), tensors)


@for_dtypes
def test_same_threads_same_bits(use, dtype):
    use(dtype)
    first, second = (gradients(lambda *t: linear(*t, activation="silu"), inputs(130, 70, 258, dtype)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip((*first[0], *first[1]), (*second[0], *second[1]), strict=True))


def test_a_changed_weight_is_seen_by_backward():
    x, weight, _ = (t.requires_grad_() for t in inputs(5, 7, 3))
    y = linear(x, weight)
    with torch.no_grad():
        weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_backends_are_named_and_checked():
    assert backend(torch.float32) in BACKENDS
    with pytest.raises(ValueError, match=r"expected one of torch, onednn, native; got 'mkl'"):
        set_backend(torch.float32, "mkl")
    with pytest.raises(ValueError, match=r"expected torch.float32 or torch.bfloat16, got torch.float64"):
        set_backend(torch.float64, "torch")


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"weight of \(out, in\), got \(2, 8\) and \(3, 7\)"):
        linear(torch.ones(2, 8), torch.ones(3, 7))
    with pytest.raises(ValueError, match=r"expected bias of shape \(3,\).* got \(8,\)"):
        linear(torch.ones(2, 8), torch.ones(3, 8), torch.ones(8))
    with pytest.raises(ValueError, match=r"expected an activation of none, relu.* got 'swish'"):
        linear(torch.ones(2, 8), torch.ones(3, 8), activation="swish")


def test_an_input_of_several_layers_is_cast_once_and_anew_when_it_has_changed():
    x, weights = random(4, 8), [random(3, 8, seed=i).requires_grad_() for i in (1, 2)]
    with torch.autocast("cpu", torch.bfloat16):
        kept = [linear(x, weight).grad_fn.saved_tensors[0] for weight in weights]
        assert kept[0] is not None
        assert kept[0].data_ptr() == kept[1].data_ptr()
        x.mul_(2)
        after = linear(x, weights[0])
        torch.testing.assert_close(after, F.linear(x, weights[0]))
    assert kept[0].data_ptr() != after.grad_fn.saved_tensors[0].data_ptr()
