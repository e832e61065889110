"""Lazy logits against torch.nn.functional.linear: the same numbers and gradients, whatever is done with them."""

import copy
import gc
import io
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import fullstride
from fullstride.nn.linear import Linear
from fullstride.rewriting import lazy_logits, put_back, rewrite, split_weights
from fullstride.rewriting.lazy_logits import LazyHead, LazyLogits, is_large, lazy_linear, wants_lazy
from fullstride.rewriting.lazy_tensor import Inputs, LazyGradient

BATCH, LENGTH, FEATURES, CLASSES = 2, 5, 8, 50
LABELS = torch.randint(0, CLASSES, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
LABELS[0, 1] = -100


def parts(dtype=torch.float32):
    """hidden, weight, bias: leaves"""
    generator = torch.Generator().manual_seed(0)
    shapes = [(BATCH, LENGTH, FEATURES), (CLASSES, FEATURES), (CLASSES,)]
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def lazy_and_plain():
    hidden, weight, bias = parts()
    return lazy_linear(hidden, weight, bias), F.linear(hidden, weight, bias)


def loss_of(logits, labels=LABELS, **options):
    return F.cross_entropy(logits.view(-1, CLASSES), labels.view(-1), **options)


def assert_same_gradients(function, dtype=torch.float32, lazy=None):
    """function(logits) is a loss. lazy: whether the logits must not (True) or must (False) have been computed."""
    results = []
    logits: Any = None
    for head in (F.linear, lazy_linear):
        leaves = parts(dtype)
        logits = head(leaves[0] * 1, *leaves[1:])
        loss = function(logits)
        loss.backward()
        results.append([loss.detach(), *(leaf.grad for leaf in leaves)])
    if lazy is not None:
        assert logits.is_computed() is not lazy
    # Relative to the largest gradient. bf16: torch rounds the loss and its gradient to bf16, and we do not.
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for expected, actual in zip(*results, strict=True):
        error = (actual.double() - expected.double()).abs().max().item()
        assert error <= tolerance * max(1e-2, expected.abs().max().item())


# ---- what stays lazy ---------------------------------------------------------------------------------------------

FUSED = {
    "view": loss_of,
    "module": lambda x: torch.nn.CrossEntropyLoss(label_smoothing=0.1)(x.reshape(-1, CLASSES), LABELS.reshape(-1)),
    "flatten": lambda x: F.cross_entropy(x.flatten(0, 1), LABELS.flatten(), reduction="sum") / 7,
    "float and shifted": lambda x: loss_of(x.float()[..., :-1, :].contiguous(), LABELS[..., 1:].contiguous()),
    "reshaped slice": lambda x: F.cross_entropy(x[:, :-1].reshape(-1, CLASSES), LABELS[:, 1:].reshape(-1)),
    "last token": lambda x: F.cross_entropy(x[:, -1], LABELS[:, -1]),
    "last token kept": lambda x: F.cross_entropy(x[:, -1:].squeeze(1), LABELS[:, -1]),
    "one row": lambda x: F.cross_entropy(x[1, 2], LABELS[1, 2]),
    "unsqueezed": lambda x: loss_of(x.unsqueeze(0).squeeze(0)),
    "transposed": lambda x: F.cross_entropy(x.transpose(1, 2), LABELS),
    "permuted, a loss per row": lambda x: F.cross_entropy(x.permute(0, 2, 1), LABELS, reduction="none").square().sum(),
    "two slices": lambda x: F.cross_entropy(x[0], LABELS[0]) + 2 * F.cross_entropy(x[:, 2], LABELS[:, 2]),
    "other ignore_index": lambda x: F.cross_entropy(x[1], LABELS[1], None, None, int(LABELS[1, 0])),
    "scaled outside": lambda x: loss_of(x) / 8 + 1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", FUSED)
def test_ordinary_losses_are_fused(name, dtype):
    assert_same_gradients(FUSED[name], dtype, lazy=True)


def test_the_loss_of_hugging_face_models_is_fused():
    def causal(logits):
        """What transformers does: logits in fp32, labels shifted by padding."""
        labels = F.pad(LABELS, (0, 1), value=-100)[..., 1:].contiguous().view(-1)
        return F.cross_entropy(logits.float().view(-1, CLASSES), labels, ignore_index=-100, reduction="sum") / 9

    assert_same_gradients(causal, lazy=True)
    assert_same_gradients(causal, torch.bfloat16, lazy=True)


def test_questions_about_the_shape_compute_nothing():
    logits, plain = lazy_and_plain()
    assert type(logits) is LazyLogits
    assert isinstance(logits, torch.Tensor)
    for name in ["shape", "dtype", "device", "requires_grad", "is_leaf", "layout", "ndim", "nbytes"]:
        assert getattr(logits, name) == getattr(plain, name)
    for name in ["size", "dim", "stride", "numel", "is_contiguous", "element_size", "is_floating_point", "__len__"]:
        assert getattr(logits, name)() == getattr(plain, name)()
    assert logits.grad_fn is not None
    assert torch.zeros_like(logits).shape == logits.new_empty(plain.shape).shape
    assert not logits.is_computed()


def test_slices_and_casts_have_the_strides_of_torch():
    logits, plain = lazy_and_plain()
    for view in [
        lambda x: x[:, 1:-1],
        lambda x: x[:, ::2],
        lambda x: x[1],
        lambda x: x.transpose(1, 2),
        lambda x: x[:, 1:].contiguous(),
        lambda x: x.transpose(1, 2).contiguous(),
        lambda x: x.transpose(1, 2).bfloat16(),
        lambda x: x.view(-1, CLASSES)[3:].unsqueeze(1),
    ]:
        assert (view(logits).shape, view(logits).stride()) == (view(plain).shape, view(plain).stride())
        assert view(logits).storage_offset() == view(plain).storage_offset()
        assert torch.equal(view(logits), view(plain))


@pytest.mark.parametrize("squeeze", [lambda x: x[:, -1:].squeeze(), lambda x: x[:, -1].squeeze(-1)])
def test_squeezing_leaves_the_only_feature_of_a_head_alone(squeeze):
    results = []
    for head in (F.linear, lazy_linear):
        hidden, weight, bias = parts()
        leaves = [hidden[..., :1].detach().requires_grad_(), weight[:, :1].detach().requires_grad_(), bias]
        loss = F.cross_entropy(squeeze(head(*leaves)), LABELS[:, -1])
        loss.backward()
        results.append([loss.detach(), *(leaf.grad for leaf in leaves)])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


# ---- what needs the values ---------------------------------------------------------------------------------------


class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sigmoid()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.sigmoid() * (1 - x.sigmoid())


class TimesFour(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 4


def written_in_place(logits):
    logits[..., 3] = -5.0
    return loss_of(logits, LABELS.masked_fill(LABELS == 3, 4))


def written_through_a_view(logits):
    logits.view(-1, CLASSES).mul_(0.5)
    return loss_of(logits)


def divided_in_place(logits):
    logits /= 2
    return loss_of(logits)


def copied_then_written(logits):
    copied = logits.clone()
    logits.mul_(0.5)
    return loss_of(logits) + loss_of(copied)


def looked_at_first(logits):
    assert (logits.argmax(-1) == LABELS).float().mean() <= 1
    return loss_of(logits.float())


def through_a_detached_leaf(logits):
    leaf = logits.detach().requires_grad_()
    loss_of(leaf).backward()
    logits.backward(leaf.grad, retain_graph=True)
    return logits.sum() * 0


DENSE = {
    "by hand": lambda x: -x.log_softmax(-1).gather(-1, LABELS.clamp(min=0)[..., None]).mean(),
    "bias outside": lambda x: loss_of(x + torch.arange(CLASSES) / 10),
    "with a regulariser": lambda x: loss_of(x) + 1e-2 * x.square().mean(),
    "after a regulariser": lambda x: 1e-2 * x.square().mean() + loss_of(x),
    "selected by a mask": lambda x: F.cross_entropy(x[LABELS != -100], LABELS[LABELS != -100]),
    "class weights": lambda x: loss_of(x, weight=torch.arange(CLASSES) + 1.0),
    "class probabilities": lambda x: F.cross_entropy(x.view(-1, CLASSES), torch.full((10, CLASSES), 1 / CLASSES)),
    "fp64": lambda x: loss_of(x.double()),
    "split": lambda x: F.cross_entropy(x.split(1, 0)[1][0], LABELS[1]),
    "part of the classes": lambda x: F.cross_entropy(x[1, :, :40], LABELS[1].clamp(max=39)),
    "custom Function": lambda x: Sigmoid.apply(x).square().mean(),
    "written in place": written_in_place,
    "written through a view": written_through_a_view,
    "divided in place": divided_in_place,
    "copied, then written": copied_then_written,
    "looked at first": looked_at_first,
    "through a detached leaf": through_a_detached_leaf,
}


@pytest.mark.parametrize("name", DENSE)
def test_anything_else_gets_the_values_and_their_gradient(name):
    assert_same_gradients(DENSE[name], lazy=False)


def test_a_function_that_only_passes_on_keeps_them_lazy():
    assert_same_gradients(lambda x: loss_of(TimesFour.apply(x)), lazy=True)


def test_looking_after_the_loss_disturbs_nothing():
    def loss_then_look(logits):
        loss = loss_of(logits)
        assert logits.softmax(-1).sum().isfinite()
        with torch.no_grad():
            logits.mul_(0)
        return loss

    assert_same_gradients(loss_then_look)


def test_values_are_those_of_linear():
    logits, plain = lazy_and_plain()
    assert torch.equal(logits, plain)
    assert logits.tolist() == plain.tolist()
    assert logits[0, 1, 2].item() == plain[0, 1, 2].item()
    assert (logits.detach().numpy() == plain.detach().numpy()).all()
    assert logits.data_ptr() == logits.detach().data_ptr() != 0
    assert torch.equal(torch.cat([logits, plain]), torch.cat([plain, plain]))
    assert type(logits + 1) is torch.Tensor
    assert repr(logits)[:100] == repr(plain)[:100]


def test_copies_and_files_hold_plain_tensors():
    logits, plain = lazy_and_plain()
    file = io.BytesIO()
    torch.save({"logits": logits}, file)
    file.seek(0)
    for copied in [pickle.loads(pickle.dumps(logits)), copy.deepcopy(logits.detach()), torch.load(file)["logits"]]:
        assert type(copied) is torch.Tensor
        assert torch.equal(copied, plain)
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(logits)


def test_without_gradients_there_is_nothing_lazy():
    hidden, weight, bias = parts()
    with torch.no_grad():
        assert type(lazy_linear(hidden, weight, bias)) is torch.Tensor
    assert type(lazy_linear(hidden.detach(), weight.detach(), bias.detach())) is torch.Tensor
    assert type(lazy_linear(hidden.double(), weight.double())) is torch.Tensor


def test_lazy_logits_can_be_used_without_gradients():
    for context in [torch.no_grad, torch.inference_mode]:
        logits, plain = lazy_and_plain()
        with context():
            assert not loss_of(logits).requires_grad
            assert torch.equal(logits.argmax(-1), plain.argmax(-1))
        (logits.square().sum() + loss_of(logits)).backward()


# ---- autograd ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hook",
    [
        lambda g: g * 2,
        lambda g: g.clamp(max=0.01),
        lambda g: g.mul_(3),
        lambda g: g.view(-1).mul_(3).view(g.shape),
        lambda g: (g.clone(), g.mul_(2))[0],
        lambda g: None if g.norm().isfinite() else g,
        lambda g: g + torch.full(g.shape, 0.01),
    ],
)
def test_hooks_see_and_change_the_gradient(hook):
    def with_hook(logits):
        logits.register_hook(hook)
        return loss_of(logits)

    assert_same_gradients(with_hook)


def test_hooks_count_even_when_registered_after_the_loss():
    def hook_later(logits):
        loss = loss_of(logits)
        logits.register_hook(lambda g: g * 2)
        return loss

    assert_same_gradients(hook_later)


def test_retain_grad_and_autograd_grad_give_the_gradient_of_the_logits():
    logits, plain = lazy_and_plain()
    for x in (logits, plain):
        x.retain_grad()
        loss_of(x[:, 1:].contiguous(), LABELS[:, 1:].contiguous()).backward()
    torch.testing.assert_close(logits.grad + 0, plain.grad, rtol=1e-5, atol=1e-7)
    logits, plain = lazy_and_plain()
    ours, theirs = (torch.autograd.grad(loss_of(x) * 3, x)[0] for x in (logits, plain))
    assert type(ours) is LazyGradient
    torch.testing.assert_close(ours + 0, theirs, rtol=1e-5, atol=1e-7)


def gradient_of(logits):
    """As loss_of(logits).backward() would have it arrive at the logits."""
    return torch.autograd.grad(loss_of(logits), logits, retain_graph=True)[0]


def back_by_a_part(logits, other):
    logits[:, 1:].backward(gradient_of(logits)[:, 1:])


def back_by_another(logits, other):
    logits.backward(gradient_of(other))


def back_by_a_sum(logits, other):
    logits.backward(gradient_of(logits) + gradient_of(other))


def back_twice(logits, other):
    gradient = gradient_of(logits)
    logits.backward(gradient, retain_graph=True)
    logits.backward(gradient + gradient / 2)


@pytest.mark.parametrize("back", [back_by_a_part, back_by_another, back_by_a_sum, back_twice])
def test_a_gradient_by_hand_is_taken_for_what_it_is(back):
    """A lazy gradient carries that of the weight for all rows of its own logits, and no other."""
    results = []
    for head in (F.linear, lazy_linear):
        leaves = parts()
        back(head(*leaves), head(leaves[0].flip(0), *leaves[1:]))
        results.append([leaf.grad for leaf in leaves])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_hooks_of_modules_around_the_head_work():
    class Model(torch.nn.Module):
        def forward(self, *leaves):
            return lazy_linear(*leaves)

    norms = []
    model, leaves = Model(), parts()
    model.register_full_backward_hook(lambda module, dx, dy: norms.append(dy[0].norm().item()))
    loss_of(model(*leaves)).backward()
    logits = F.linear(*parts()).detach().requires_grad_()
    loss_of(logits).backward()
    assert norms == pytest.approx([logits.grad.norm().item()], rel=1e-5)


def test_a_second_backward_pass_needs_a_retained_graph():
    hidden, weight, bias = parts()
    loss = loss_of(lazy_linear(hidden, weight, bias))
    loss.backward(retain_graph=True)
    first = weight.grad.clone()
    loss.backward()
    torch.testing.assert_close(weight.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_fused_loss_can_be_differentiated_twice(reduction):
    results = []
    for head in (F.linear, lazy_linear):
        leaves = parts()
        loss = loss_of(head(*leaves), reduction=reduction).sum()
        (gradient,) = torch.autograd.grad(loss, leaves[0], create_graph=True)
        results.append(torch.autograd.grad(loss + 100 * gradient.square().sum(), leaves))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_losses_by_hand_can_be_differentiated_twice():
    def penalty(logits, hidden):
        (gradient,) = torch.autograd.grad(logits.logsumexp(-1).sum() + logits.sum(), hidden, create_graph=True)
        return gradient.square().sum()

    results = []
    for head in (F.linear, lazy_linear):
        leaves = parts()
        results.append(torch.autograd.grad(penalty(head(*leaves), leaves[0]), leaves[:2]))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_only_what_requires_a_gradient_gets_one(frozen):
    results = []
    for head in (F.linear, lazy_linear):
        leaves = parts()
        leaves[frozen].requires_grad_(False)
        logits = head(*leaves)
        shifted = loss_of(logits[:, 1:].contiguous(), LABELS[:, 1:].contiguous())
        (shifted + F.cross_entropy(logits[0], LABELS[0])).backward()
        results.append([leaf.grad for leaf in leaves])
    for index, (expected, actual) in enumerate(zip(*results, strict=True)):
        if index == frozen:
            assert expected is None
            assert actual is None
        else:
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_works_around_the_head_and_around_the_loss(use_reentrant):
    gradients = []
    for inside in (True, False):
        hidden, weight, _ = parts()
        if inside:
            loss = checkpoint(lambda x, w=weight: loss_of(lazy_linear(x, w)), hidden, use_reentrant=use_reentrant)
        else:
            loss = loss_of(checkpoint(lambda x, w=weight: lazy_linear(x, w), hidden, use_reentrant=use_reentrant))
        loss.backward()
        gradients.append(weight.grad)
    hidden, weight, _ = parts()
    loss_of(F.linear(hidden, weight)).backward()
    for gradient in gradients:
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-6)


def test_follows_autocast_as_linear_does():
    hidden, weight, bias = parts()
    with torch.autocast("cpu", torch.bfloat16):
        logits, plain = lazy_linear(hidden, weight, bias), F.linear(hidden, weight, bias)
        assert logits.dtype == plain.dtype == torch.bfloat16
        loss = loss_of(logits)
        torch.testing.assert_close(loss, loss_of(plain), rtol=1e-5, atol=0)
    loss.backward()
    assert weight.grad.dtype == torch.float32
    assert torch.equal(logits, plain)


def test_the_gradient_of_the_weight_is_handed_over_without_a_copy():
    hidden, weight, _ = parts()
    loss = loss_of(lazy_linear(hidden, weight))
    address = loss.grad_fn.kept.dweight.data_ptr()
    loss.backward()
    assert weight.grad.data_ptr() == address


# ---- the weight changes ------------------------------------------------------------------------------------------


@pytest.fixture
def installed():
    undo = lazy_logits.install()
    yield
    undo()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=1.0), lambda p: torch.optim.AdamW(p, fused=True)])
def test_logits_looked_at_after_the_step_are_those_before_it(make):
    hidden, weight, bias = parts()
    logits, plain = lazy_linear(hidden, weight, bias), F.linear(hidden, weight, bias)
    logits.retain_grad()
    loss_of(logits).backward()
    make([weight, bias]).step()
    assert not torch.equal(F.linear(hidden, weight, bias), plain)
    assert torch.equal(logits, plain)
    gradient = F.softmax(plain.view(-1, CLASSES), -1) - F.one_hot(LABELS.view(-1).clamp(min=0), CLASSES)
    gradient[LABELS.view(-1) == -100] = 0
    torch.testing.assert_close(logits.grad.view(-1, CLASSES) + 0, gradient / 9, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("installed")
def test_a_step_copies_no_weight_when_nobody_kept_the_logits(monkeypatch):
    hidden, weight, bias = parts()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    loss = loss_of(lazy_linear(hidden, weight, bias))
    loss.backward()
    looked_at = lazy_linear(hidden, weight, bias)
    looked_at.sum()
    gc.collect()
    monkeypatch.setattr(Inputs, "keep", lambda inputs, addresses: pytest.fail("copied a weight"))
    optimizer.step()


def test_without_install_a_look_after_the_step_raises():
    hidden, weight, bias = parts()
    lazy_logits.install()()  # undone at once
    logits = lazy_linear(hidden, weight, bias)
    loss_of(logits).backward()
    torch.optim.SGD([weight], lr=1.0).step()
    with pytest.raises(RuntimeError, match="weight they need has been changed in place"):
        logits.sum()


def test_other_changes_of_the_weight_make_a_late_look_raise():
    hidden, weight, bias = parts()
    logits = lazy_linear(hidden, weight, bias)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="weight they need has been changed in place"):
        logits.sum()
    with pytest.raises(RuntimeError, match="weight they need has been changed in place"):
        loss_of(logits)


def test_changing_the_input_of_the_layer_makes_a_late_look_raise():
    hidden, weight, bias = parts()
    rows = hidden * 1
    logits = lazy_linear(rows, weight, bias)
    rows.mul_(2)
    with pytest.raises(RuntimeError, match="input of their layer has been changed in place"):
        logits.sum()


# ---- when --------------------------------------------------------------------------------------------------------


@pytest.fixture
def head():
    return torch.nn.Linear(8, lazy_logits.MIN_CLASSES)


def test_a_large_head_becomes_lazy_by_its_sizes_alone(head):
    inside = torch.nn.Linear(1024, 4096)  # of a transformer
    model = torch.nn.ModuleList([head, torch.nn.Linear(8, 100), inside])
    outcomes = rewrite(model)
    assert [type(module) for module in model] == [LazyHead, Linear, Linear]
    assert [outcome.done for outcome in outcomes] == [
        "fullstride.rewriting.lazy_logits.LazyHead: logits only if somebody looks", *["fullstride.nn.Linear"] * 2
    ]  # fmt: skip
    put_back(model)
    assert [type(module) for module in model] == [torch.nn.Linear] * 3


def test_lazy_logits_can_be_left_out(head):
    model = torch.nn.ModuleList([head])
    rewrite(model, without=frozenset({"lazy_logits"}))
    assert type(head) is Linear
    assert type(head(torch.ones(2, 8))) is torch.Tensor


def test_a_lazy_head_is_split_copied_and_pickled_as_a_linear_layer(head):
    model = torch.nn.Sequential(head)
    exact = head.weight.detach().clone()
    rewrite(model)
    assert list(split_weights.split_weights(model)) == [head.weight]
    for twin in [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]:
        assert type(twin[0]) is LazyHead
        split_weights.merge_weights(twin)
        put_back(twin)
        assert type(twin[0]) is torch.nn.Linear
        assert torch.equal(twin[0].weight, exact)


def test_an_activation_behind_a_large_layer_is_fused_with_it(head):
    model = torch.nn.Sequential(head, torch.nn.GELU())
    expected = model(torch.ones(2, 8))
    outcomes = rewrite(model)
    assert "Linear + GELU" in [outcome.done for outcome in outcomes]
    assert type(model(torch.ones(2, 8)).grad_fn).__name__ == "LinearFunctionBackward"
    torch.testing.assert_close(model(torch.ones(2, 8)), expected)


def test_explain_shows_the_lazy_head():
    model = torch.nn.Sequential(torch.nn.Linear(8, lazy_logits.MIN_CLASSES))
    fullstride.prepare(model, precision="fp32")
    assert "Linear: fullstride.rewriting.lazy_logits.LazyHead: logits only if somebody looks" in str(
        fullstride.explain(model)
    )
    assert type(model(torch.ones(2, 8))) is LazyLogits
    assert type(fullstride.restore(model)[0]) is torch.nn.Linear


def test_large_heads_in_training_want_lazy_logits(head):
    x = torch.ones(2, 8)
    assert wants_lazy(head, x)
    assert is_large(head)
    assert not is_large(torch.nn.Linear(8, 100))
    assert not is_large(torch.nn.Linear(1024, 4096))  # inside of a transformer
    assert not wants_lazy(head, x.half())
    with torch.no_grad():
        assert not wants_lazy(head, x)
    assert not wants_lazy(copy.deepcopy(head).eval(), x)
    head.register_forward_hook(lambda module, inputs, output: None)
    assert not wants_lazy(head, x)


def test_a_compiled_model_has_no_lazy_logits(head):
    answers = []

    def ask(x):
        answers.append(wants_lazy(head, x))
        return x + 1

    torch.compile(ask, backend="eager")(torch.ones(2, 8))
    assert answers == [False]


def test_a_head_whose_logits_are_looked_at_stops_being_lazy(head):
    x = torch.ones(2, 8)
    for look in [False, False, True, True, True, True]:
        assert wants_lazy(head, x)
        logits = lazy_linear(x, head.weight, head.bias)
        if look:
            logits.sum()
    assert not wants_lazy(head, x)


def test_a_step_in_which_two_copies_are_looked_at_counts_once(head):
    x = torch.ones(2, 8)
    answers = []
    for _ in range(5):
        answers.append(wants_lazy(head, x))
        logits = lazy_linear(x, head.weight, head.bias)
        for copied in (logits.clone(), logits.clone()):
            copied.sum()
    assert answers == [True] * 4 + [False]


def test_a_head_stops_being_lazy_when_half_of_its_logits_were_looked_at(head):
    x = torch.ones(2, 8)
    for look in [False] * 4 + [True] * 6:  # the look at the last ones counts with the next call
        assert wants_lazy(head, x)
        logits = lazy_linear(x, head.weight, head.bias)
        if look:
            logits.sum()
    assert not wants_lazy(head, x)
