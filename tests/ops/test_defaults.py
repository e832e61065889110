"""The default dtype and device that the user has set change nothing: an op follows its inputs."""

import pytest
import torch

from fullstride import _native
from fullstride.ops import convert, vector_math
from fullstride.ops._optimizer import ParamList, make_slot
from fullstride.ops.adam import AdamGroup, adam_step
from fullstride.ops.bias_act import bias_act
from fullstride.ops.contrastive_loss import contrastive_loss
from fullstride.ops.cross_entropy import cross_entropy
from fullstride.ops.dropout import dropout
from fullstride.ops.embedding import embedding
from fullstride.ops.glu import glu
from fullstride.ops.grads import accumulate_, grad_norm, scale_
from fullstride.ops.lamb import LAMBGroup, lamb_step
from fullstride.ops.layer_norm import layer_norm
from fullstride.ops.patches import patches
from fullstride.ops.rms_norm import rms_norm
from fullstride.ops.rope import rope, rope_tables
from fullstride.ops.sgd import SGDGroup, sgd_step
from fullstride.ops.softmax import softmax

from .cases import random
from .optimizers import everything

X, WIDE, VECTOR, TABLE = random(6, 8), random(2, 3, 4, 8), random(8, seed=1), random(9, 8, seed=2)
LABELS = (torch.arange(6) * 5) % 8


def optimizer(step, group, weight_format, state_format):
    def run():
        weight = X.bfloat16() if weight_format == "bf16" else X.clone()
        slot = make_slot(weight, weight_format, state_format, lookahead=True)
        step(ParamList([slot]), [X], [group], lookahead_alpha=0.5, seed=3)
        return list(everything(slot).values())

    return run


def differentiated(op, *inputs):
    """Outputs and gradients."""

    def run():
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        y = op(*leaves)
        return [y, *torch.autograd.grad(y.float().square().sum(), leaves)]

    return run


def lists():
    targets, sources = [X.clone(), VECTOR.clone()], [X, VECTOR]
    accumulate_(targets, sources, 0.5)
    scale_(targets, 0.5)
    return [*targets, torch.as_tensor(grad_norm(targets)[0], dtype=torch.float64, device="cpu")]


def seeded_dropout():
    torch.manual_seed(3)
    return [dropout(X)]


OPS = {
    "layer_norm": differentiated(layer_norm, X, VECTOR, VECTOR),
    "rms_norm": differentiated(rms_norm, X, VECTOR),
    "bias_act": differentiated(bias_act, X, VECTOR),
    "glu": differentiated(glu, X),
    "softmax": differentiated(lambda x: softmax(x, 0.5, causal_offset=1), X),
    "cross_entropy": differentiated(lambda x: cross_entropy(x, LABELS, label_smoothing=0.1), X),
    "contrastive_loss": differentiated(contrastive_loss, X, TABLE, VECTOR[0]),
    "patches": differentiated(patches, WIDE, random(5, 3, 2, 4, seed=3)),
    "dropout": differentiated(lambda x: dropout(x, 0.5, seed=1), X),
    "dropout without a seed": seeded_dropout,
    "embedding": differentiated(lambda weight: embedding(LABELS, weight), TABLE),
    "rope": differentiated(lambda x: rope(x, *rope_tables(3, 8)), WIDE),
    "lists of gradients": lists,
    "to_bf16": differentiated(convert.to_bf16, X),
    "to_fp16": differentiated(convert.to_fp16, X),
    "stochastic": differentiated(lambda x: convert.to_bf16(x, stochastic=True, seed=1), X),
    "split and merge": lambda: [*convert.split(X), convert.merge(*convert.split(X))],
    **{name: differentiated(getattr(vector_math, name), X.abs() + 1) for name in vector_math.BOUNDS},
    **{
        f"{name} {weight} {state}": optimizer(step, group, weight, state)
        for name, step, group in [
            ("adam", adam_step, AdamGroup()),
            ("sgd", sgd_step, SGDGroup(momentum=0.9)),
            ("lamb", lamb_step, LAMBGroup()),
        ]
        for weight, state in [("fp32", "fp32"), ("split", "8bit"), ("bf16", "bf16")]
    },
}


@pytest.fixture(params=["float64", "meta"])
def default(request):
    """Sets the default, for the test to call; what it computed before is without."""

    def change():
        if request.param == "meta":
            torch.set_default_device("meta")
        else:
            torch.set_default_dtype(torch.float64)

    yield change
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("native", [True, False], ids=["kernel", "reference"])
@pytest.mark.parametrize("op", OPS)
def test_defaults_do_not_matter(monkeypatch, default, op, native):
    if not native:
        monkeypatch.setattr(_native, "available", lambda: False)
    expected = OPS[op]()
    default()
    actual = OPS[op]()
    torch.set_default_device(None)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
