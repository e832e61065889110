"""Every part of the Llama model is fused by prepare, computes what it computed, and can be recomputed."""

import copy

import pytest
import torch

import fullstride
from fullstride.models import llama

TOKENS, TARGETS = torch.randint(300, (2, 2, 24), generator=torch.Generator().manual_seed(2))


def build(kv_heads=2, vocabulary=300, **options):
    torch.manual_seed(0)
    return llama.build(
        vocabulary=vocabulary, width=32, layers=2, heads=4, kv_heads=kv_heads, hidden=80, context=32, **options
    )


def prepared(model, precision="fp32"):
    return fullstride.prepare(model, torch.optim.AdamW(model.parameters()), precision=precision)[0]


def gradients(model):
    model.zero_grad()
    model(TOKENS, TARGETS).backward()
    return {name: parameter.grad.float() for name, parameter in model.named_parameters()}


def distance(ours, theirs):
    return max((ours[name] - theirs[name]).norm() / theirs[name].norm() for name in theirs)


def test_every_part_is_replaced_and_none_left():
    outcomes = fullstride.explain(prepared(build())).outcomes
    done = {outcome.kind: outcome.done for outcome in outcomes}
    assert done["RMSNorm"] == "fullstride.nn.RMSNorm"
    assert done["Layer"] == "residual + RMSNorm"
    assert done["Rotary"] == "ops.rope"
    assert done["MLP"] == "SwiGLU"
    assert not [outcome for outcome in outcomes if outcome.left]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("vocabulary", [300, 5000], ids=["logits", "lazy logits"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_gradients_are_those_of_the_plain_model(kv_heads, vocabulary, tied):
    model = build(kv_heads, vocabulary, tied=tied)
    expected = gradients(copy.deepcopy(model).double())
    assert distance(gradients(prepared(model)), expected) < 1e-5


def test_bf16_is_no_further_from_fp64_than_torchs_autocast():
    model = build()
    exact = gradients(copy.deepcopy(model).double())
    with torch.autocast("cpu", torch.bfloat16):
        stock = gradients(copy.deepcopy(model))
    assert distance(gradients(prepared(model, "bf16")), exact) < 1.2 * distance(stock, exact)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputing_gives_the_same_bits(precision):
    expected = gradients(prepared(build(), precision))
    ours = gradients(prepared(build(recompute=True), precision))
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_recomputing_keeps_less_for_backward():
    kept = []
    for recompute in (False, True):
        model = prepared(build(recompute=recompute))
        sizes: dict[int, int] = {}

        def pack(tensor, sizes=sizes):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(TOKENS, TARGETS)
        for parameter in model.parameters():
            sizes.pop(parameter.untyped_storage().data_ptr(), None)
        kept.append(sum(sizes.values()))
        loss.backward()
    assert kept[1] < kept[0] / 2
