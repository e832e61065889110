"""Each mechanism can be left out by name, and explain() names the one that decided."""

import re
from pathlib import Path

import pytest
import torch

import fullstride
from fullstride import rewriting, runtime
from fullstride.models import llama
from fullstride.rewriting import mechanisms
from fullstride.rewriting.fusion.graph import GraphForward
from fullstride.rewriting.lazy_logits import LazyHead

pytestmark = pytest.mark.usefixtures("quiet")
TOKENS, TARGETS = torch.randint(5000, (2, 2, 24), generator=torch.Generator().manual_seed(2))


def prepared(without=(), precision="fp32"):
    """A Llama, of which every mechanism but overlap catches something."""
    torch.manual_seed(0)
    model = llama.build(vocabulary=5000, width=32, layers=2, heads=4, kv_heads=2, hidden=80, context=32)
    return fullstride.prepare(model, torch.optim.AdamW(model.parameters()), precision=precision, without=without)


def losses(model, optimizer, steps=3):
    found = []
    for _ in range(steps):
        loss = model(TOKENS, TARGETS)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def by(model):
    """The mechanisms that replaced something."""
    return {outcome.mechanism for outcome in fullstride.explain(model).outcomes if outcome.done}


def test_explain_names_the_mechanism_of_every_module_and_function():
    model, optimizer = prepared()
    losses(model, optimizer, 1)
    text = str(fullstride.explain(model))
    assert "2 x Layer: residual + RMSNorm (fusion)" in text
    assert "2 x MLP: SwiGLU (fusion)" in text
    assert "2 x Rotary: ops.rope (probes)" in text
    assert "14 x Linear: fullstride.nn.Linear (class_swap)" in text
    assert "1 x Linear: fullstride.rewriting.lazy_logits.LazyHead: logits only if somebody looks (lazy_logits)" in text
    assert "2 x scaled_dot_product_attention so far (function_mode)" in text


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [name for name in mechanisms.MECHANISMS if name != "overlap"])
def test_without_a_mechanism_the_losses_are_the_same(name, precision):
    expected = losses(*prepared(precision=precision))
    ours = losses(*prepared([name], precision))
    assert ours == pytest.approx(expected, rel=1e-5 if precision == "fp32" else 5e-3)


@pytest.mark.parametrize("name", ["lazy_logits", "class_swap", "probes", "fusion"])
def test_a_mechanism_that_is_left_out_replaces_nothing(name):
    model, _ = prepared([name])
    assert name not in by(model)
    assert by(model) == by(prepared()[0]) - {name}
    assert f"off        {name}: {mechanisms.MECHANISMS[name]}" in str(fullstride.explain(model))


def test_what_was_left_out_is_not_there():
    model, _ = prepared(["lazy_logits", "fusion"])
    assert not any(isinstance(module, LazyHead) for module in model.modules())
    assert not any(isinstance(value, GraphForward) for m in model.modules() for value in m.__dict__.values())
    assert "hook before optimizer steps" not in runtime.current().changes


def test_without_the_function_mode_torch_is_asked():
    model, optimizer = prepared(["function_mode"])
    losses(model, optimizer, 1)
    assert fullstride.explain(model).setting.caught == {}


def test_without_tied_gradients_the_engine_adds_them(monkeypatch):
    given = []

    def deliver(p, gradient):
        given.append(p)
        p.grad = gradient

    monkeypatch.setattr("fullstride.ops._tied_gradients.deliver", deliver)
    losses(*prepared(["tied_gradients"]), 1)
    assert not given
    losses(*prepared(), 1)
    assert given


def test_overlap_stays_off_even_if_it_is_asked_for(monkeypatch):
    monkeypatch.setattr("fullstride.ops.linear.measure_overlap", lambda: 2.0)
    model = torch.nn.Linear(4, 4)
    for without, expected in (([], True), (["overlap"], False)):
        fullstride.prepare(model, overlap_weight_grads=True, without=without)
        assert runtime.current().overlaps is expected
        fullstride.restore(model)


def test_the_environment_leaves_mechanisms_out_too(monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_WITHOUT", "fusion, probes")
    assert by(prepared(["lazy_logits"])[0]) == {"class_swap"}


@pytest.mark.parametrize("where", ["argument", "environment"])
def test_an_unknown_name_gets_one_clear_line_and_changes_nothing(where, monkeypatch):
    if where == "environment":
        monkeypatch.setenv("FULLSTRIDE_WITHOUT", "fushion")
    with pytest.raises(ValueError, match=r"expected names of lazy_logits, class_swap, .*; got 'fushion'$"):
        prepared(["fushion"] if where == "argument" else [])
    assert not runtime.current().changes


def test_a_single_name_may_come_without_a_list():
    assert "fusion" not in by(prepared("fusion")[0])


def test_the_page_tells_of_every_mechanism_and_of_no_other():
    page = (Path(rewriting.__file__).parent / "README.md").read_text()
    named = set(re.findall(r"^\|(?: \d \|)? `(\w+)` \|", page, re.MULTILINE))
    assert named == set(mechanisms.MECHANISMS)


def test_restore_after_parts_were_left_out_gives_the_ordinary_model_back():
    torch.manual_seed(0)
    plain = llama.build(vocabulary=5000, width=32, layers=2, heads=4, kv_heads=2, hidden=80, context=32)
    model = fullstride.restore(prepared(["fusion"], "bf16")[0])
    assert [type(module) for module in model.modules()] == [type(module) for module in plain.modules()]
    assert torch.equal(model(TOKENS), plain(TOKENS))
