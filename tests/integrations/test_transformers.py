"""transformers.Trainer with prepare_trainer(): the losses of the Trainer alone, exact files, exact resume."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.lr_scheduler import StepLR
from transformers import LlamaForCausalLM, Trainer, TrainerCallback

import fullstride
from fullstride.integrations.transformers import prepare_trainer
from fullstride.preparation import is_prepared

from ..language_model import PRECISIONS
from .small_llama import NUM_STEPS, make_arguments, make_data, make_model, make_trainer

pytestmark = pytest.mark.usefixtures("quiet", "one_thread")
BANDS = {"fp32": 1e-5, "bf16": 2e-2}
"""How far the loss of a step may be from the Trainer's own. Measured: 1e-6 and 3e-3."""
KINDS = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 3},
    "checkpointed": {"gradient_checkpointing": True},
    "SGD": {"optim": "sgd", "learning_rate": 0.5},
    "unclipped": {"max_grad_norm": 0.0},
}


def logged(trainer, key="loss"):
    return [row[key] for row in trainer.state.log_history if key in row]


def fast(folder, precision="bf16", model=None, **changes):
    options = {"precision": precision, "threads": 1}
    options |= {"state_precision": changes.pop("state_precision")} if "state_precision" in changes else {}
    return prepare_trainer(make_trainer(folder, model, **changes), **options)


def trained(folder, *args, **changes):
    trainer = fast(folder, *args, **changes)
    trainer.train()
    return trainer


def assert_same(model, weights):
    state = model.state_dict()
    assert state.keys() == weights.keys()
    for name, value in weights.items():
        assert value.dtype is torch.float32
        assert torch.equal(value, state[name]), name


class Look(TrainerCallback):
    """Keeps what a function finds at the end of each step, while the model is prepared."""

    def __init__(self, find):
        self.find, self.found = find, []

    def on_step_end(self, args, state, control, **kwargs):
        self.found.append(self.find(kwargs["model"]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_losses_norms_and_rates_are_those_of_the_trainer_alone(precision, kind, tmp_path):
    stock = make_trainer(tmp_path / "stock", save_strategy="no", **KINDS[kind])
    stock.train()
    trainer = trained(tmp_path / "fast", precision, save_strategy="no", **KINDS[kind])
    assert len(logged(stock)) == NUM_STEPS
    assert logged(trainer) == pytest.approx(logged(stock), abs=BANDS[precision], rel=0)
    assert logged(trainer, "grad_norm") == pytest.approx(logged(stock, "grad_norm"), rel=5 * BANDS[precision])
    assert logged(trainer, "learning_rate") == logged(stock, "learning_rate")


def test_clipping_has_work_to_do_in_these_tests(tmp_path):
    trainer = make_trainer(tmp_path, save_strategy="no")
    trainer.train()
    assert min(logged(trainer, "grad_norm")) > 2 * trainer.args.max_grad_norm


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_optimizer_that_the_trainer_makes_is_ours_and_the_layers_too(precision, tmp_path):
    trainer = fast(tmp_path, precision, save_strategy="no")
    trainer.add_callback(look := Look(lambda model: str(fullstride.explain(model))))
    trainer.train()
    assert type(trainer.optimizer.optimizer) is fullstride.optim.AdamW
    assert "AdamW, one call a step, states in fp32, clipped at 0.5" in look.found[-1]
    assert "15 x Linear: fullstride.nn.Linear" in look.found[-1]


def test_a_gradient_that_is_not_finite_changes_no_weight(tmp_path):
    class Poison(TrainerCallback):
        def on_pre_optimizer_step(self, *args, **kwargs):
            next(kwargs["model"].parameters()).grad.fill_(float("nan"))

    trainer = fast(tmp_path, save_strategy="no", max_steps=1)
    trainer.add_callback(Poison())
    trainer.train()
    assert_same(trainer.model, make_model().state_dict())


def test_losses_in_fp16_are_those_of_the_trainer_alone(tmp_path):
    stock = make_trainer(tmp_path / "stock", save_strategy="no")
    stock.train()
    trainer = trained(tmp_path / "fast", "fp16", save_strategy="no")
    assert logged(trainer) == pytest.approx(logged(stock), abs=BANDS["bf16"], rel=0)
    assert logged(trainer, "grad_norm") == pytest.approx(logged(stock, "grad_norm"), rel=5 * BANDS["bf16"])


def test_an_optimizer_and_a_schedule_of_ones_own_are_taken(tmp_path):
    losses = []
    for prepared in (False, True):
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        own = (optimizer, StepLR(optimizer, 2, 0.5))
        arguments = make_arguments(tmp_path, save_strategy="no")
        trainer = Trainer(model, arguments, train_dataset=make_data(), optimizers=own)
        trainer = prepare_trainer(trainer, precision="fp32") if prepared else trainer
        trainer.train()
        losses.append(logged(trainer))
    assert type(optimizer) is fullstride.optim.AdamW
    assert losses[0] == pytest.approx(losses[1], abs=BANDS["fp32"], rel=0)


@pytest.mark.parametrize(
    ("precision", "kind"), [("fp32", "plain"), ("bf16", "plain"), ("bf16", "accumulated"), ("bf16", "checkpointed")]
)
def test_resumed_is_as_never_stopped(precision, kind, tmp_path):
    whole = trained(tmp_path, precision, **KINDS[kind])
    other = fast(tmp_path / "resumed", precision, make_model(seed=1), **KINDS[kind])
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert logged(other) == logged(whole)
    assert len(logged(other)) == NUM_STEPS
    assert_same(other.model, whole.model.state_dict())


@pytest.mark.parametrize("state_precision", ["bf16", "8bit"])
def test_resumed_with_small_states_is_as_never_stopped(state_precision, tmp_path):
    whole = trained(tmp_path, state_precision=state_precision)
    other = fast(tmp_path / "resumed", state_precision=state_precision)
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert logged(other) == logged(whole)
    assert_same(other.model, whole.model.state_dict())


def in_a_process(*arguments, launcher=()):
    code = [sys.executable, *launcher, "-m", "tests.integrations.small_llama", *map(str, arguments)]
    return subprocess.run(code, cwd=Path(__file__).parents[2], capture_output=True, text=True)


def test_killed_and_resumed_is_as_never_stopped(tmp_path):
    killed = in_a_process(tmp_path / "killed", "bf16", 6, 4)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["checkpoint-4"]
    other = fast(tmp_path / "killed", model=make_model(seed=1))
    other.train(resume_from_checkpoint=True)
    whole = trained(tmp_path / "whole")
    assert logged(other) == logged(whole)
    assert_same(other.model, whole.model.state_dict())


def test_two_processes_train_as_one(tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = in_a_process(tmp_path, "bf16", NUM_STEPS + 1, 2, launcher=launcher)
    assert done.returncode == 0, done.stderr
    state = json.loads((tmp_path / f"checkpoint-{NUM_STEPS}" / "trainer_state.json").read_text())
    losses = [row["loss"] for row in state["log_history"]]
    assert losses == pytest.approx(logged(trained(tmp_path / "one", save_strategy="no")), abs=BANDS["bf16"], rel=0)


def test_accumulation_in_several_processes_in_bf16_is_refused_in_one_line(tmp_path, monkeypatch):
    trainer = fast(tmp_path, gradient_accumulation_steps=2)
    monkeypatch.setattr(type(trainer.args), "world_size", 2)  # the rest of a second process is not reached
    with pytest.raises(ValueError, match="got 2 steps in 2 processes; pass precision") as caught:
        trainer.train()
    assert "\n" not in str(caught.value)
    assert not is_prepared(trainer.model)


def test_checkpoints_of_a_bf16_run_hold_the_exact_fp32_weights(tmp_path):
    trainer = trained(tmp_path)
    assert not is_prepared(trainer.model)
    weights = dict(trainer.model.named_parameters())
    assert any(not torch.equal(p, p.bfloat16().float()) for p in weights.values())
    saved = load_file(tmp_path / f"checkpoint-{NUM_STEPS}" / "model.safetensors")
    assert saved.keys() == weights.keys()
    assert all(torch.equal(saved[name], p) for name, p in weights.items())
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / f"checkpoint-{NUM_STEPS}")
    assert loaded.dtype is torch.float32
    assert_same(loaded, trainer.model.state_dict())


def test_save_pretrained_in_mid_run_is_what_restore_gives(tmp_path):
    def save_and_restore(model):
        model.save_pretrained(tmp_path / "mid")
        before = next(p for p in model.parameters()).dtype
        fullstride.restore(model)
        return before, {name: p.detach().clone() for name, p in model.named_parameters()}

    trainer = fast(tmp_path, max_steps=1, save_strategy="no")
    trainer.add_callback(look := Look(save_and_restore))
    trainer.train()
    before, weights = look.found[0]
    assert before is torch.bfloat16
    saved = load_file(tmp_path / "mid" / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in weights.items())
    assert '"dtype": "float32"' in (tmp_path / "mid" / "config.json").read_text()


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path):
    model = make_model(tie_word_embeddings=True)
    trainer = trained(tmp_path, model=model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / f"checkpoint-{NUM_STEPS}")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert_same(loaded, trainer.model.state_dict())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_evaluating_in_mid_run_changes_nothing(precision, tmp_path):
    plain = trained(tmp_path / "plain", precision, save_strategy="no")
    other = fast(tmp_path / "other", precision, save_strategy="no", eval_strategy="steps", eval_steps=2)
    other.train()
    assert logged(other) == logged(plain)
    evaluated = logged(other, "eval_loss")
    assert len(evaluated) == NUM_STEPS / 2
    assert other.evaluate()["eval_loss"] == pytest.approx(evaluated[-1], abs=BANDS[precision])  # now an ordinary model


def test_the_best_model_is_loaded_at_the_end(tmp_path):
    trainer = fast(tmp_path, eval_strategy="steps", eval_steps=4, load_best_model_at_end=True, learning_rate=1.0)
    trainer.train()
    best = Path(trainer.state.best_model_checkpoint)
    assert_same(trainer.model, load_file(best / "model.safetensors"))


def test_a_second_train_goes_on_with_the_optimizer(tmp_path):
    trainer = trained(tmp_path, save_strategy="no")
    moments = trainer.optimizer.state_dict()["state"][0]["step"].item()
    trainer.train()
    assert (moments, trainer.optimizer.state_dict()["state"][0]["step"].item()) == (NUM_STEPS, 2 * NUM_STEPS)
    assert not is_prepared(trainer.model)


def test_making_the_optimizer_before_train_prepares_nothing(tmp_path):
    trainer = fast(tmp_path, save_strategy="no")
    made = trainer.create_optimizer()
    assert not is_prepared(trainer.model)
    assert type(made) is torch.optim.AdamW
    trainer.train()
    assert logged(trainer) == logged(trained(tmp_path, save_strategy="no"))
    assert type(trainer.optimizer.optimizer) is fullstride.optim.AdamW


def test_a_model_of_model_init_is_prepared_anew_each_time(tmp_path):
    arguments = make_arguments(tmp_path, save_strategy="no")
    trainer = Trainer(args=arguments, model_init=lambda: make_model(), train_dataset=make_data())
    prepare_trainer(trainer, precision="bf16", threads=1)
    trainer.train()
    first, losses = trainer.model, logged(trainer)
    trainer.train()
    assert trainer.model is not first
    assert not is_prepared(first)
    assert logged(trainer) == losses


def test_the_model_is_an_ordinary_one_after_an_interrupt(tmp_path):
    class Interrupt(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            raise KeyboardInterrupt

    trainer = fast(tmp_path, save_strategy="no")
    kinds = [type(module) for module in trainer.model.modules()]
    trainer.add_callback(Interrupt())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert [type(module) for module in trainer.model.modules()] == kinds
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    trainer.remove_callback(Interrupt)
    trainer.train()
    assert len(logged(trainer)) == NUM_STEPS


def test_a_model_without_biases_and_norms_leaves_a_group_empty(tmp_path):
    class Regression(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False)

        def forward(self, x, labels):
            return {"loss": nn.functional.mse_loss(self.layer(x), labels)}

    data = [{"x": row, "labels": row} for row in torch.eye(4)]
    trainer = Trainer(Regression(), make_arguments(tmp_path, save_strategy="no"), train_dataset=data)
    prepare_trainer(trainer, precision="bf16", threads=1).train()
    assert len(trainer.optimizer.param_groups) == 1
    assert logged(trainer)[-1] < logged(trainer)[0]


def test_the_class_of_the_trainer_keeps_its_own_methods(tmp_path):
    class Doubled(Trainer):
        def compute_loss(self, *args, **kwargs):
            return 2 * super().compute_loss(*args, **kwargs)

    arguments = make_arguments(tmp_path, save_strategy="no", max_steps=1)
    own = prepare_trainer(Doubled(make_model(), arguments, train_dataset=make_data()), precision="fp32")
    assert isinstance(own, Doubled)
    own.train()
    plain = trained(tmp_path, "fp32", save_strategy="no", max_steps=1)
    assert logged(own)[0] == pytest.approx(2 * logged(plain)[0], rel=1e-6)


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (lambda _: make_model(), {}, "expected a transformers.Trainer, got LlamaForCausalLM"),
        (fast, {}, "not prepared yet"),
        (make_trainer, {"bogus": 1}, "expected options among precision, .*; got 'bogus'"),
        (make_trainer, {"precision": "bf17"}, "one of auto, fp32, bf16, fp16, got 'bf17'"),
        (make_trainer, {"state_precision": "4bit"}, "one of fp32, bf16, 8bit, got '4bit'"),
        (make_trainer, {"threads": 0}, "expected a whole number from 1 on"),
        (make_trainer, {"without": "nothing"}, "prepare: without: expected names of .*; got 'nothing'"),
        (make_trainer, {"clip": 1.0}, "set max_grad_norm in the TrainingArguments"),
        (lambda folder: make_trainer(folder, bf16=True), {}, "without mixed precision, got bf16; leave it out there"),
    ],
)
def test_what_cannot_be_prepared_is_said_in_one_line(make, options, expected, tmp_path):
    with pytest.raises((TypeError, ValueError), match=expected) as caught:
        prepare_trainer(make(tmp_path), **options)
    assert "\n" not in str(caught.value)


def test_an_optimizer_without_a_fast_form_is_named_before_the_first_step(tmp_path):
    trainer = fast(tmp_path, optim="adafactor")
    with pytest.raises(TypeError, match="Adafactor, which has no fast form"):
        trainer.train()
    assert not is_prepared(trainer.model)
