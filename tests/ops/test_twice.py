"""Gradients of gradients: every op against its reference, which torch differentiates as often as one likes."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fullstride.ops import vector_math
from fullstride.ops._overlap import overlap_weight_grads
from fullstride.ops.attention import attention, attention_reference
from fullstride.ops.bias_act import bias_act, bias_act_reference
from fullstride.ops.contrastive_loss import contrastive_loss, contrastive_loss_reference
from fullstride.ops.conv1d import conv1d, conv1d_reference
from fullstride.ops.convert import to_bf16
from fullstride.ops.cross_entropy import cross_entropy, cross_entropy_reference
from fullstride.ops.dropout import dropout, dropout_reference
from fullstride.ops.embedding import embedding, embedding_reference
from fullstride.ops.glu import glu, glu_reference
from fullstride.ops.layer_norm import layer_norm, layer_norm_reference
from fullstride.ops.linear import linear, linear_reference
from fullstride.ops.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_reference
from fullstride.ops.patches import patches, patches_reference
from fullstride.ops.rms_norm import rms_norm, rms_norm_reference
from fullstride.ops.rope import rope, rope_reference, rope_tables
from fullstride.ops.softmax import softmax, softmax_reference

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 0.05}
"""Of the largest element. bf16 has 2^-8, and a gradient of a gradient is rounded several times."""


def random(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def penalties(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The gradients of s + |gradient of s|^2 for all inputs, where s = sum(y^3 + y): of a norm sum(y^2) is constant."""
    y = function(*inputs).float()
    score = (y**3 + y).sum()
    gradients = torch.autograd.grad(score, inputs, create_graph=True)
    penalty = sum(g.float().square().sum() for g in gradients)
    return list(torch.autograd.grad(score + penalty, inputs))


def agree(ours: Callable[..., Tensor], reference: Callable[..., Tensor], *inputs: Tensor, dtype=torch.float32) -> None:
    """ours, in this dtype, against the reference in fp64."""
    given = [x.to(dtype).requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in given]
    for actual, expected in zip(penalties(ours, given), penalties(reference, exact), strict=True):
        bound = TOLERANCES[dtype] * expected.abs().max().item()
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=bound)


TARGET = torch.tensor([3, 0, -100, 6])
COS, SIN = rope_tables(5, 6)
first = [lambda *x, f=f, **options: f(*x, **options)[0] for f in (layer_norm_reference, rms_norm_reference)]


def halves(x: Tensor, activation: str) -> Tensor:
    return glu_reference(*reversed(x.chunk(2, dim=-1)), activation)


CASES: dict[str, tuple] = {
    "linear": (linear, linear_reference, [(4, 3, 5), (6, 5), (6,)]),
    **{
        f"linear {name}": (
            partial(linear, activation=name),
            partial(linear_reference, activation=name),
            [(4, 5), (6, 5), (6,)],
        )
        for name in ("relu", "gelu", "gelu_tanh", "silu")
    },
    "linear without bias": (
        partial(linear, activation="silu"),
        partial(linear_reference, activation="silu"),
        [(4, 5), (6, 5)],
    ),
    **{
        f"conv1d {name}": (
            partial(conv1d, padding=1, activation=name),
            partial(conv1d_reference, padding=1, activation=name),
            [(2, 4, 5), (3, 4, 3), (3,)],
        )
        for name in ("none", "relu", "gelu", "gelu_tanh", "silu")
    },
    "conv1d without bias": (
        partial(conv1d, padding="same"),
        partial(conv1d_reference, padding="same"),
        [(2, 4, 5), (3, 4, 3)],
    ),
    "patches": (patches, patches_reference, [(2, 3, 5, 6), (4, 3, 2, 3), (4,)]),
    "patches without bias": (patches, patches_reference, [(2, 3, 5, 6), (4, 3, 2, 3)]),
    **{
        f"bias_act {name}": (
            partial(bias_act, activation=name),
            partial(bias_act_reference, activation=name),
            [(3, 4, 6), (6,)],
        )
        for name in ("none", "relu", "gelu", "gelu_tanh", "silu")
    },
    "glu": (glu, glu_reference, [(4, 6), (4, 6)]),
    "glu of halves": (
        partial(glu, activation="gelu", gate_first=False),
        partial(halves, activation="gelu"),
        [(4, 6)],
    ),
    "layer_norm": (layer_norm, first[0], [(2, 3, 8), (8,), (8,)]),
    "rms_norm": (rms_norm, first[1], [(2, 3, 8), (8,)]),
    "softmax": (partial(softmax, scale=0.5), partial(softmax_reference, scale=0.5), [(2, 5, 5)]),
    "causal softmax": (partial(softmax, causal_offset=0), partial(softmax_reference, causal_offset=0), [(2, 5, 5)]),
    "attention": (
        partial(attention, is_causal=True, enable_gqa=True),
        partial(attention_reference, is_causal=True, enable_gqa=True),
        [(2, 4, 5, 6), (2, 2, 5, 6), (2, 2, 5, 6)],
    ),
    "rope": (lambda x: rope(x, COS, SIN), lambda x: rope_reference(x, COS.double(), SIN.double()), [(2, 5, 3, 6)]),
    "dropout": (partial(dropout, p=0.3, seed=5), partial(dropout_reference, p=0.3, seed=5), [(9, 7)]),
    "embedding": (
        lambda w: embedding(torch.tensor([[1, 4], [4, 2]]), w, 2),
        lambda w: embedding_reference(torch.tensor([[1, 4], [4, 2]]), w, 2),
        [(6, 3)],
    ),
    **{
        f"cross_entropy {reduction}": (
            lambda x, reduction=reduction: cross_entropy(x, TARGET, label_smoothing=0.1, reduction=reduction),
            lambda x, reduction=reduction: cross_entropy_reference(x, TARGET, -100, 0.1, reduction),
            [(4, 7)],
        )
        for reduction in ("mean", "sum", "none")
    },
    **{
        f"linear_cross_entropy {reduction}": (
            lambda x, w, b, reduction=reduction: linear_cross_entropy(x, w, TARGET, b, reduction=reduction),
            lambda x, w, b, reduction=reduction: linear_cross_entropy_reference(x, w, TARGET, b, reduction=reduction),
            [(4, 5), (7, 5), (7,)],
        )
        for reduction in ("mean", "none")
    },
    "contrastive_loss": (contrastive_loss, contrastive_loss_reference, [(3, 4), (5, 4), ()]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_a_gradient_is_that_of_the_reference(name, dtype):
    ours, reference, shapes = CASES[name]
    agree(ours, reference, *(random(*shape, seed=i) for i, shape in enumerate(shapes)), dtype=dtype)


@pytest.mark.parametrize("name", CASES)
def test_it_is_where_not_every_input_wants_one(name):
    ours, reference, shapes = CASES[name]
    inputs = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
    for i, wanted in enumerate(inputs):
        def alone(function, dtype, x, i=i):
            return function(*(x if j == i else other.to(dtype) for j, other in enumerate(inputs)))

        agree(partial(alone, ours, torch.float32), partial(alone, reference, torch.float64), wanted)


@pytest.mark.parametrize("name", vector_math.BOUNDS)
def test_it_is_for_functions_of_elements(name):
    ours, torchs = getattr(vector_math, name), getattr(torch, name)
    agree(ours, torchs, random(3, 5, seed=1).abs() + 0.5)


@pytest.mark.parametrize("inputs", ["views", "one tensor twice"])
def test_it_is_for_inputs_that_are_not_dense_or_the_same(inputs):
    if inputs == "views":
        agree(lambda x: layer_norm(x.t()), lambda x: layer_norm_reference(x.t())[0], random(8, 3, seed=1))
        agree(lambda x: bias_act(x.t()), lambda x: bias_act_reference(x.t()), random(8, 3, seed=1))
        agree(lambda x: glu(x.t()), lambda x: glu_reference(*x.t().chunk(2, dim=-1)), random(8, 3, seed=1))
        weight = random(4, 8, seed=2)
        agree(
            lambda x, w: linear(x.transpose(0, 2), w.t(), activation="silu"),
            lambda x, w: linear_reference(x.transpose(0, 2), w.t(), activation="silu"),
            random(4, 3, 2, seed=1), weight.t().t()[:, :5],
        )  # fmt: skip
    else:
        agree(lambda x: glu(x, x), lambda x: glu_reference(x, x), random(4, 6, seed=1))
        agree(lambda x: attention(x, x, x), lambda x: attention_reference(x, x, x), random(2, 2, 5, 6, seed=1))


@pytest.mark.parametrize(
    ("norm", "reference"), [(layer_norm, layer_norm_reference), (rms_norm, rms_norm_reference)], ids=["layer", "rms"]
)
def test_it_is_through_both_outputs_of_a_norm_with_a_residual(norm, reference):
    def both(function):
        return lambda x, residual, weight: torch.cat(function(x, weight, residual=residual))

    agree(both(norm), both(reference), random(3, 8, seed=1), random(3, 8, seed=2), random(8, seed=3))


def test_it_is_by_the_same_elements_that_attention_dropped():
    q, k, v = (random(1, 2, 4, 6, seed=i) for i in range(3))
    torch.manual_seed(7)
    seed = int(torch.empty((), dtype=torch.int64).random_())

    def ours(*inputs):
        torch.manual_seed(7)
        return attention(*inputs, dropout_p=0.4)

    agree(ours, partial(attention_reference, dropout_p=0.4, seed=seed), q, k, v)


def test_it_is_under_autocast_where_the_inputs_are_cast():
    """Against torch's own under autocast: what was cast is the same there, and the products are bf16 in both."""
    x, weight, bias = random(9, 16, seed=1), random(12, 16, seed=2, scale=0.25), random(12, seed=3)

    def under_autocast(function):
        def run(x, weight, bias):
            with torch.autocast("cpu", torch.bfloat16):
                return function(x * 2, weight, bias).float()

        return run

    results = []
    for function in (lambda x, weight, bias: F.silu(F.linear(x, weight, bias)), partial(linear, activation="silu")):
        inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
        results.append(penalties(under_autocast(function), inputs))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0.05 * expected.abs().max().item())


def test_it_is_after_logits_were_overwritten():
    agree(
        lambda x: cross_entropy(x * 1, TARGET, inplace=True),
        lambda x: cross_entropy_reference(x * 1, TARGET),
        random(4, 7, seed=1),
    )


def test_it_is_with_weight_gradients_computed_beside(num_threads):
    num_threads(2)
    overlap_weight_grads(True)
    agree(linear, linear_reference, *(random(*shape, seed=i) for i, shape in enumerate([(4, 5), (6, 5), (6,)])))


def test_it_is_when_a_parameter_gets_it_by_backward():
    """Twice over the same nodes: the penalty's way back through them, and the loss's own."""
    weight, other = random(300, 300, seed=1, scale=0.1).requires_grad_(), random(300, 300, seed=1, scale=0.1)
    other = other.double().requires_grad_()
    for p, function in ((weight, linear), (other, linear_reference)):
        x = random(5, 300, seed=2).to(p.dtype).requires_grad_()
        loss = function(function(x, p, activation="gelu"), p).square().sum()
        (dx,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + dx.square().sum()).backward()
    torch.testing.assert_close(weight.grad.double(), other.grad, rtol=0, atol=2e-5 * other.grad.abs().max().item())


def test_a_third_derivative_is_there_too():
    def third(function, x, weight):
        y = function(x, weight, activation="silu").sum()
        for _ in range(3):
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            y = g.square().sum()
        return torch.autograd.grad(y, weight)[0]

    x, weight = random(3, 4, seed=1), random(5, 4, seed=2)
    expected = third(linear_reference, x.double().requires_grad_(), weight.double().requires_grad_())
    actual = third(linear, x.requires_grad_(), weight.requires_grad_())
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-4)


def test_rounding_to_bf16_passes_it_on():
    x = random(3, 4, seed=1).requires_grad_()
    (dx,) = torch.autograd.grad(to_bf16(x).float().square().sum(), x, create_graph=True)
    (ddx,) = torch.autograd.grad(dx.sum(), x)
    torch.testing.assert_close(ddx, torch.full_like(x, 2.0))
