import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fullstride.ops.conv1d import LEAST_WORK, conv1d, conv1d_reference, pays
from fullstride.ops.products import backends, exclude

from . import formulas
from .cases import assert_close, for_dtypes, gradients, off_by_one, random, strided

NAMES = ["none", "relu", "gelu", "gelu_tanh", "silu"]
for_activations = pytest.mark.parametrize("activation", NAMES)
# (batch, in, time, out, taps, padding)
SHAPES = [
    (1, 1, 1, 1, 1, 0),
    (2, 5, 1, 3, 3, 1),  # a sequence of one
    (3, 7, 2, 4, 9, 4),  # shorter than the kernel
    (2, 4, 2, 3, 5, "same"),
    (2, 3, 9, 5, 4, "same"),  # more zeros on the right
    (3, 33, 17, 9, 3, 0),
    (2, 8, 12, 16, 5, "valid"),
    (4, 6, 10, 7, 5, 4),  # longer than its input
    (3, 16, 11, 70, 1, 0),
    (5, 65, 20, 34, 7, 3),
    (1, 6, 12, 5, 3, 1),  # a batch of one
]


def inner(x):
    """The same values with the channels innermost in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def part_of_wider(x):
    """The same with channels of another tensor beside them."""
    return torch.cat([x, x], dim=1).mT.contiguous().mT[:, x.shape[1] :]


def whole_numbers(batch, channels, time, filters, taps, dtype=torch.float32):
    """Inputs whose sums bf16 holds exactly, and never 0: rounding must not decide what ReLU does."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-1, 2, (batch, channels, time), generator=generator).to(dtype)
    weight = (torch.rand(filters, channels, taps, generator=generator) < 0.1).to(dtype)
    return inner(x), weight, torch.randint(-3, 4, (filters,), generator=generator).to(dtype) + 0.5


def inputs(batch, channels, time, filters, taps, dtype=torch.float32, bias_dtype=None):
    weight = random(filters, channels, taps, seed=1) / (channels * taps) ** 0.5
    x, bias = random(batch, channels, time, dtype=dtype), random(filters, dtype=bias_dtype or dtype, seed=2)
    return inner(x), weight.to(dtype), bias


def assert_equals_reference(tensors, padding, activation="none", ulps=8):
    """The outputs and all gradients are those of the reference in fp64 on the same values."""
    actual = gradients(lambda *t: conv1d(*t, padding=padding, activation=activation), tensors)
    wide = [None if t is None else t.double() for t in tensors]
    expected = gradients(lambda *t: conv1d_reference(*t, padding=padding, activation=activation), wide)
    for a, e in zip((*actual[0], *actual[1]), (*expected[0], *expected[1]), strict=True):
        a = a.to(tensors[0].dtype)  # the gradient of an fp32 bias beside bf16 is no better than bf16
        terms = max(tensors[0].shape[0] * tensors[0].shape[2], tensors[1].shape[0] * tensors[1].shape[2])
        assert_close(a, e, ulps=ulps, floor=terms**0.5)  # terms of a sum may cancel, their roundings do not
    return actual


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's, of the reference
@for_dtypes
@for_activations
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference_forward_and_backward(shape, dtype, activation):
    *sizes, padding = shape
    tensors = (whole_numbers if activation == "relu" else inputs)(*sizes, dtype)
    (y,), _ = assert_equals_reference(tensors, padding, activation)
    assert y.grad_fn.name() == "Conv1dFunctionBackward"


@for_dtypes
@pytest.mark.parametrize("taps", [1, 5])
def test_every_variant_equals_reference(isa, dtype, taps):
    assert_equals_reference(inputs(3, 33, 21, 19, taps, dtype), taps // 2, "silu")


@for_dtypes
@for_activations
def test_bias_is_optional(dtype, activation):
    x, weight, _ = inputs(3, 9, 8, 7, 3, dtype)
    assert_equals_reference((x, weight, None), 1, activation)


def test_an_fp32_bias_goes_with_bf16_weights():
    _, (_, _, dbias) = assert_equals_reference(inputs(3, 9, 8, 7, 3, torch.bfloat16, torch.float32), 1, "gelu")
    assert dbias.dtype == torch.float32


@pytest.mark.parametrize("taps", [1, 3])
def test_an_empty_batch_gives_what_torch_gives(taps):
    assert_equals_reference(inputs(0, 5, 4, 3, taps), taps // 2, "relu")


def test_a_kernel_longer_than_the_padded_input_is_refused_by_torch():
    x, weight, bias = inputs(2, 5, 2, 3, 5)
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        conv1d(x, weight, bias, 1)


@for_dtypes
@pytest.mark.parametrize("taps", [1, 5])
@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, strided, off_by_one, inner, part_of_wider])
def test_layout_does_not_matter(layout, dtype, taps):
    x, weight, bias = inputs(3, 9, 8, 7, taps, dtype)
    assert_equals_reference((layout(x), strided(weight), strided(bias)), taps // 2, "gelu")


@for_dtypes
@for_activations
@pytest.mark.parametrize("taps", [1, 3])
def test_one_sequence_with_time_innermost_is_computed_as_any(taps, activation, dtype):
    x, weight, bias = (whole_numbers if activation == "relu" else inputs)(1, 9, 8, 7, taps, dtype)
    assert_equals_reference((x.contiguous(), weight, bias), taps // 2, activation)


def test_result_and_gradient_have_the_layout_of_the_input():
    x, weight, bias = inputs(3, 9, 8, 7, 3)
    (y,), (dx, _, _) = gradients(lambda *t: conv1d(*t, padding=1), (x, weight, bias))
    assert y.mT.is_contiguous()
    assert dx.mT.is_contiguous()
    (y,), (dx, _, _) = gradients(lambda *t: conv1d(*t, padding=1), (x.contiguous(), weight, bias))
    assert y.is_contiguous()
    assert dx.is_contiguous()


@pytest.mark.parametrize("wants", [(False, True, True), (True, False, False), (False, False, True), (True, True, True)])
def test_only_the_wanted_gradients_are_computed_and_kept_for(wants):
    tensors = [t.requires_grad_(want) for t, want in zip(inputs(3, 9, 8, 7, 3), wants, strict=True)]
    y = conv1d(*tensors, 1, "relu")
    x, weight, saved, *_ = y.grad_fn.saved_tensors
    assert (x is not None, weight is not None) == (wants[1], wants[0])
    assert x is None or x.data_ptr() == tensors[0].data_ptr()
    assert saved.data_ptr() == y.data_ptr()
    y.sum().backward()
    reference = [t.detach().clone().requires_grad_(want) for t, want in zip(tensors, wants, strict=True)]
    conv1d_reference(*reference, 1, "relu").sum().backward()
    for t, r in zip(tensors, reference, strict=True):
        assert (t.grad is None) == (r.grad is None)
        if t.grad is not None:
            assert_close(t.grad, r.grad)


@pytest.mark.parametrize("layout", [inner, torch.Tensor.contiguous])
def test_the_result_can_be_written_to_as_torchs(layout):
    found = []
    for function in (conv1d, conv1d_reference):
        x, weight, bias = (t.requires_grad_() for t in inputs(3, 9, 8, 7, 3))
        y = function(layout(x), weight, bias, 1)
        y += 1
        y[:, 0].mul_(2)
        y.square().sum().backward()
        found.append([t.grad for t in (x, weight, bias)])
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, ulps=64)


def test_without_gradients_nothing_is_recorded():
    tensors = [t.requires_grad_() for t in inputs(3, 9, 8, 7, 3)]
    with torch.no_grad():
        y = conv1d(*tensors, 1, "gelu")
    assert y.grad_fn is None
    assert_close(y, conv1d_reference(*tensors, 1, "gelu").detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("taps", [1, 9])
def test_a_second_micro_batch_adds_to_the_gradient_of_a_large_weight_in_place(taps, dtype):
    weight = nn.Parameter(inputs(1, 96, 1, 80 * (9 // taps), taps, dtype)[1])
    assert weight.numel() >= 1 << 16
    if dtype is torch.bfloat16:
        weight.grad_dtype = torch.float32
    expected = torch.zeros(weight.shape, dtype=torch.float64)
    seen = None
    for seed in range(3):
        x = inner(random(2, 96, 12, dtype=dtype, seed=seed))
        conv1d(x, weight, padding=taps // 2).float().square().sum().backward()
        wide = weight.detach().double().requires_grad_()
        y = conv1d(x, weight.detach(), padding=taps // 2).double()
        again = F.conv1d(x.double(), wide, padding=taps // 2)
        expected += torch.autograd.grad(again, wide, (2 * y).to(dtype).double())[0]
        assert seen is None or weight.grad.data_ptr() == seen
        seen = weight.grad.data_ptr()
    assert weight.grad.dtype is torch.float32
    # The first came rounded to the dtype of the weight, as from the engine; those added are not rounded.
    assert_close(weight.grad.to(dtype), expected, ulps=2 if dtype is torch.bfloat16 else 16)


def test_nan_and_infinity_reach_what_the_formula_says():
    def by_formula(x, weight, bias):
        windows = F.pad(x, (2, 2)).unfold(2, 5, 1).transpose(1, 2).flatten(2)  # (batch, time, C * taps)
        rows = formulas.product(windows.flatten(0, 1), weight.flatten(1).t()) + bias
        return rows.view(x.shape[0], -1, weight.shape[0]).transpose(1, 2)

    x, weight, bias = inputs(3, 9, 14, 7, 5)
    x[1, 3, 5], x[2, 0, 7], bias[1] = float("nan"), float("inf"), float("nan")
    (actual,), (dx, _, _) = gradients(lambda *t: conv1d(*t, padding=2), (x, weight, bias))
    wide = [t.double() for t in (x, weight, bias)]
    (expected,), (wanted, _, _) = gradients(by_formula, wide)
    assert_close(actual, expected, ulps=16)
    assert_close(dx, wanted, ulps=16)


def test_what_lies_beside_a_sequence_does_not_reach_it():
    x, weight, bias = inputs(3, 9, 14, 7, 5)
    x[1] = float("nan")
    (y,), (dx, _, _) = gradients(lambda *t: conv1d(*t, padding=2), (x, weight, bias))
    assert y[[0, 2]].isfinite().all()
    assert y[1].isnan().all()
    assert dx.isfinite().all()


@for_activations
def test_autocast_casts_and_gradients_come_back_in_the_dtype_of_their_input(activation):
    tensors = inputs(3, 33, 17, 9, 3)
    with torch.autocast("cpu", torch.bfloat16):
        (y,), grads = gradients(lambda *t: conv1d(*t, padding=1, activation=activation), tensors)
    assert y.dtype == torch.bfloat16
    rounded = [t.bfloat16().double() for t in tensors[:2]] + [tensors[2].double()]
    (expected,), wanted = gradients(lambda *t: conv1d_reference(*t, padding=1, activation=activation), rounded)
    assert_close(y, expected, floor=4)
    for gradient, tensor, reference in zip(grads, tensors, wanted, strict=True):
        assert gradient.dtype == tensor.dtype
        assert_close(gradient.bfloat16(), reference, floor=4)


@pytest.mark.parametrize("taps", [1, 3])
def test_second_derivatives_of_one_sequence_under_autocast_are_those_of_torch(taps):
    found = []
    for function in (conv1d, conv1d_reference):
        x, weight = random(1, 6, 8).requires_grad_(), random(4, 6, taps, seed=1).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x, weight, None, taps // 2, "silu").float()
        dx, dweight = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum() + dweight.square().sum(), (x, weight)))
    for actual, expected in zip(*found, strict=True):
        assert (actual - expected).norm() < 0.05 * expected.norm()


def test_a_weight_of_two_layers_sums_the_gradients_of_both():
    weight = nn.Parameter(random(96, 96, 9, seed=1) / 30)
    assert weight.numel() >= 1 << 16
    wide = nn.Parameter(weight.detach().double())
    for seed in range(3):  # micro-batches
        x = inner(random(2, 96, 12, seed=seed))
        conv1d(conv1d(x, weight, padding=4, activation="silu"), weight, padding=4).square().sum().backward()
        again = F.silu(F.conv1d(x.double(), wide, padding=4))
        F.conv1d(again, wide, padding=4).square().sum().backward()
        found, expected = weight.grad, wide.grad
        assert found is not None
        assert expected is not None
        assert (found - expected).norm() < 1e-5 * expected.norm()


def test_hooks_of_a_large_weight_see_and_change_its_gradient():
    weight, seen = nn.Parameter(random(96, 96, 9, seed=1) / 30), []

    def doubled(gradient):
        seen.append(gradient.clone())
        return 2 * gradient

    weight.register_hook(doubled)
    x = inner(random(2, 96, 12))
    for _ in range(2):
        conv1d(x, weight, padding=4).sum().backward()
    assert len(seen) == 2
    assert torch.equal(weight.grad, 2 * seen[0] + 2 * seen[1])


def test_backward_inside_of_autocast_computes_in_the_dtype_of_forward():
    x, weight, _ = (t.requires_grad_() for t in inputs(3, 33, 17, 9, 3))
    expected = torch.autograd.grad(conv1d(x, weight).square().sum(), (x, weight))
    y = conv1d(x, weight).square().sum()
    with torch.autocast("cpu", torch.bfloat16):
        actual = torch.autograd.grad(y, (x, weight))
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


def test_what_the_kernels_do_not_know_goes_through_the_reference():
    x, weight, bias = inputs(2, 5, 8, 3, 3, torch.float64)
    assert torch.equal(conv1d(x, weight, bias, 1, "gelu"), F.gelu(F.conv1d(x, weight, bias, padding=1)))
    x, weight, bias = (t.float() for t in (x, weight, bias))
    assert torch.equal(conv1d(x, weight, bias, 3), F.conv1d(x, weight, bias, padding=3))  # more zeros than taps
    assert torch.equal(conv1d(x[0], weight, bias, 1), F.conv1d(x[0], weight, bias, padding=1))  # no batch
    with torch.autocast("cpu", torch.float16):
        assert conv1d(x, weight, bias).dtype == torch.float16


def test_an_excluded_product_is_not_called():
    x, weight, bias = (t.requires_grad_() for t in inputs(2, 5, 8, 3, 3))
    assert "native" in backends(torch.float32)
    exclude({(torch.float32, "native"): "for the test"})
    try:
        assert conv1d(x, weight, bias).grad_fn.name() == "ConvolutionBackward0"
    finally:
        exclude({})


@for_activations
def test_fp64_passes_gradcheck(activation):
    tensors = [t.requires_grad_() for t in inputs(2, 3, 5, 4, 3, torch.float64)]
    assert torch.autograd.gradcheck(lambda *t: conv1d(*t, padding=1, activation=activation), tensors)


@for_dtypes
def test_same_threads_same_bits(dtype):
    first, second = (gradients(lambda *t: conv1d(*t, 2, "silu"), inputs(4, 65, 70, 34, 5, dtype)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip((*first[0], *first[1]), (*second[0], *second[1]), strict=True))


def test_a_changed_weight_is_seen_by_backward():
    x, weight, _ = (t.requires_grad_() for t in inputs(2, 5, 8, 3, 3))
    y = conv1d(x, weight)
    with torch.no_grad():
        weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_it_pays_with_inner_channels_and_enough_of_them():
    weight, x = torch.empty(256, 128, 3), torch.empty(4, 128, 20)
    assert 80 * weight.numel() >= LEAST_WORK
    assert pays(inner(x), weight)
    assert not pays(x, weight)
    assert not pays(inner(x[:1, :, :5]), weight)
    assert not pays(inner(torch.empty(4, 1, 20000)), torch.empty(64, 1, 9))
    assert not pays(x[0].mT.contiguous().mT, weight)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"weight of \(out, in, taps\), got \(2, 8, 5\) and \(3, 7, 1\)"):
        conv1d(torch.ones(2, 8, 5), torch.ones(3, 7, 1))
    with pytest.raises(ValueError, match=r"expected bias of shape \(3,\).* got \(8,\)"):
        conv1d(torch.ones(2, 8, 5), torch.ones(3, 8, 1), torch.ones(8))
    with pytest.raises(ValueError, match=r"expected an activation of none, relu.* got 'swish'"):
        conv1d(torch.ones(2, 8, 5), torch.ones(3, 8, 1), activation="swish")
    with pytest.raises(RuntimeError, match=r"[Ii]nvalid padding"):
        conv1d(torch.ones(2, 8, 5), torch.ones(3, 8, 1), padding="wide")
