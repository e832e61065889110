"""Modules that turn pairs are known by what they compute, and run their own code wherever the kernel would differ."""

import copy
import pickle

import pytest
import torch
from torch import nn

from fullstride.models.llama import Rotary, rotary_tables
from fullstride.rewriting import put_back, rewrite
from fullstride.rewriting.probes import rotary
from fullstride.rewriting.probes.rotary import RotaryForward, Way


class Interleaved(nn.Module):
    def forward(self, x, cos, sin):
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


class PositionsFirst(nn.Module):
    """x (B, T, H, d)."""

    def forward(self, x, cos, sin):
        return Rotary()(x.transpose(1, 2), cos, sin).transpose(1, 2)


class WithFactor(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, q, cos, sin):
        return self.factor * Rotary()(q, cos, sin)


class TurnsBack(nn.Module):
    def forward(self, x, cos, sin):
        return Rotary()(x, cos, -sin)


class OnlyValues(nn.Module):
    """Right forward, but no gradient goes back."""

    def forward(self, x, cos, sin):
        return Rotary()(x.detach(), cos, sin) + 0 * x


class ChangesItsInput(nn.Module):
    def forward(self, x, cos, sin):
        y = Rotary()(x, cos, sin)
        x.data.zero_()
        return y


class Fails(nn.Module):
    def forward(self, x, cos, sin):
        raise ZeroDivisionError


class Doubled(nn.Module):
    """Hugging Face's tables: each angle twice."""

    def forward(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin


KNOWN = {
    Rotary: Way(False, 2),
    Interleaved: Way(True, 2),
    PositionsFirst: Way(False, 1),
    WithFactor: Way(False, 2),
}
OTHERS = [TurnsBack, OnlyValues, ChangesItsInput, Fails, Doubled, lambda: WithFactor(2.0)]


def swapped(module):
    model = nn.Sequential(module)
    return model[0], rewrite(model)


def heads(seq_dim=2, dtype=torch.float32):
    """x as a linear layer and a transposition leave it, and the tables of its positions."""
    x = torch.randn(2, 5, 3, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    return (x.transpose(1, 2) if seq_dim == 2 else x), *rotary_tables(5, 8, 10000.0)


def with_gradient(module, x, cos, sin):
    x = x.detach().clone().requires_grad_()
    y = module(x, cos, sin)
    y.float().square().mul(torch.arange(y.shape[-1])).sum().backward()
    return y.detach(), x.grad


@pytest.fixture
def calls(monkeypatch):
    """One entry for each run of ops.rope."""
    seen, original = [], rotary.rope

    def record(*args, **kwargs):
        seen.append("rope")
        return original(*args, **kwargs)

    monkeypatch.setattr(rotary, "rope", record)
    return seen


@pytest.mark.parametrize("kind", KNOWN, ids=lambda kind: kind.__name__)
def test_a_module_is_known_by_what_it_computes(kind, calls):
    arguments = heads(KNOWN[kind].seq_dim)
    expected = with_gradient(kind(), *arguments)
    module, outcomes = swapped(kind())
    assert module.forward.way == KNOWN[kind]
    assert [o.done.startswith("ops.rope") for o in outcomes] == [True]
    for ours, theirs in zip(with_gradient(module, *arguments), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert calls


@pytest.mark.parametrize("make", OTHERS)
def test_a_module_that_computes_something_else_is_left_alone_with_a_reason(make):
    module, outcomes = swapped(make())
    assert "forward" not in module.__dict__
    assert [o.left for o in outcomes] == [rotary.NOT_ROTARY]


def test_a_module_with_weights_or_other_arguments_does_not_look_like_one():
    class MoreArguments(nn.Module):
        def forward(self, x, cos, sin, offset=0):
            return x

    class Weighted(Rotary):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

    assert not rotary.looks_like(MoreArguments())
    assert not rotary.looks_like(Weighted())
    assert not rotary.looks_like(nn.Linear(2, 2))
    assert rotary.looks_like(Rotary())


def test_the_probe_leaves_no_trace_in_the_module():
    class Counts(Rotary):
        runs = None

        def forward(self, x, cos, sin):
            self.runs = 1
            return super().forward(x, cos, sin)

    module = Counts()
    rotary.way_of(module)
    assert "runs" not in module.__dict__


def own_rows(x, cos, sin):
    return x, cos[:1], sin[:1]


ELSEWHERE = {
    "one row of angles for all": own_rows,
    "angles of each sequence": lambda x, cos, sin: (x, cos.expand(2, 1, 5, 4), sin.expand(2, 1, 5, 4)),
    "three dimensions": lambda x, cos, sin: (x[0], cos, sin),
    "fp64": lambda x, cos, sin: (x.double(), cos.double(), sin.double()),
    "fp16": lambda x, cos, sin: (x.half(), cos, sin),
    "bf16 without autocast": lambda x, cos, sin: (x.bfloat16(), cos, sin),
    "angles in bf16": lambda x, cos, sin: (x, cos.bfloat16(), sin.bfloat16()),
    "angles that learn": lambda x, cos, sin: (x, cos.requires_grad_(), sin),
}


@pytest.mark.parametrize("change", ELSEWHERE)
def test_what_the_kernel_does_not_compute_runs_the_modules_own_code(change, calls):
    module, _ = swapped(Rotary())
    arguments = ELSEWHERE[change](*heads())
    y, expected = module(*arguments), Rotary()(*arguments)
    assert y.dtype == expected.dtype
    assert torch.equal(y, expected)
    assert not calls


def test_arguments_by_name_run_the_modules_own_code(calls):
    x, cos, sin = heads()
    module, _ = swapped(Rotary())
    assert torch.equal(module(x, cos=cos, sin=sin), Rotary()(x, cos, sin))
    assert not calls


def test_an_attribute_that_changes_is_respected(calls):
    module, _ = swapped(WithFactor())
    module.factor = 3.0
    arguments = heads()
    torch.testing.assert_close(module(*arguments), WithFactor(3.0)(*arguments))
    assert not calls


def test_under_autocast_bf16_is_turned_and_agrees_to_its_rounding(calls):
    module, _ = swapped(Rotary())
    arguments = heads(dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = with_gradient(module, *arguments), with_gradient(Rotary(), *arguments)
    assert ours[0].dtype is torch.bfloat16
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() < 2**-7 * b.norm()
    assert calls


def test_a_view_is_turned_without_a_copy_and_keeps_its_layout():
    module, _ = swapped(Rotary())
    x, cos, sin = heads()
    assert module(x, cos, sin).stride() == x.stride()


def test_hooks_are_called():
    module, _ = swapped(Rotary())
    seen = []
    module.register_forward_hook(lambda *_: seen.append("forward"))
    module(*heads())
    assert seen


def test_torch_compile_sees_the_original(calls):
    module, _ = swapped(Rotary())
    arguments = heads()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), Rotary()(*arguments))
    assert not calls


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_are_fast_and_their_own(copied, calls):
    module, _ = swapped(Rotary())
    twin = copied(module)
    assert isinstance(twin.forward, RotaryForward)
    assert twin.forward.module is twin
    twin(*heads())
    assert calls


def test_unswap_gives_the_code_back():
    module, _ = swapped(Rotary())
    put_back(module)
    assert "forward" not in module.__dict__
