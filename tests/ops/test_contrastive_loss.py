import pytest
import torch

from fullstride.ops import products
from fullstride.ops.contrastive_loss import contrastive_loss, contrastive_loss_reference

from .cases import assert_close, random, strided

SHAPES = [(1, 1, 1), (1, 4, 3), (3, 3, 5), (3, 7, 5), (17, 17, 33), (33, 70, 16)]  # (images, texts, width)


def inputs(images, texts, width, scale=2.5, dtype=torch.float32):
    return [random(images, width, dtype=dtype), random(texts, width, dtype=dtype, seed=1), torch.tensor(scale)]


def loss_and_gradients(function, tensors, wants=(True, True, True)):
    """Of three times the loss, so that the incoming gradient is not 1; None where none is wanted."""
    leaves = [t.detach().requires_grad_(want) for t, want in zip(tensors, wants, strict=True)]
    loss = function(*leaves)
    (3 * loss).backward()
    return [loss, *(leaf.grad for leaf in leaves)]


def assert_equals_reference(tensors, wants=(True, True, True), ulps=16):
    actual = loss_and_gradients(contrastive_loss, tensors, wants)
    expected = loss_and_gradients(contrastive_loss_reference, [t.double() for t in tensors], wants)
    for a, e in zip(actual, expected, strict=True):
        assert (a is None) == (e is None)
        if a is not None:
            assert_close(a, e, ulps=ulps)
    return actual


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference_forward_and_backward(shape):
    loss, *_ = assert_equals_reference(inputs(*shape))
    assert loss.grad_fn.name() == "ContrastiveLossFunctionBackward"


def test_equals_the_formula():
    image, text, scale = (t.double() for t in inputs(3, 5, 4))
    logits = scale * image @ text.T
    own = logits.diagonal()
    expected = ((logits.logsumexp(1) - own).mean() + (logits[:, :3].logsumexp(0) - own).mean()) / 2
    torch.testing.assert_close(contrastive_loss_reference(image, text, scale), expected)


def test_every_variant_equals_reference(isa):
    assert_equals_reference(inputs(9, 13, 7))


@pytest.mark.parametrize("name", products.BACKENDS)
def test_whoever_multiplies(name):
    if name not in products.backends(torch.float32):
        pytest.skip(f"{name} cannot run here")
    products.set_backend(torch.float32, name)
    assert_equals_reference(inputs(33, 40, 16))


@pytest.mark.parametrize(
    "wants",
    [(True, False, False), (False, True, False), (False, False, True), (True, True, False), (False, True, True)],
)
def test_only_the_wanted_gradients_are_given(wants):
    assert_equals_reference(inputs(5, 6, 4), wants)


def test_a_scale_of_zero_has_its_gradient():
    assert_equals_reference(inputs(5, 6, 4, scale=0.0))


def test_layout_does_not_matter():
    image, text, scale = inputs(5, 6, 4)
    assert_equals_reference([strided(image), text.t().contiguous().t(), scale])


def test_one_tensor_may_be_both():
    x, twin = random(5, 4).requires_grad_(), random(5, 4).double().requires_grad_()
    contrastive_loss(x, x, torch.tensor(2.0)).backward()
    contrastive_loss_reference(twin, twin, torch.tensor(2.0)).backward()
    assert_close(x.grad, twin.grad)


def test_large_logits_do_not_overflow():
    loss, *_ = assert_equals_reference(inputs(5, 6, 4, scale=1e4), ulps=64)
    assert loss.isfinite()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["image", "text", "scale"])
def test_nan_and_infinity_come_out_as_in_torch(where, bad):
    tensors = inputs(4, 6, 3)
    i = ("image", "text", "scale").index(where)
    tensors[i].view(-1)[-1] = bad  # the last text belongs to no image
    actual = loss_and_gradients(contrastive_loss, tensors)
    expected = loss_and_gradients(contrastive_loss_reference, tensors)
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a.isfinite(), e.isfinite())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("autocast", [True, False])
def test_16_bits_are_taken_to_fp32(dtype, autocast):
    tensors = inputs(5, 7, 4, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        actual = loss_and_gradients(contrastive_loss, tensors)
    expected = loss_and_gradients(contrastive_loss_reference, [t.double() for t in tensors])
    assert [t.dtype for t in actual] == [torch.float32, dtype, dtype, torch.float32]
    assert_close(actual[0], expected[0])
    for a, e in zip(actual[1:3], expected[1:3], strict=True):
        assert_close(a, e, ulps=1)


def test_fp64_goes_through_the_reference():
    tensors = [t.double() for t in inputs(5, 7, 4)]
    found, expected = (loss_and_gradients(f, tensors) for f in (contrastive_loss, contrastive_loss_reference))
    assert all(torch.equal(a, e) for a, e in zip(found, expected, strict=True))


def test_without_gradients_nothing_is_recorded():
    tensors = [t.requires_grad_() for t in inputs(5, 7, 4)]
    with torch.no_grad():
        loss = contrastive_loss(*tensors)
    assert loss.grad_fn is None
    assert torch.equal(loss, contrastive_loss(*tensors))


def test_backward_can_be_repeated():
    tensors = [t.requires_grad_() for t in inputs(5, 7, 4)]
    loss = contrastive_loss(*tensors)
    first = torch.autograd.grad(loss, tensors, retain_graph=True)
    second = torch.autograd.grad(loss, tensors)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_it_compiles():
    tensors = inputs(5, 7, 4)
    compiled = torch.compile(contrastive_loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*tensors), contrastive_loss_reference(*tensors))


@pytest.mark.parametrize(
    ("image", "text", "scale", "said"),
    [
        ((3, 4), (3, 5), (), r"of one width, got \(3, 4\) and \(3, 5\)"),
        ((3, 4, 1), (3, 4), (), r"expected image \(B, E\)"),
        ((3, 4), (2, 4), (), "a text for each, got 3 images and 2 texts"),
        ((0, 4), (2, 4), (), "one image or more and a text for each, got 0 images"),
        ((3, 4), (3, 4), (2,), r"expected scale to be one number, got \(2,\)"),
    ],
)
def test_wrong_shapes_are_refused_in_one_line(image, text, scale, said):
    with pytest.raises(ValueError, match=said):
        contrastive_loss(torch.zeros(image), torch.zeros(text), torch.zeros(scale))
