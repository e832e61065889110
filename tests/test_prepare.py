"""prepare() and explain() on models of a few lines; test_unknown_models.py has the real ones."""

import logging
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fullstride
from fullstride.optim.freezing import DynamicFreezer
from fullstride.optim.scaling import LossScaler

from .language_model import PRECISIONS, batch, make, train

pytestmark = pytest.mark.usefixtures("quiet")


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


def test_the_loss_scale_is_the_users():
    scaler = LossScaler(64.0, growth_interval=3, growth=4.0)
    model, optimizer = fullstride.prepare(*make(), precision="fp16", loss_scaler=scaler)
    train(model, optimizer, range(4))
    assert optimizer.scaler is scaler
    assert (scaler.scale, scaler.good_steps) == (256.0, 1)


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


@pytest.mark.parametrize(("options", "skipped"), [({}, 0), ({"clip": 1.0}, 1), ({"skip_nonfinite": True}, 1)])
def test_a_step_with_a_nan_is_skipped_where_the_norm_is_taken(options, skipped):
    model = nn.Linear(4, 4)
    model, fast = fullstride.prepare(model, torch.optim.SGD(model.parameters()), precision="fp32", **options)
    (model(torch.ones(2, 4)) * float("nan")).sum().backward()
    fast.step()
    assert fast.skipped_steps == skipped
    assert bool(model.weight.isfinite().all()) == bool(skipped)


def test_an_optimizer_of_ours_takes_the_option_too():
    model = nn.Linear(4, 4)
    for given, expected in ((True, True), (None, True), (False, False)):
        optimizer = fullstride.optim.AdamW(model.parameters(), skip_nonfinite=True)
        model, fast = fullstride.prepare(model, optimizer, precision="fp32", skip_nonfinite=given)
        assert fast.skip_nonfinite is expected
        fullstride.restore(model)


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


def test_explain_lists_the_operations_of_a_step_where_it_is_given_one():
    model, optimizer = fullstride.prepare(*make(), precision="fp32")
    text = str(fullstride.explain(model, trace=lambda: train(model, optimizer, range(1))))
    assert "AdamW, one call a step" in text
    assert re.search(r"forward +blocks\.\*\.mlp +\S+ +our kernel", text)
    assert re.search(r"\d+ operations, [\d.]+ ms; \d+ % by our kernels, \d+ % caught by nobody", text)
    assert "operations" not in str(fullstride.explain(model))


def test_prepare_says_what_it_did_in_one_line(monkeypatch, capsys):
    monkeypatch.delenv("FULLSTRIDE_QUIET")
    monkeypatch.setattr(logging.getLogger("fullstride"), "propagate", False)  # pytest handles what reaches the root
    fullstride.prepare(*make(), precision="fp32")
    said = capsys.readouterr().err
    assert said.startswith("fullstride: fp32")
    assert said.count("\n") == 1


# ---- bad calls -----------------------------------------------------------------------------------------------------


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
    freezer = DynamicFreezer(model, threshold=1e9, patience=1, criterion="settled", min_active=1)
    for _ in range(3):
        model(torch.randn(2, 3)).sum().backward()
        freezer.step()
    assert not model[0].weight.requires_grad
    return model


BAD: dict[str, tuple[Any, ...]] = {
    "no module": (lambda: ("model", None), {}, TypeError, "expected a torch.nn.Module, got str"),
    "no optimizer": (lambda: (make()[0], 3), {}, TypeError, "expected a torch.optim.Optimizer, got int"),
    "no scaler": (make, {"loss_scaler": 512}, TypeError, "expected loss_scaler to be a fullstride.optim.LossScaler"),
    "nothing to scale": (
        make, {"loss_scaler": LossScaler(), "precision": "bf16"}, ValueError, "with fp16 only, got it with bf16",
    ),
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
