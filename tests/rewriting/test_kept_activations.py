"""What forward keeps in bf16, and what it must not."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import fullstride
from fullstride.ops import vector_math
from fullstride.rewriting import kept_activations
from fullstride.rewriting.kept_activations import kept_as_bf16
from tests.language_model import make

from .models import CASES

pytestmark = pytest.mark.usefixtures("quiet")

BAND = 3e-3
"""How far a step's loss may be from fp32's, as a share of the first loss. Measured: 8e-4 (ResNet), 2e-4 (ViT), others
below 6e-5."""


def hidden(*shape, scale=1.0, seed=0):
    """As if a layer had made it: fp32, in the graph."""
    values = torch.randn(*(shape or (64, 96)), generator=torch.Generator().manual_seed(seed)) * scale
    return values.requires_grad_() * 1.0


def rounded(x):
    return x.detach().bfloat16().float()


# ---- which tensors ---------------------------------------------------------------------------------------------------


def test_an_activation_is_kept_rounded_to_nearest():
    x = hidden()
    with kept_as_bf16():
        y = x.square()
    assert torch.equal(y.grad_fn._saved_self, rounded(x))


def test_outside_of_it_nothing_is_rounded():
    x = hidden()
    with kept_as_bf16():
        pass
    assert torch.equal(x.square().grad_fn._saved_self, x)


def test_a_gradient_is_the_product_with_the_rounded_activation_and_the_exact_weight():
    x, weight, dy = hidden(), nn.Parameter(torch.randn(32, 96)), torch.randn(64, 32)
    leaf = x.detach().requires_grad_()
    with kept_as_bf16():
        y = (leaf * 1.0) @ weight.t()
    y.backward(dy)
    torch.testing.assert_close(weight.grad, dy.t() @ rounded(x), rtol=1e-5, atol=1e-5)
    assert torch.equal(leaf.grad, dy @ weight.detach())


@pytest.mark.parametrize(
    ("keep", "name"),
    [
        (torch.tanh, "result"),
        (torch.sigmoid, "result"),
        (lambda x: F.log_softmax(x, -1), "result"),
        (lambda x: x[:4, :8].square(), "self"),  # small
        (lambda x: x.flatten().square(), "self"),  # one dimension
        (lambda x: x.reshape(-1, 1).square(), "self"),  # one number a row
        (lambda x: x[:, :1].expand(-1, 96).square(), "self"),  # its copy would be larger than it
        (lambda x: x.double().square(), "self"),
        (lambda x: (x.detach().requires_grad_()).square(), "self"),  # a leaf: a parameter, or an input
        (lambda x: x.detach().requires_grad_().t().square(), "self"),
    ],
)
def test_what_must_stay_exact_does(keep, name):
    with kept_as_bf16():
        y = keep(hidden())
    with torch.no_grad():
        x = hidden()
        expected = keep(x) if name == "result" else torch.sqrt(keep(x.double()))
    kept = getattr(y.grad_fn, f"_saved_{name}")
    kept = kept if name == "result" else kept.abs()
    torch.testing.assert_close(kept.double(), expected.double(), rtol=1e-7, atol=0)


def test_statistics_of_our_norms_and_attention_stay_exact():
    x = hidden(2, 4, 256, 16)
    with kept_as_bf16():
        out = fullstride.ops.attention.attention(x, x, x)
        y = fullstride.ops.layer_norm.layer_norm(x)
    lse = out.grad_fn.saved_tensors[5]
    torch.testing.assert_close(lse, torch.logsumexp(x.detach() @ x.detach().mT / 4, -1), rtol=1e-5, atol=1e-5)
    assert torch.equal(out.grad_fn.saved_tensors[0], rounded(x))
    mean = y.grad_fn.saved_tensors[2][0]
    torch.testing.assert_close(mean, x.detach().mean(-1).flatten(), rtol=1e-5, atol=1e-7)


def test_rounding_leaves_zeros_and_signs_alone():
    tiny = torch.finfo(torch.float32).tiny
    x = torch.tensor([0.0, -0.0, tiny, -tiny, 1e-30, -1e-30, 3e38, 1.0]).repeat(512, 1).requires_grad_() * 1.0
    with kept_as_bf16():
        y = torch.relu(x)
    kept = y.grad_fn._saved_result
    assert torch.equal(kept > 0, y > 0)
    assert torch.equal(kept, rounded(y))


def test_a_loss_inside_of_the_model_compares_exact_numbers():
    target = hidden().detach()
    prediction = (target + 1e-5).requires_grad_()
    with kept_as_bf16():
        loss = F.mse_loss(prediction * 1.0, target, reduction="sum")
    loss.backward()
    torch.testing.assert_close(prediction.grad, 2 * (prediction.detach() - target), rtol=1e-6, atol=0)


def gradient(function, x, keeps=kept_as_bf16):
    leaf = x.clone().requires_grad_()
    with keeps():
        y = function(leaf * 1.0)
    y.sum().backward()
    return leaf.grad


BELOW_ONE = torch.linspace(-0.9999, 0.9999, 64 * 96).view(64, 96)
POSITIVE = torch.linspace(1e-3, 50, 64 * 96).view(64, 96)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        pytest.param(lambda x: torch.sin(30 * x), BELOW_ONE, id="sin(30 x)"),
        pytest.param(lambda x: (300 * x).sin(), BELOW_ONE, id="sin(300 x)"),
        pytest.param(lambda x: (300 * x).cos_(), BELOW_ONE, id="cos in place"),
        pytest.param(lambda x: vector_math.sin(300 * x), BELOW_ONE, id="our sin"),
        pytest.param(lambda x: vector_math.cos(300 * x), BELOW_ONE, id="our cos"),
        pytest.param(lambda x: torch.cosh(50 * x), BELOW_ONE, id="cosh"),
        pytest.param(torch.asin, BELOW_ONE, id="asin"),
        pytest.param(torch.arccos, BELOW_ONE, id="arccos"),
        pytest.param(torch.atanh, BELOW_ONE, id="atanh"),
        pytest.param(lambda x: torch.acosh(1 + x), POSITIVE, id="acosh"),
        pytest.param(torch.special.erfinv, BELOW_ONE, id="erfinv"),
        pytest.param(lambda x: torch.logit(x / 51), POSITIVE, id="logit"),
        pytest.param(torch.log1p, BELOW_ONE, id="log1p"),
        pytest.param(lambda x: torch.expm1(-x), POSITIVE, id="expm1"),
        pytest.param(torch.lgamma, POSITIVE, id="lgamma"),
        pytest.param(lambda x: torch.logsumexp(x + 100, -1), BELOW_ONE, id="logsumexp"),
        pytest.param(lambda x: torch.logaddexp(x + 100, 2 * x + 100), BELOW_ONE, id="logaddexp"),
        pytest.param(lambda x: torch.cdist(x + 10, 1.001 * x + 10), BELOW_ONE, id="cdist"),
        pytest.param(lambda x: torch.linalg.inv(x[:, :64] + torch.eye(64)), BELOW_ONE, id="inv"),
        pytest.param(lambda x: x**-3, POSITIVE, id="x^-3"),
        pytest.param(lambda x: torch.pow(x, exponent=8), BELOW_ONE, id="x^8"),
        pytest.param(lambda x: torch.pow(x, torch.tensor(7.5)), POSITIVE, id="x^tensor"),
    ],
)
def test_functions_that_amplify_a_rounding_keep_exact_numbers(function, x):
    assert torch.equal(gradient(function, x), gradient(function, x, nullcontext))


def test_the_logarithm_of_one_less_an_exponential_is_finite():
    found = gradient(lambda z: torch.log1p(-torch.exp(-z)), POSITIVE)
    torch.testing.assert_close(found, 1 / torch.expm1(POSITIVE.double()).float(), rtol=2**-7, atol=0)


@pytest.mark.parametrize(
    ("function", "roundings"),
    [
        (torch.log, 1), (torch.exp, 1), (torch.sqrt, 1), (torch.square, 1), (torch.reciprocal, 2), (torch.atan, 2),
        (torch.tan, 2), (lambda x: 1.5 / x, 2), (lambda x: x**3, 2), (torch.rsqrt, 3), (lambda x: x**-2, 3),
        (lambda x: x**4, 3),
    ],
)  # fmt: skip
def test_other_derivatives_are_off_by_a_few_roundings(function, roundings):
    exact = gradient(function, POSITIVE, nullcontext)
    worst = ((gradient(function, POSITIVE) - exact) / exact).abs().max()
    assert 2**-10 < worst < 1.02 * roundings * 2**-8  # 2 %: the square of a rounding, and fp32's own


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_the_fp32_tensor_is_freed_and_its_copy_is_one(monkeypatch):
    calls = []

    def to_bf16(x):
        calls.append(x.numel())
        return x.bfloat16()

    monkeypatch.setattr(kept_activations, "to_bf16", to_bf16)
    x = hidden()
    memory = StorageWeakRef(x.untyped_storage())
    with kept_as_bf16():
        outputs = x.square(), x.t().square(), x.view(32, 192).exp().square()
    nodes = [y.grad_fn for y in outputs]
    expected = rounded(x)
    del x, outputs
    assert memory.expired()
    assert calls == [64 * 96, 64 * 96]  # x, and its exponential
    assert torch.equal(nodes[0]._saved_self, expected)
    assert torch.equal(nodes[1]._saved_self, expected.t())


def test_another_tensor_at_the_same_address_is_not_taken_for_the_first():
    with kept_as_bf16():
        for seed in range(20):
            x = hidden(seed=seed)
            node = x.square().grad_fn
            assert torch.equal(node._saved_self, rounded(x))


def test_what_the_graph_holds_exactly_is_not_copied():
    x = hidden()
    with kept_as_bf16():
        y = torch.tanh(x)
        z = y.view(32, 192).square()
    assert z.grad_fn._saved_self.data_ptr() == y.data_ptr()


def test_a_small_part_does_not_hold_the_whole():
    x = hidden()
    memory = StorageWeakRef(x.untyped_storage())
    with kept_as_bf16():
        nodes = x[0].square().grad_fn, x.square().grad_fn, x[1].square().grad_fn
    expected = x.detach().clone()
    del x
    assert memory.expired()
    assert torch.equal(nodes[0]._saved_self, expected[0])
    assert torch.equal(nodes[1]._saved_self, rounded(expected))
    assert torch.equal(nodes[2]._saved_self, expected[1])


def test_slices_of_one_tensor_are_rounded_each():
    x = hidden(64, 3 * 96)
    with kept_as_bf16():
        nodes = [part.square().grad_fn for part in x.chunk(3, -1)]
    for node, part in zip(nodes, x.chunk(3, -1), strict=True):
        assert torch.equal(node._saved_self, rounded(part))


def test_a_graph_that_nobody_uses_is_freed():
    with kept_as_bf16():
        y = torch.tanh(hidden())
        z = y.exp()
    memory = [StorageWeakRef(x.untyped_storage()) for x in (y, z)]
    del y, z
    assert all(x.expired() for x in memory)


def bytes_kept(activations, act):
    """By the hooks of somebody around the model, who is handed all that is kept."""
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(96, 96), act)))
    model, _ = fullstride.prepare(model, precision="fp32", activations=activations)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(x):
        kept[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        model(torch.randn(256, 96)).sum().backward()
    return sum(x.untyped_storage().nbytes() for address, x in kept.items() if address not in own)


@pytest.mark.parametrize("act", [nn.GELU(), nn.ReLU()])  # ReLU's output is kept by two nodes
def test_it_halves_what_forward_keeps(act):
    data = 256 * 96 * 4
    assert bytes_kept("bf16", act) - data == (bytes_kept("same", act) - data) / 2


# ---- writes in place -------------------------------------------------------------------------------------------------


def test_a_write_to_what_is_kept_as_it_is_raises_as_in_torch():
    weight = nn.Parameter(torch.randn(96, 96))
    with kept_as_bf16():
        y = hidden() @ weight
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_write_to_what_was_rounded_does_not_reach_the_copy():
    x = hidden()
    with kept_as_bf16():
        y = x.exp()
    expected = rounded(y)
    y.add_(1)
    assert torch.equal(y.grad_fn.next_functions[0][0]._saved_result, expected)
    with kept_as_bf16():
        z = y.square()  # another version of the same memory
    assert torch.equal(z.grad_fn._saved_self, rounded(y))


# ---- whole models ----------------------------------------------------------------------------------------------------


class Wide(nn.Module):
    """Attention, norm, GELU and a tied head of 4096 words, which is lazy."""

    def __init__(self, recompute=""):
        super().__init__()
        self.embed = nn.Embedding(4096, 32)
        self.norm, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.mix = nn.Linear(32, 96), nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 4096, bias=False)
        self.head.weight = self.embed.weight
        self.recompute = recompute

    def attend(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        return self.mix(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, tokens):
        x = self.embed(tokens)
        if self.recompute:
            x = x + checkpoint(self.attend, x, use_reentrant=self.recompute == "reentrant")
        else:
            x = x + self.attend(x)
        return self.head(self.last(x + self.mlp(x)))


TOKENS = torch.randint(0, 4096, (8, 65), generator=torch.Generator().manual_seed(0))


def gradients(activations, recompute="", run=lambda model, tokens: model(tokens), precision="fp32", micro_batches=1):
    torch.manual_seed(0)
    model = Wide(recompute)
    model, _ = fullstride.prepare(model, torch.optim.AdamW(model.parameters()), precision=precision,
                                  activations=activations)  # fmt: skip
    for _ in range(micro_batches):
        logits = run(model, TOKENS[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    found = {name: p.grad.double() for name, p in model.named_parameters()}
    fullstride.restore(model)
    return found


def exact_gradients():
    torch.manual_seed(0)
    model = Wide().double()
    F.cross_entropy(model(TOKENS[:, :-1]).flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def distances(found, exact):
    """Of each parameter's gradient, as a share of its norm."""
    return {name: ((found[name] - exact[name]).norm() / exact[name].norm()).item() for name in exact}


def assert_near(found, exact, most=2**-8):
    assert max(distances(found, exact).values()) < most


def assert_equal(found, expected):
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


def test_gradients_are_within_the_rounding_of_one_operand_of_fp64():
    exact = exact_gradients()
    assert max(distances(gradients("same"), exact).values()) < 1e-5
    found = distances(gradients("bf16"), exact)
    assert max(found.values()) < 2**-8
    assert found["mlp.0.weight"] > 1e-5  # and it is on


def test_micro_batches_add_up():
    once = gradients("bf16")
    assert_near(gradients("bf16", micro_batches=3), {name: 3 * x for name, x in once.items()}, most=1e-5)


@pytest.mark.parametrize("recompute", ["not reentrant", "reentrant"])
def test_a_part_that_is_computed_again_may_start_from_a_rounded_input(recompute):
    assert_near(gradients("bf16", recompute), exact_gradients(), most=2**-7)


def test_a_checkpoint_around_the_model_changes_no_bit():
    def again(model, tokens):
        return checkpoint(model, tokens, use_reentrant=False)

    # With lazy logits the head is not part of the graph that is computed again.
    assert_equal(gradients("bf16", run=again), gradients("bf16"))


def test_hooks_of_others_around_the_model_change_no_bit():
    def on_cpu(model, tokens):
        with torch.autograd.graph.save_on_cpu():
            return model(tokens)

    assert_equal(gradients("bf16", run=on_cpu), gradients("bf16"))


def test_in_16_bits_it_does_nothing_and_says_so():
    assert_equal(gradients("bf16", precision="bf16"), gradients("same", precision="bf16"))
    model, _ = fullstride.prepare(*make(), precision="bf16", activations="bf16")
    assert "kept       activations for backward as they are: in bf16 they have 16 bits already" in str(
        fullstride.explain(model)
    )


def test_a_gradient_can_be_differentiated():
    def penalty(activations):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1))
        model, _ = fullstride.prepare(model, precision="fp32", activations=activations)
        x = torch.randn(64, 96, requires_grad=True)
        (dx,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        dx.square().sum().backward()
        return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}

    assert_near(penalty("bf16"), penalty("same"))


def test_backward_can_be_repeated():
    model, _ = fullstride.prepare(nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96)), precision="fp32",
                                  activations="bf16")  # fmt: skip
    loss = model(hidden().detach()).square().sum()
    loss.backward(retain_graph=True)
    once = model[0].weight.grad.clone()
    loss.backward()
    torch.testing.assert_close(model[0].weight.grad, 2 * once)


def test_torch_func_takes_no_hooks_and_gets_none():
    model, _ = fullstride.prepare(nn.Sequential(nn.Linear(96, 96), nn.GELU()), precision="fp32", activations="bf16")
    parameters = dict(model.named_parameters())
    x = hidden().detach()

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).sum()

    found = torch.func.grad(loss)(parameters)
    fullstride.restore(model)
    model(x).sum().backward()
    torch.testing.assert_close(found["0.weight"], model[0].weight.grad, rtol=1e-4, atol=1e-4)


def test_torch_compile_keeps_what_it_wants():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 96))
    stock = copy.deepcopy(model)
    model, _ = fullstride.prepare(model, precision="fp32", activations="bf16")
    for m in (torch.compile(model, backend="aot_eager"), stock):
        m(hidden().detach()).square().sum().backward()
    torch.testing.assert_close(model[2].weight.grad, stock[2].weight.grad, rtol=1e-4, atol=1e-4)


def test_evaluation_keeps_nothing(monkeypatch):
    monkeypatch.setattr(kept_activations, "to_bf16", None)  # nobody calls it
    model, _ = fullstride.prepare(nn.Sequential(nn.Linear(96, 96), nn.GELU()), precision="fp32", activations="bf16")
    with torch.no_grad():
        model(torch.randn(64, 96))


# ---- the account -----------------------------------------------------------------------------------------------------


def test_explain_says_so_and_restore_undoes_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 96))
    stock = copy.deepcopy(model)
    model, _ = fullstride.prepare(model, precision="fp32", activations="bf16")
    assert "kept       activations for backward in bf16" in str(fullstride.explain(model))
    fullstride.restore(model)
    for m in (model, stock):
        m(hidden().detach()).square().sum().backward()
    assert torch.equal(model[2].weight.grad, stock[2].weight.grad)


def test_by_default_nothing_is_said_and_nothing_is_rounded():
    model, _ = fullstride.prepare(*make(), precision="fp32")
    assert "activations for backward" not in str(fullstride.explain(model))
    assert not fullstride.explain(model).setting.rounds


def test_an_unknown_wish_is_refused():
    with pytest.raises(ValueError, match="expected activations to be one of same, bf16, got 'fp8'"):
        fullstride.prepare(nn.Linear(2, 2), activations="fp8")


def test_a_model_that_rounds_does_so_inside_of_one_that_does_not():
    inner, _ = fullstride.prepare(nn.Sequential(nn.Linear(96, 96)), precision="fp32", activations="bf16")

    class Outer(nn.Module):
        def forward(self, x):
            return inner(x)  # which is no part of it

    outer, _ = fullstride.prepare(Outer(), precision="fp32")
    x = hidden()
    assert torch.equal(outer(x).grad_fn.saved_tensors[0], rounded(x))


# ---- models that nobody adapted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_unknown_models_learn_as_in_fp32(name, monkeypatch):
    """However small their tensors are."""
    monkeypatch.setattr(kept_activations, "MIN_ELEMENTS", 1)
    losses = {}
    for activations in ("same", "bf16"):
        case = CASES[name]
        model = case.make_model()
        model, optimizer = fullstride.prepare(
            model, torch.optim.AdamW(model.parameters(), lr=case.learning_rate),
            precision="fp32", threads=1, activations=activations,
        )  # fmt: skip
        batches, found = case.make_batches(), []
        for step in range(30):
            loss = case.loss(model, batches[step % len(batches)])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        losses[activations] = torch.tensor(found)
        fullstride.restore(model)
    torch.testing.assert_close(losses["bf16"], losses["same"], rtol=0, atol=BAND * losses["same"][0].item())
