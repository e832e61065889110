"""A trace accounts for every operation of a step, changes no bit of it, and leaves the process as it was."""

import os
import sys
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullstride
from fullstride import _native
from fullstride.models import llama
from fullstride.ops import _overlap
from fullstride.rewriting import function_mode, lazy_tensor
from fullstride.rewriting.step_trace import NOBODY, Row, Trace, trace

from .models import CASES

pytestmark = pytest.mark.usefixtures("quiet")


class Unknown(nn.Module):
    """A plain model with operations that nobody catches, one of them in a part of a part."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.parts = nn.ModuleList(nn.ModuleDict({"mix": Sums(), "norm": nn.LayerNorm(16)}) for _ in range(2))
        self.conv = nn.Conv1d(16, 16, 3, padding=1, groups=2)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 50))

    def forward(self, x):
        x = self.embedding(x)
        for part in self.parts:
            x = part["norm"](part["mix"](x))
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.mlp(F.softmax(x, dim=-1))


class Sums(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, dim=1)


TOKENS = torch.randint(50, (2, 2, 12), generator=torch.Generator().manual_seed(0))


def unknown_loss(model, batch):
    return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


def llama_loss(model, batch):
    return model(batch, batch)


def build_llama(vocabulary=50, **options):
    return llama.build(vocabulary=vocabulary, width=32, layers=2, heads=4, kv_heads=2, hidden=80, context=16, **options)


def transformers_case(name):
    case = CASES[name]
    return case.make_model, case.make_batches()[:2], case.loss


MODELS = {
    "unknown": (Unknown, TOKENS, unknown_loss),
    "our Llama": (build_llama, TOKENS, llama_loss),
    "Llama of transformers": transformers_case("llama"),
    "BERT of transformers": transformers_case("bert"),
}


class Training:
    """A model with its optimizer; each step has two micro-batches. What they gave is kept."""

    def __init__(self, name="unknown", precision="fp32", **options):
        make, self.batches, self.loss = MODELS[name] if isinstance(name, str) else name
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.AdamW(model.parameters())
        self.model, self.optimizer = fullstride.prepare(model, optimizer, precision=precision, threads=2, **options)
        self.seen = []

    def step(self):
        for batch in self.batches:
            loss = self.loss(self.model, batch) / 2
            loss.backward()
            self.seen.append(loss.detach().clone())
        self.seen += [p.grad.clone() for p in self.model.parameters() if p.grad is not None]
        self.optimizer.step()
        self.optimizer.zero_grad()

    def trace(self):
        return trace(self.model, self.step)


both = pytest.mark.parametrize("precision", ["fp32", "bf16"])
each = pytest.mark.parametrize("name", MODELS)


def chosen(rows, **wanted):
    return [row for row in rows if all(getattr(row, key) == value for key, value in wanted.items())]


@both
@each
def test_a_traced_step_gives_the_same_bits(name, precision):
    traced, plain = Training(name, precision), Training(name, precision)
    traced.trace()
    for _ in range(3):
        plain.step()
    assert len(traced.seen) == len(plain.seen)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(traced.seen, plain.seen, strict=True))


class Counting:
    """A kernel that counts its calls."""

    def __init__(self, name, function, counts):
        self.name, self.function, self.counts = name, function, counts
        self.__name__ = function.__name__

    def __call__(self, *args):
        self.counts[self.name] += 1
        return self.function(*args)


@both
@each
def test_every_call_of_a_kernel_is_counted(name, precision, monkeypatch):
    training = Training(name, precision)
    counts: Counter[str] = Counter()
    for kernel, function in list(_native.kernels.__dict__.items()):
        monkeypatch.setitem(_native.kernels.__dict__, kernel, Counting(kernel, function, counts))
    training.step()
    counts.clear()
    training.step()
    expected = Counter(counts)
    found: Counter[str] = Counter()
    for row in training.trace().rows:
        if row.who.startswith("our kernel"):
            found[row.operation] += row.calls
    assert found == expected
    assert len(found) > 4


@both
def test_an_operation_that_nobody_catches_is_shown_with_its_module(precision):
    rows = Training("unknown", precision).trace().rows
    for path in ("parts.0.mix", "parts.1.mix"):
        (row,) = chosen(rows, module=path, operation="aten::cumsum", phase="forward")
        assert (row.who, row.mechanism, row.calls) == ("torch", NOBODY, 2)
        assert chosen(rows, module=path, phase="backward", mechanism=NOBODY)
    (conv,) = chosen(rows, module="conv", operation="aten::conv1d")
    assert conv.mechanism == NOBODY
    assert conv.phase == "forward"
    assert chosen(rows, module="conv", operation="aten::convolution_backward", phase="backward")


def test_the_mechanism_that_caught_an_operation_is_named():
    rows = Training().trace().rows
    assert {row.mechanism for row in chosen(rows, module="parts.0.norm")} == {"class_swap"}
    assert chosen(rows, module="(the model)", operation="softmax_forward", mechanism="function_mode")
    assert chosen(rows, module="(the model)", operation="softmax_backward", mechanism="function_mode")
    assert chosen(rows, module="mlp", mechanism="fusion", phase="forward")
    assert chosen(rows, module="mlp", mechanism="fusion", phase="backward")
    (step,) = chosen(rows, operation="adam_step")
    assert (step.phase, step.mechanism) == ("optimizer", "optimizer")
    variant = _native._base(_native.library(), _native.isa()) or _native.isa()  # whose optimizers serve
    assert step.who == f"our kernel ({variant})"


def test_probes_and_fusion_are_named_in_our_llama():
    rows = Training("our Llama").trace().rows
    assert {row.mechanism for row in rows if row.operation == "rope"} == {"probes"}
    assert {row.mechanism for row in rows if row.operation.startswith("glu_")} == {"fusion"}


def test_lazy_logits_and_the_tied_gradient_are_named():
    case = (lambda: build_llama(5000, tied=True), TOKENS, llama_loss)
    rows = Training(case).trace().rows
    assert chosen(rows, operation="cross_entropy", mechanism="lazy_logits")
    assert chosen(rows, operation="embedding_backward", mechanism="tied_gradients", phase="backward")


def test_weight_gradients_computed_beside_backward_are_named():
    training = Training()
    _overlap.overlap_weight_grads(True)
    try:
        rows = training.trace().rows
    finally:
        _overlap.overlap_weight_grads(False)
    assert chosen(rows, mechanism="overlap")


def test_a_model_that_was_not_prepared_is_all_torchs():
    torch.manual_seed(0)
    model = Unknown()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        unknown_loss(model, TOKENS[0]).backward()
        optimizer.step()

    rows = trace(model, step).rows
    assert {row.mechanism for row in rows} == {NOBODY}
    assert {row.phase for row in rows} == {"forward", "backward", "optimizer", "other"}
    assert chosen(rows, module="mlp.0", operation="aten::linear")


def test_a_module_may_have_any_name():
    model = nn.ModuleDict({"a|b::c": Sums()})
    rows = trace(model, lambda: model["a|b::c"](torch.ones(2, 2))).rows
    assert chosen(rows, module="a|b::c", operation="aten::cumsum", phase="forward", calls=1)


def test_one_time_is_not_counted_twice():
    found = Training().trace()
    assert found.total() <= found.traced_milliseconds
    assert [row.milliseconds for row in found.rows] == sorted((row.milliseconds for row in found.rows), reverse=True)
    assert all(row.milliseconds >= 0 for row in found.rows)


def test_a_step_is_called_three_times():
    calls = []
    trace(nn.Linear(2, 2), lambda: calls.append(1))
    assert len(calls) == 3


def state_of_the_process():
    package = {name: module for name, module in sys.modules.items() if name.startswith("fullstride.")}
    return {
        "call": nn.Module.__call__,
        "environment": dict(os.environ),
        "kernels": dict(_native.kernels.__dict__),
        "functions": dict(function_mode.TABLE),
        "lazy": dict(lazy_tensor.FUNCTIONS),
        "profiler": torch.autograd._profiler_enabled(),
        "package": {(name, key): id(v) for name, module in package.items() for key, v in vars(module).items()},
    }


@pytest.mark.parametrize("fails_at", [None, 1, 2, 3])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_process_is_left_as_it_was(fails_at, where):
    training = Training()
    training.step()
    calls, before = [], state_of_the_process()

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dx):
            raise ZeroDivisionError

    def step():
        calls.append(1)
        if len(calls) == fails_at:
            if where == "forward":
                training.model(torch.full((1, 4), 99))  # no such token
            Fails.apply(unknown_loss(training.model, TOKENS[0])).backward()
        training.step()

    if fails_at is None:
        trace(training.model, step)
    else:
        with pytest.raises((IndexError, ZeroDivisionError)):
            trace(training.model, step)
    assert state_of_the_process() == before
    assert [m for m in training.model.modules() if m._forward_hooks or m._forward_pre_hooks] == []


def test_the_table_is_aligned_short_and_ends_with_the_sums():
    layers = [Row("forward", f"layers.{i}.mlp", "gemm", "our kernel (avx2)", "class_swap", 1, 3.0) for i in range(2)]
    names = [f"part_{chr(97 + i // 8)}{chr(97 + i % 8)}" for i in range(60)]
    rows = [Row("forward", name, "aten::mm", "torch", NOBODY, 2, 1 / (1 + i)) for i, name in enumerate(names)]
    lines = str(Trace([*layers, *rows], 5.0, 9.0)).splitlines()
    assert len(lines) == 43
    assert lines[1].split()[:6] == ["6.00", "56.2", "2", "forward", "layers.*.mlp", "gemm"]
    assert lines[1].endswith("our kernel (avx2)  class_swap")
    columns = [line.index("forward") for line in lines[1:41]]
    assert len(set(columns)) == 1
    assert lines[-2].startswith("... and ")
    assert lines[-2].endswith(" ms in 21 more rows")
    assert lines[-1] == (
        "122 operations, 10.7 ms; 56 % by our kernels, 44 % caught by nobody; the step takes 5.0 ms, traced 9.0 ms"
    )
