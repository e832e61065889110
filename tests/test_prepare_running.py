"""The ways in which users run a prepared model: compiled, recomputing, in parts, beside others."""

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullstride
from fullstride.rewriting import function_mode

from .language_model import PRECISIONS, adam, batch, make, train

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_eval_and_no_grad_give_what_training_mode_gives(precision):
    model, _ = fullstride.prepare(*make(), precision=precision)
    x = batch(0)
    expected = model(x).detach()
    with torch.no_grad():
        assert torch.equal(model.eval()(x), expected)
    with torch.inference_mode():
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("recompute", ["modules", "methods"])
def test_gradient_checkpointing_works(recompute, precision):
    plain = "" if recompute == "modules" else recompute
    stock = train(*make(plain), range(6))
    ours = train(*fullstride.prepare(*make(recompute), precision=precision), range(6))
    assert max(abs(a - b) for a, b in zip(stock, ours, strict=True)) < (1e-4 if precision == "fp32" else 2e-2)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_torch_compile_works_before_and_after_prepare(when, precision):
    stock = train(*make(), range(5))
    model: Any
    model, optimizer = make()
    model = torch.compile(model, backend="aot_eager") if when == "before" else model
    model, fast = fullstride.prepare(model, optimizer, precision=precision)
    model = torch.compile(model, backend="aot_eager") if when == "after" else model
    ours = train(model, fast, range(5))
    assert max(abs(a - b) for a, b in zip(stock, ours, strict=True)) < (1e-4 if precision == "fp32" else 2e-2)
    fullstride.restore(model)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch.compile looks at it
def test_a_compiled_model_in_fp16_scales_its_gradients_too():
    norms = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager")):
        model, fast = fullstride.prepare(*make(), precision="fp16")
        train(wrap(model), fast, range(1))
        norms.append(fast.last_grad_norm)
    assert norms[1] == pytest.approx(norms[0], rel=2e-2)


def count_layer_norms(monkeypatch) -> list[Any]:
    """A list that grows with each call of F.layer_norm that reaches our table."""
    calls: list[Any] = []

    def count(*args, **kwargs):
        calls.append(args)
        return NotImplemented

    monkeypatch.setitem(function_mode.TABLE, F.layer_norm, count)
    return calls


def test_a_part_called_alone_runs_with_our_functions(monkeypatch):
    model, _ = fullstride.prepare(*make(), precision="fp32")
    calls = count_layer_norms(monkeypatch)
    model.blocks[0](torch.randn(2, 4, 8))
    assert calls


class Encoder(nn.Module):
    """Users call its parts and its other method, not only forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.convolution = nn.Conv1d(8, 8, 3, padding=1)
        self.features = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 13)

    def encode(self, tokens):
        x = self.features(self.convolution(self.embed(tokens).mT).mT)
        return self.attention(x, self.layer(x), x, need_weights=False)[0]

    def forward(self, tokens):
        return self.head(self.encode(tokens))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_method_beside_forward_gives_in_fp32_what_it_gives_within(precision):
    model = Encoder()
    model, _ = fullstride.prepare(model, adam(model), precision=precision)
    y = model.head(model.encode(batch(0)))
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, model(batch(0)), rtol=0, atol=1e-6 if precision == "fp32" else 2e-2)
    y.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_autocast_switched_off_inside_of_the_model_stays_off_around_its_layers(precision):
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = Encoder()
            self.gate = nn.Linear(13, 13)

        def forward(self, tokens):
            with torch.autocast("cpu", enabled=False):
                y = self.gate(self.encoder(tokens).float())
                return y, (y @ y.mT).dtype

    model = Careful()
    model, _ = fullstride.prepare(model, adam(model), precision=precision)
    y, dtype = model(batch(0))
    assert y.dtype == dtype == torch.float32


@pytest.mark.parametrize("inner", PRECISIONS)
@pytest.mark.parametrize("outer", PRECISIONS)
def test_a_prepared_model_may_call_another_one_of_any_precision(outer, inner):
    teacher, _ = fullstride.prepare(*make(), precision=inner)

    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(13, 13)

        def forward(self, tokens):
            return self.head(teacher(tokens)), teacher(tokens)

    student = Student()
    student, _ = fullstride.prepare(student, adam(student), precision=outer)
    y, taught = student(batch(0))
    assert y.dtype == torch.float32
    assert torch.equal(taught, teacher(batch(0)))


def test_functions_outside_of_the_model_are_torchs_own(monkeypatch):
    model, _ = fullstride.prepare(*make(), precision="fp32")
    model(batch(0))
    calls = count_layer_norms(monkeypatch)
    F.layer_norm(torch.randn(2, 8), (8,))
    assert not calls


def test_an_exception_in_forward_leaves_no_trace():
    model, _ = fullstride.prepare(*make(), precision="bf16")
    with pytest.raises(IndexError):
        model(torch.full((1, 3), 99))
    assert not torch.is_autocast_enabled("cpu")
    assert model(batch(0)).shape == (4, 9, 13)


def test_the_arguments_of_forward_can_be_inspected():
    model, _ = fullstride.prepare(*make())
    assert list(inspect.signature(model.forward).parameters) == ["tokens"]
