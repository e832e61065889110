"""prepare(), restore() and explain() on models of a few lines; tests/test_unknown_models.py has the real ones."""

import copy
import inspect
import io
import logging
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import fullstride
from fullstride.nn import functional
from fullstride.optim.freezing import DynamicFreezer

PRECISIONS = ["fp32", "bf16"]
DUPLICATES = [
    pytest.param(copy.deepcopy, id="deepcopy"),
    pytest.param(lambda model: pickle.loads(pickle.dumps(model)), id="pickle"),
]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def attend(self, x):
        parts = self.qkv(F.layer_norm(x, x.shape[-1:])).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    """A language model of two blocks with a tied head."""

    def __init__(self, recompute: str = "") -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.head = nn.Linear(8, 13, bias=False)
        self.head.weight = self.embed.weight
        self.recompute = recompute

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            if self.recompute == "modules":
                x = checkpoint(block, x, use_reentrant=False)
            elif self.recompute == "methods":
                x = x + checkpoint(block.attend, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x)


def make(recompute: str = "", seed: int = 0) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Model(recompute)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch(step: int) -> torch.Tensor:
    return torch.randint(0, 13, (4, 9), generator=torch.Generator().manual_seed(step))


def train(model, optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        tokens = batch(step)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, tmp_path):
    monkeypatch.setenv("FULLSTRIDE_QUIET", "1")


# ---- the loop stays as it is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "band"), [("fp32", 2e-4), ("bf16", 3e-2), ("fp16", 3e-2)])
def test_losses_follow_stock_pytorch(precision, band):
    stock = train(*make(), range(40))
    ours = train(*fullstride.prepare(*make(), precision=precision), range(40))
    assert max(abs(a - b) for a, b in zip(stock, ours, strict=True)) < band
    assert ours[-1] < ours[0]


def test_the_same_model_object_comes_back_with_its_keys_and_ties():
    model, optimizer = make()
    parameters, keys = dict(model.named_parameters()), list(model.state_dict())
    prepared, fast = fullstride.prepare(model, optimizer, precision="bf16")
    assert prepared is model
    assert isinstance(fast, torch.optim.Optimizer)
    assert {name: id(p) for name, p in model.named_parameters()} == {name: id(p) for name, p in parameters.items()}
    assert list(model.state_dict()) == keys
    assert model.head.weight is model.embed.weight


def test_forward_uses_the_exact_weight_rounded_to_nearest_after_every_step():
    model, optimizer = fullstride.prepare(*make(), precision="bf16")
    for step in range(5):
        train(model, optimizer, range(step, step + 1))
        state = model.state_dict()
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.detach(), state[name].to(parameter.dtype))
    assert any(p.dtype == torch.bfloat16 for p in model.parameters())


def test_outputs_are_fp32_in_every_precision():
    for precision in PRECISIONS:
        model, _ = fullstride.prepare(*make(), precision=precision)
        assert model(batch(0)).dtype == torch.float32


def test_clip_inside_the_step_equals_clip_grad_norm_outside():
    (model, _), (fast_model, _) = make(), make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    _, fast = fullstride.prepare(
        fast_model, torch.optim.SGD(fast_model.parameters(), lr=0.5), precision="fp32", clip=0.1
    )
    for step in range(5):
        for m, o in ((model, optimizer), (fast_model, fast)):
            o.zero_grad()
            tokens = batch(step)
            F.cross_entropy(m(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            if m is model:
                norm = nn.utils.clip_grad_norm_(m.parameters(), 0.1)
            o.step()
        assert fast.last_grad_norm == pytest.approx(norm.item(), rel=1e-4)
    for p, q in zip(model.parameters(), fast_model.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-5)


def test_a_layer_added_to_the_optimizer_later_steps_its_exact_weight():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model, fast = fullstride.prepare(model, torch.optim.SGD(model[1].parameters(), lr=1e-4), precision="bf16")
    fast.add_param_group({"params": list(model[0].parameters())})
    before = model.state_dict()["0.weight"]
    model(torch.ones(2, 4)).sum().backward()
    gradient = model[0].weight.grad.float()
    fast.step()
    torch.testing.assert_close(model.state_dict()["0.weight"], before - 1e-4 * gradient, rtol=1e-6, atol=1e-8)


def test_zeros_written_into_a_weight_train_on():
    model, _ = make()
    model, fast = fullstride.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-2), precision="bf16")
    model.embed.weight.data[0] = 0
    train(model, fast, range(2))
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_schedule_made_before_goes_on():
    model, optimizer = make()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    _, fast = fullstride.prepare(model, optimizer)
    train(model, fast, range(1))
    schedule.step()
    assert fast.param_groups[0]["lr"] == pytest.approx(5e-3)


# ---- saving, copying, going back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state_precision", ["fp32", "bf16", "8bit"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_saved_and_loaded_state_continues_bitwise(precision, state_precision):
    options = {"precision": precision, "state_precision": state_precision, "clip": 1.0}
    model, optimizer = fullstride.prepare(*make(), **options)
    train(model, optimizer, range(5))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    expected = train(model, optimizer, range(5, 10))

    file.seek(0)
    saved = torch.load(file)
    model, optimizer = fullstride.prepare(*make(seed=1), **options)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert train(model, optimizer, range(5, 10)) == expected


@pytest.mark.parametrize("precision", PRECISIONS)
def test_restore_gives_an_ordinary_model_with_exact_weights(precision):
    model, optimizer = make()
    kinds = [type(m) for m in model.modules()]
    model, fast = fullstride.prepare(model, optimizer, precision=precision)
    train(model, fast, range(3))
    exact = {name: value.clone() for name, value in model.state_dict().items()}
    assert fullstride.restore(model) is model
    assert [type(m) for m in model.modules()] == kinds
    assert not any("forward" in m.__dict__ or "_split_lo" in m.__dict__ for m in model.modules())
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert all(torch.equal(value, exact[name]) for name, value in model.state_dict().items())


def test_restore_in_fp16_takes_the_loss_scale_out_of_pending_gradients():
    gradients = []
    for precision in ("fp32", "fp16"):
        model, _ = fullstride.prepare(*make(), precision=precision)
        model(batch(0)).sum().backward()
        fullstride.restore(model)
        gradients.append(model.head.weight.grad.norm().item())
    assert gradients[1] == pytest.approx(gradients[0], rel=0.02)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_restored_model_trains_on_with_its_optimizer_and_with_stock(precision):
    model, fast = fullstride.prepare(*make(), precision=precision)
    train(model, fast, range(3))
    fullstride.restore(model)
    twin = copy.deepcopy(model)
    ours = train(model, fast, range(3, 8))
    stock = train(twin, torch.optim.AdamW(twin.parameters(), lr=1e-2), range(3, 8))
    assert ours[0] == stock[0]
    assert all(abs(a - b) < 0.2 for a, b in zip(ours, stock, strict=True))  # stock starts with empty moments


def test_restored_and_prepared_again_is_as_never_restored():
    model, fast = fullstride.prepare(*make(), precision="bf16")
    twin, twin_fast = fullstride.prepare(*make(), precision="bf16")
    train(model, fast, range(3))
    train(twin, twin_fast, range(3))
    fullstride.restore(model)
    model, fast = fullstride.prepare(model, fast, precision="bf16")
    assert train(model, fast, range(3, 6)) == train(twin, twin_fast, range(3, 6))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("duplicate", DUPLICATES)
def test_copies_are_prepared_models_of_their_own(duplicate, precision):
    model, _ = fullstride.prepare(*make(), precision=precision)
    twin = duplicate(model)
    x = batch(0)
    expected = model(x)
    assert torch.equal(twin(x), expected)
    for p in model.parameters():
        p.data.zero_()
    assert torch.equal(twin(x), expected)
    assert all(vars(m)["forward"].module is m for m in twin.modules() if isinstance(m, (Model, Block)))
    fullstride.restore(twin)
    assert type(twin.head) is nn.Linear


# ---- ways of running a model ---------------------------------------------------------------------------------------


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

    monkeypatch.setitem(functional.TABLE, F.layer_norm, count)
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


def test_a_penalty_on_gradients_is_refused_and_not_ignored():
    """Of the gradient for the input of a linear critic only the weights are to blame, not what comes in to backward."""
    critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    critic, _ = fullstride.prepare(critic, adam(critic), precision="fp32")
    x = torch.randn(3, 4, requires_grad=True)
    score = critic(x).mean()
    (gradient,) = torch.autograd.grad(score, x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"cannot be differentiated twice.*restore\(\)"):
        (score + (gradient.norm(dim=-1) - 1).square().mean()).backward()


def test_the_arguments_of_forward_can_be_inspected():
    model, _ = fullstride.prepare(*make())
    assert list(inspect.signature(model.forward).parameters) == ["tokens"]


# ---- the account ---------------------------------------------------------------------------------------------------


def test_explain_lists_what_was_replaced_and_why_not():
    model: Any = make()[0]
    model.blocks[0].mlp[0] = nn.utils.parametrizations.weight_norm(model.blocks[0].mlp[0])
    optimizer = torch.optim.AdamW(model.parameters())
    text = str(fullstride.explain(fullstride.prepare(model, optimizer, precision="bf16")[0]))
    assert "fullstride.nn.Linear" in text
    assert "parametrized" in text
    assert "split" in text
    assert "AdamW, one call a step" in text


def test_prepare_says_what_it_did_in_one_line(monkeypatch, capsys):
    monkeypatch.delenv("FULLSTRIDE_QUIET")
    monkeypatch.setattr(logging.getLogger("fullstride"), "propagate", False)  # pytest handles what reaches the root
    fullstride.prepare(*make(), precision="fp32")
    said = capsys.readouterr().err
    assert said.startswith("fullstride: fp32")
    assert said.count("\n") == 1


# ---- bad calls -----------------------------------------------------------------------------------------------------


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


def odd_parameter(dtype: torch.dtype) -> nn.Module:
    model: Any = nn.Linear(2, 2)
    model.odd = nn.Parameter(torch.zeros(2, dtype=dtype), requires_grad=False)
    return model


def prepared() -> nn.Module:
    return fullstride.prepare(*make())[0]


def no_parameters_in_a_group() -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = make()
    optimizer.add_param_group({"params": []})
    return model, optimizer


def half_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    freezer = DynamicFreezer(model, threshold=1e9, patience=1)
    for _ in range(3):
        model(torch.randn(2, 3)).sum().backward()
        freezer.step()
    assert not model[0].weight.requires_grad
    return model


BAD: dict[str, tuple[Any, ...]] = {
    "no module": (lambda: ("model", None), {}, TypeError, "expected a torch.nn.Module, got str"),
    "no optimizer": (lambda: (make()[0], 3), {}, TypeError, "expected a torch.optim.Optimizer, got int"),
    "another model's optimizer": (lambda: (make()[0], make()[1]), {}, ValueError, "not the model's"),
    "prepared twice": (lambda: (prepared(), None), {}, ValueError, "prepared already"),
    "a prepared part": (lambda: (nn.Sequential(prepared()), None), {}, ValueError, "its part '0' is prepared already"),
    "complex parameters": (lambda: (odd_parameter(torch.complex64), None), {}, ValueError, "complex64"),
    "integer parameters": (lambda: (odd_parameter(torch.int64), None), {}, ValueError, "int64"),
    "a half-frozen model": (lambda: (half_frozen(), None), {}, ValueError, "frozen in part by a DynamicFreezer"),
    "an empty group": (no_parameters_in_a_group, {}, ValueError, "got none in group 1"),
    "precision": (make, {"precision": "int4"}, ValueError, "expected precision to be one of auto, fp32, bf16, fp16"),
    "state precision": (make, {"state_precision": "4bit"}, ValueError, "expected state_precision"),
    "clip": (make, {"clip": 0.0}, ValueError, "expected clip"),
    "bf16 alone": (lambda: (make()[0], None), {"precision": "bf16"}, ValueError, "needs the optimizer"),
    "an optimizer we do not have": (
        lambda: (lambda m: (m, torch.optim.Adagrad(m.parameters())))(make()[0]), {}, (TypeError, ValueError), "Adagrad",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_gets_one_clear_line_and_changes_nothing(name):
    build, options, error, words = BAD[name]
    model, optimizer = build()
    before = [type(m) for m in model.modules()] if isinstance(model, nn.Module) else []
    with pytest.raises(error) as caught:
        fullstride.prepare(model, optimizer, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert before == ([type(m) for m in model.modules()] if isinstance(model, nn.Module) else [])


@pytest.mark.parametrize("function", ["restore", "explain"])
def test_what_was_not_prepared_cannot_be_restored_or_explained(function):
    with pytest.raises(ValueError, match="not prepared"):
        getattr(fullstride, function)(make()[0])


def test_without_an_optimizer_the_modules_are_made_fast():
    model, none = fullstride.prepare(make()[0])
    assert none is None
    assert "fullstride.nn.Linear" in str(fullstride.explain(model))
