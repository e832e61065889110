import pytest
import torch
from torch import nn

from fullstride.ops.patches import LEAST_WORK, patches, patches_reference, pays, pays_for

from .cases import assert_close, for_dtypes, gradients, off_by_one, random, strided

# (batch, in, height, width, out, height and width of a patch)
SHAPES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 8, 8, 5, 4, 4),
    (3, 2, 9, 11, 7, 4, 3),  # of which some is left over
    (2, 5, 6, 4, 3, 6, 4),  # one patch
    (1, 3, 32, 48, 33, 16, 16),
    (4, 17, 5, 4, 9, 2, 1),
    (2, 6, 3, 5, 4, 1, 1),
]


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def inputs(batch, channels, height, width, filters, tall, wide, dtype=torch.float32):
    weight = random(filters, channels, tall, wide, seed=1) / (channels * tall * wide) ** 0.5
    return random(batch, channels, height, width, dtype=dtype), weight.to(dtype), random(filters, dtype=dtype, seed=2)


def assert_equals_reference(tensors, ulps=8):
    """The output and all gradients are those of the reference in fp64 on the same values."""
    actual = gradients(patches, tensors)
    expected = gradients(patches_reference, [None if t is None else t.double() for t in tensors])
    for a, e in zip((*actual[0], *actual[1]), (*expected[0], *expected[1]), strict=True):
        assert a.dtype is tensors[0].dtype
        assert_close(a, e, ulps=ulps, floor=max(1, tensors[0].numel() // tensors[1][0].numel()) ** 0.5)
    return actual


@for_dtypes
@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, channels_last], ids=["dense", "channels last"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference_forward_and_backward(shape, layout, dtype):
    x, weight, bias = inputs(*shape, dtype)
    assert_equals_reference((layout(x), weight, bias))


@for_dtypes
def test_every_variant_equals_reference(isa, dtype):
    assert_equals_reference(inputs(3, 3, 17, 16, 19, 8, 8, dtype))


@for_dtypes
def test_bias_is_optional(dtype):
    x, weight, _ = inputs(2, 3, 8, 8, 5, 4, 4, dtype)
    assert_equals_reference((x, weight, None))


@for_dtypes
def test_a_picture_without_a_batch_is_one(dtype):
    x, weight, bias = inputs(1, 3, 9, 8, 5, 4, 4, dtype)
    assert_equals_reference((x[0], weight, bias))


@pytest.mark.parametrize(
    "layout", [strided, off_by_one, lambda x: x.mT.contiguous().mT, lambda x: x.expand(4, -1, -1, -1)]
)
def test_layout_does_not_matter(layout):
    x, weight, bias = inputs(1, 3, 9, 8, 5, 4, 4)
    assert_equals_reference((layout(x), weight, strided(bias)))
    assert_equals_reference((layout(x), channels_last(weight), bias))


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 3, 8, 0)])
def test_what_is_empty_is_as_in_torch(shape):
    _, weight, bias = inputs(1, 3, 8, 8, 5, 4, 4)
    x = torch.zeros(shape)
    if not shape[0]:
        (y,), (dx, dweight, dbias) = gradients(patches, (x, weight, bias))
        assert (y.shape, dx.shape) == ((0, 5, 2, 2), x.shape)
        assert not dweight.any()
        assert not dbias.any()
    else:
        with pytest.raises(RuntimeError):
            patches(x, weight, bias)


def test_a_patch_larger_than_the_picture_is_refused_by_torch():
    _, weight, bias = inputs(1, 3, 8, 8, 5, 4, 4)
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        patches(torch.zeros(2, 3, 3, 8), weight, bias)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=["fp64", "fp16"])
def test_other_dtypes_are_torchs(dtype):
    x, weight, bias = inputs(2, 3, 8, 8, 5, 4, 4, dtype)
    assert torch.equal(patches(x, weight, bias), patches_reference(x, weight, bias))


def test_the_words_of_a_transformer_are_a_dense_view():
    y = patches(*inputs(2, 3, 8, 12, 5, 4, 4))
    words = y.flatten(2).transpose(1, 2)
    assert words.shape == (2, 6, 5)
    assert words.is_contiguous()
    assert words.data_ptr() == y.data_ptr()
    assert y.view(2, 5, 6).data_ptr() == y.data_ptr()


@pytest.mark.parametrize("wants", [(False, True, True), (True, False, False), (False, False, True), (True, True, True)])
def test_only_the_wanted_gradients_are_computed(wants):
    tensors = [t.requires_grad_(want) for t, want in zip(inputs(2, 3, 9, 8, 5, 4, 4), wants, strict=True)]
    y = patches(*tensors)
    node = y.grad_fn.next_functions[0][0]
    assert node.name() == "LinearFunctionBackward"
    rows, weight, *_ = node.saved_tensors
    assert (rows is not None, weight is not None) == (wants[1], wants[0])
    y.square().sum().backward()
    assert [t.grad is not None for t in tensors] == list(wants)


def test_the_result_can_be_written_to_as_torchs():
    found = []
    for function in (patches, patches_reference):
        tensors = [t.requires_grad_() for t in inputs(2, 3, 8, 8, 5, 4, 4)]
        y = function(*tensors)
        y += 1
        y[:, 0].mul_(2)
        y.square().sum().backward()
        found.append([t.grad for t in tensors])
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, ulps=64)


def test_without_gradients_nothing_is_recorded():
    tensors = [t.requires_grad_() for t in inputs(2, 3, 8, 8, 5, 4, 4)]
    with torch.no_grad():
        assert patches(*tensors).grad_fn is None


def test_autocast_casts_and_gradients_come_back_in_the_dtype_of_their_input():
    tensors = inputs(2, 3, 17, 16, 9, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        (y,), grads = gradients(patches, tensors)
    assert y.dtype == torch.bfloat16
    rounded = [t.bfloat16().double() for t in tensors[:2]] + [tensors[2].double()]
    (expected,), wanted = gradients(patches_reference, rounded)
    assert_close(y, expected, floor=4)
    for gradient, reference in zip(grads, wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert_close(gradient.bfloat16(), reference, floor=4)


def test_autocast_in_fp16_is_torchs():
    tensors = inputs(2, 3, 16, 16, 9, 8, 8)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(patches(*tensors), patches_reference(*tensors))


def test_an_fp32_bias_goes_with_bf16_weights():
    x, weight, _ = inputs(2, 3, 8, 8, 5, 4, 4, torch.bfloat16)
    bias = random(5, seed=2)
    (y,), (_, _, dbias) = gradients(patches, (x, weight, bias))
    (expected,), _ = gradients(patches_reference, (x.double(), weight.double(), bias.double()))
    assert_close(y, expected)
    assert dbias.dtype is torch.float32


def test_nan_and_infinity_stay_in_their_patch():
    x, weight, bias = inputs(2, 3, 8, 8, 5, 4, 4)
    x[1, 2, 5, 1], x[0, 0, 0, 7] = float("nan"), float("inf")
    y = patches(x, weight, bias)
    bad = torch.zeros(2, 2, 2, dtype=torch.bool)
    bad[1, 1, 0] = bad[0, 0, 1] = True
    assert torch.equal(~y.isfinite(), bad[:, None].expand_as(y))


def test_it_compiles_to_torchs_convolution():
    tensors = inputs(2, 3, 9, 8, 5, 4, 4)
    compiled = torch.compile(patches, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*tensors), patches_reference(*tensors))


def test_a_second_micro_batch_adds_to_the_gradient():
    weight = nn.Parameter(random(128, 3, 16, 16, seed=1) / 28)
    x = random(4, 3, 32, 32)
    for part in x.split(2):
        patches(part, weight).square().sum().backward()
    (whole,) = torch.autograd.grad(patches_reference(x, weight).square().sum(), weight)
    assert_close(weight.grad, whole, ulps=32)


def test_it_pays_for_patches_and_deep_stages_alone():
    vit, stem = torch.empty(640, 3, 16, 16), torch.empty(96, 3, 4, 4)
    shallow, deep, one = torch.empty(192, 96, 2, 2), torch.empty(768, 384, 2, 2), torch.empty(768, 384, 1, 1)
    assert [pays_for(weight) for weight in (vit, stem, shallow, deep, one)] == [True, False, False, True, False]
    x = torch.zeros(2, 384, 14, 14)
    assert pays(channels_last(x), deep)
    assert not pays(x, deep)
    rows = -(-LEAST_WORK // vit.numel())
    assert pays(torch.zeros(rows, 3, 16, 16), vit)
    assert not pays(torch.zeros(rows - 1, 3, 16, 16), vit)
    assert not pays(torch.zeros(rows, 3, 16, 16, dtype=torch.float64), vit)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "said"),
    [
        ((2, 4, 8, 8), (5, 3, 4, 4), (5,), r"expected x of \(batch, in, height, width\)"),
        ((8, 8), (5, 3, 4, 4), (5,), r"got \(8, 8\) and \(5, 3, 4, 4\)"),
        ((2, 3, 8, 8), (5, 3, 4), (5,), "expected x of"),
        ((2, 3, 8, 8), (5, 3, 4, 4), (4,), r"expected bias of shape \(5,\), the filters of weight, got \(4,\)"),
    ],
)
def test_wrong_shapes_are_refused_in_one_line(x, weight, bias, said):
    with pytest.raises(ValueError, match=said):
        patches(torch.zeros(x), torch.zeros(weight), torch.zeros(bias))
